"""Ollama: version from /api/version, window from /api/ps, parallel requests from its log."""

from homestretch.lab.client import Target, try_json
from homestretch.lab.servers import Facts, ServerKind, line, number


class Ollama(ServerKind):
    name = "ollama"

    def ready(self, target: Target) -> bool:
        return isinstance(try_json(target, "//api/version", timeout_s=5.0), dict)

    def read_log(self, log: str) -> Facts:
        slots = number(r"OLLAMA_NUM_PARALLEL:(\d+)", log)
        return Facts(
            start_line=line(r"Listening on", log),
            slots=slots or None,
            slots_source="the server's log (OLLAMA_NUM_PARALLEL)" if slots else "",
        )

    def ask(self, target: Target, model: str) -> Facts:
        version = try_json(target, "//api/version", timeout_s=10.0)
        running = try_json(target, "//api/ps", timeout_s=10.0)
        window = None
        for entry in (running or {}).get("models", []) if isinstance(running, dict) else []:
            if isinstance(entry, dict) and model in (entry.get("name"), entry.get("model")):
                window = entry.get("context_length")
        return Facts(
            version=f"Ollama {version['version']}" if isinstance(version, dict) and version.get("version") else "",
            window=window if isinstance(window, int) else None,
            window_source="the server's /api/ps" if isinstance(window, int) else "",
        )


KIND = Ollama()
