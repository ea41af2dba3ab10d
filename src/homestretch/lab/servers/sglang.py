"""SGLang: version, window and running requests from /get_server_info or its log."""

import re

from homestretch.lab.client import Target, call, try_json
from homestretch.lab.servers import Facts, ServerKind, line, number


class SgLang(ServerKind):
    name = "sglang"

    def ready(self, target: Target) -> bool:
        raw = call(target, "//health", timeout_s=5.0)
        return raw.status == 200 and not raw.error

    def read_log(self, log: str) -> Facts:
        version = re.search(r"sglang(?:\[\w+\])?[ =]+v?(\d+\.\d+[\w.]*)", log, re.I)
        slots = number(r"max_running_requests=(\d+)", log)
        window = number(r"context_len(?:gth)?=(\d+)", log)
        return Facts(
            version=f"SGLang {version[1]}" if version else "",
            start_line=line(r"The server is fired up", log),
            slots=slots,
            slots_source="the server's log (max_running_requests)" if slots else "",
            window=window,
            window_source="the server's log (context_len)" if window else "",
        )

    def ask(self, target: Target, model: str) -> Facts:
        told = super().ask(target, model)
        info = try_json(target, "//get_server_info", timeout_s=10.0)
        if not isinstance(info, dict):
            return told
        states = info.get("internal_states") or [{}]
        slots = states[0].get("effective_max_running_requests_per_dp") or info.get("max_running_requests")
        window = info.get("context_length") or told.window
        return Facts(
            version=f"SGLang {info['version']}" if info.get("version") else "",
            slots=slots if isinstance(slots, int) else None,
            slots_source="the server's /get_server_info" if isinstance(slots, int) else "",
            window=window if isinstance(window, int) else None,
            window_source="the server's /get_server_info" if info.get("context_length") else told.window_source,
        )


KIND = SgLang()
