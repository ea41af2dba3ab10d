"""llama.cpp's llama-server: slots, window and build from /props; drafts from a reply's timings or from its log."""

import re
from typing import Any, ClassVar

from homestretch.lab.client import Target, call, try_json
from homestretch.lab.servers import Facts, ServerKind, line, number


class LlamaCpp(ServerKind):
    name = "llama_cpp"
    no_cache: ClassVar[dict[str, Any]] = {"cache_prompt": False}

    def ready(self, target: Target) -> bool:
        raw = call(target, "//health", timeout_s=5.0)
        return raw.status == 200 and not raw.error

    def read_log(self, log: str) -> Facts:
        build = re.search(r"build(?:_info)?: *(b?\d+)[ -]\(?([0-9a-f]{7,})\)?", log)
        slots = number(r"n_slots = (\d+)", log) or number(r"n_seq_max +=? *(\d+)", log)
        window = number(r"n_ctx_slot = (\d+)", log) or number(r"new slot.*n_ctx = (\d+)", log)
        return Facts(
            version=f"llama.cpp b{build[1].lstrip('b')} ({build[2]})" if build else "",
            start_line=line(r"server is listening on", log),
            slots=slots,
            slots_source="the server's log (n_slots)" if slots else "",
            window=window,
            window_source="the server's log (n_ctx of a slot)" if window else "",
        )

    def ask(self, target: Target, model: str) -> Facts:
        props = try_json(target, "//props", timeout_s=10.0)
        if not isinstance(props, dict):
            return super().ask(target, model)
        window = (props.get("default_generation_settings") or {}).get("n_ctx")
        slots, build = props.get("total_slots"), props.get("build_info")
        return Facts(
            version=f"llama.cpp {build}" if isinstance(build, str) else "",
            slots=slots if isinstance(slots, int) else None,
            slots_source="the server's /props (total_slots)" if isinstance(slots, int) else "",
            window=window if isinstance(window, int) else None,
            window_source="the server's /props (n_ctx of a slot)" if isinstance(window, int) else "",
        )

    def drafts_in_log(self, log: str) -> tuple[int, int] | None:
        found = re.findall(r"draft acceptance(?: rate)? *= *[\d.]+ \( *(\d+) accepted / *(\d+) generated\)", log)
        return (sum(int(a) for a, _ in found), sum(int(d) for _, d in found)) if found else None


KIND = LlamaCpp()
