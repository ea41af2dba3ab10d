"""vLLM: version from /version, window from /v1/models, sequences from its log, drafts from its metrics."""

import re

from homestretch.lab.client import Target, call, try_json
from homestretch.lab.servers import Facts, ServerKind, counter, line, number


class Vllm(ServerKind):
    name = "vllm"

    def ready(self, target: Target) -> bool:
        raw = call(target, "//health", timeout_s=5.0)
        return raw.status == 200 and not raw.error

    def read_log(self, log: str) -> Facts:
        version = re.search(r"vLLM (?:API server )?(?:version|engine \(v)[ :]*v?(\d+\.\d+[\w.+-]*)", log)
        slots = number(r"max_num_seqs['\"]?[=:] *(\d+)", log)
        window = number(r"max_(?:seq|model)_len['\"]?[=:] *(\d+)", log)
        return Facts(
            version=f"vLLM {version[1].rstrip('.')}" if version else "",
            start_line=line(r"vLLM API server version", log),
            slots=slots,
            slots_source="the server's log (max_num_seqs)" if slots else "",
            window=window,
            window_source="the server's log (max_seq_len)" if window else "",
        )

    def ask(self, target: Target, model: str) -> Facts:
        told = super().ask(target, model)
        answer = try_json(target, "//version", timeout_s=10.0)
        version = answer.get("version") if isinstance(answer, dict) else None
        return Facts(version=f"vLLM {version}" if version else "", window=told.window, window_source=told.window_source)

    def drafts_in_log(self, log: str) -> tuple[int, int] | None:
        found = re.findall(r"Accepted: (\d+) tokens, Drafted: (\d+) tokens", log)
        return (sum(int(a) for a, _ in found), sum(int(d) for _, d in found)) if found else None

    def drafts_in_metrics(self, text: str) -> tuple[float, float] | None:
        accepted = counter("vllm:spec_decode_num_accepted_tokens_total", text)
        drafted = counter("vllm:spec_decode_num_draft_tokens_total", text)
        return (accepted, drafted) if accepted is not None and drafted is not None else None


KIND = Vllm()
