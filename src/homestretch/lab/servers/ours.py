"""`homestretch serve`: its one start line tells name, device, window, streams and drafts."""

import re

from homestretch.lab.servers import Facts, ServerKind, line, number

START = r"homestretch \S+: .+ on .+, window [\d,]+ tokens, [\d,]+ streams? at once"


class Ours(ServerKind):
    name = "ours"

    def read_log(self, log: str) -> Facts:
        said = line(START, log)
        if not said:
            return Facts()
        said = said[said.index("homestretch ") :]
        version = re.match(r"homestretch (\S+):", said)
        drafts = re.search(r"drafts: ([^,]+)", said)
        return Facts(
            version=f"homestretch {version[1]}" if version else "",
            start_line=said,
            slots=number(r"([\d,]+) streams? at once", said),
            slots_source="the server's start line",
            window=number(r"window ([\d,]+) tokens", said),
            window_source="the server's start line",
            drafts=drafts[1] if drafts else "",
        )


KIND = Ours()
