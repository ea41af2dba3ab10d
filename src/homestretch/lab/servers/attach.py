"""Any OpenAI-compatible server that runs already and that no other kind fits."""

from typing import Any, ClassVar

from homestretch.lab.servers import ServerKind


class Attach(ServerKind):
    name = "attach"
    no_cache: ClassVar[dict[str, Any]] = {"cache_prompt": False}


KIND = Attach()
