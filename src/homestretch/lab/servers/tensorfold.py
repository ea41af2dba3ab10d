"""TensorFold: its start line tells window, streams and drafts; counts of drafts stand in its log."""

import re
from typing import Any, ClassVar

from homestretch.lab.servers import Facts, ServerKind, line, number


class TensorFold(ServerKind):
    name = "tensorfold"
    no_cache: ClassVar[dict[str, Any]] = {"cache_prompt": False}

    def read_log(self, log: str) -> Facts:
        said = line(r"streams? at once", log)
        version = re.search(r"[Tt]ensor[Ff]old(?:-native)? v?(\d+\.\d+\.\d+)", log)
        drafts = re.search(r"drafts: ([^,]+?)(?:,|$)", said)
        return Facts(
            version=f"TensorFold {version[1]}" if version else "",
            start_line=said,
            slots=number(r"(\d+) streams? at once", said),
            slots_source="the server's start line" if said else "",
            window=number(r"(?:window|context)[ :=]+(?:of )?([\d,]+)", said),
            window_source="the server's start line" if re.search(r"(?:window|context)[ :=]+(?:of )?[\d,]+", said) else "",
            drafts=drafts[1].strip() if drafts else "",
        )

    def drafts_in_log(self, log: str) -> tuple[int, int] | None:
        found = re.findall(r"accepted (\d+) (?:of|/) (\d+)", log)
        return (sum(int(a) for a, _ in found), sum(int(d) for _, d in found)) if found else None


KIND = TensorFold()
