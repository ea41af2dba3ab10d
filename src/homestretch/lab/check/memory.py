"""Recounts the memory test: prompt tokens, filled share and times from the requests, peaks from the memory samples."""

from __future__ import annotations

from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.raw import Raw, counting

GIB = 2**30


def recount(raw: Raw, ledger: Ledger) -> None:
    """Numbers of the part `fit`; what has no raw record is named."""
    requests = raw.requests("fit")
    if requests is None:
        ledger.rest(("fit",), f"requests-fit.jsonl is {'held back' if 'requests-fit.jsonl' in raw.held else 'not there'}")
        return
    answered: list[int] = []
    for request in counting(requests):
        size = request.detail.get("size", request.detail.get("window"))
        if not isinstance(size, int):
            continue
        where = f"requests-fit.jsonl: line {request.line}"
        tokens = (request.get("usage") or {}).get("prompt_tokens", request.get("prompt_tokens"))
        if f"fit.{size}.prompt_tokens" in ledger.numbers:
            ledger.number(f"fit.{size}.prompt_tokens", tokens, where)
        if f"fit.{size}.filled_pct" in ledger.numbers:
            ledger.number(f"fit.{size}.filled_pct", 100 * tokens / size if tokens else None, where)
        if f"fit.{size}.ttft_s" in ledger.numbers:
            ledger.number(f"fit.{size}.ttft_s", request.first, where)
        if not request.get("error") and request.get("finish_reason") and request.tokens:
            answered.append(size)
    if "fit.largest_tokens" in ledger.numbers:
        ledger.number("fit.largest_tokens", max(answered, default=None), "requests-fit.jsonl")
    peaks(raw, ledger)
    ledger.rest(("fit",), "no raw record for it")


def peaks(raw: Raw, ledger: Ledger) -> None:
    """Peak = the largest of (total - available) during a size, less the idle value before its start."""
    rows = raw.lines("memory-fit.jsonl") or raw.lines("memory.jsonl") or []
    sizes: dict[int, list[dict[str, object]]] = {}
    for _, row in rows:
        if isinstance(size := row.get("size"), int):
            sizes.setdefault(size, []).append(row)
    for size, samples in sizes.items():
        idle = [row["used_bytes"] for row in samples if row.get("phase") == "idle" and isinstance(row.get("used_bytes"), int)]
        used = [row["used_bytes"] for row in samples if row.get("phase") != "idle" and isinstance(row.get("used_bytes"), int)]
        if idle and used and f"fit.{size}.peak_gib" in ledger.numbers:
            ledger.number(f"fit.{size}.peak_gib", (max(map(int, map(str, used))) - int(str(idle[-1]))) / GIB, "memory-fit.jsonl")
