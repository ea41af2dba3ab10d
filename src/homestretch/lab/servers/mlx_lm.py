"""mlx-lm's `mlx_lm.server`: one model, no slots and no window of its own to tell; its version rides in system_fingerprint."""

from homestretch.lab.client import Target, call, try_json
from homestretch.lab.servers import Facts, ServerKind, line


class MlxLm(ServerKind):
    name = "mlx_lm"

    def ready(self, target: Target) -> bool:
        raw = call(target, "//health", timeout_s=5.0)
        return raw.status == 200 and not raw.error

    def read_log(self, log: str) -> Facts:
        return Facts(start_line=line(r"Starting httpd at", log))

    def ask(self, target: Target, model: str) -> Facts:
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        answer = try_json(target, "/chat/completions", body, timeout_s=120.0)
        print_of = answer.get("system_fingerprint") if isinstance(answer, dict) else None
        version = f"mlx-lm {str(print_of).split('-')[0]}" if print_of else ""
        return Facts(version=version)


KIND = MlxLm()
