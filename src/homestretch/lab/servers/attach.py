"""Any OpenAI-compatible server that runs already and that no other kind fits."""

from homestretch.lab.servers import ServerKind


class Attach(ServerKind):
    name = "attach"


KIND = Attach()
