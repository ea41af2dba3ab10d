"""Recounts the memory test: prompt tokens, filled share and times from the requests, peaks from the memory samples."""

from __future__ import annotations

from typing import Any

from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.raw import Raw, Request, counting

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
        told(request, ledger, size, where)
        if not request.get("error") and request.get("finish_reason") and request.tokens:
            answered.append(size)
    if "fit.largest_tokens" in ledger.numbers:
        ledger.number("fit.largest_tokens", max(answered, default=None), "requests-fit.jsonl")
    peaks(raw, ledger)
    ledger.rest(("fit",), "no raw record for it")


def told(request: Request, ledger: Ledger, size: int, where: str) -> None:
    """Prefill and decode as the server's own timings give them."""
    timings = request.get("extras", {}).get("timings")
    if not isinstance(timings, dict):
        return
    tokens = (request.get("prompt_tokens") or 0) - (request.cached or 0)
    seconds, rate = timings.get("prompt_s"), timings.get("tokens_per_s")
    if f"fit.{size}.prefill_tokens_per_s" in ledger.numbers and isinstance(seconds, int | float) and seconds > 0:
        ledger.number(f"fit.{size}.prefill_tokens_per_s", tokens / seconds, where)
    if f"fit.{size}.decode_tokens_per_s" in ledger.numbers and isinstance(rate, int | float):
        ledger.number(f"fit.{size}.decode_tokens_per_s", rate, where)


def peaks(raw: Raw, ledger: Ledger) -> None:
    """Peak = the largest of (total - available) while a size ran, less the idle value before its start."""
    rows = raw.lines("memory-fit.jsonl") or []
    last: dict[int, tuple[int, dict[str, Any]]] = {}
    for line, row in rows:
        if isinstance(row.get("size"), int) and not row.get("discarded"):
            last[row["size"]] = (line, row)
    for size, (line, row) in last.items():
        where = f"memory-fit.jsonl: line {line}"
        used = [value for _, value in row.get("used") or []]
        peak = max([*used, row.get("peak", 0)]) if used else row.get("peak")
        if used and row.get("peak") is not None and max(used) != row["peak"]:
            note = f"its peak is {row['peak']}, its samples reach {max(used)}"
            ledger.add(f"fit.{size}: samples", "differs", place=where, note=note)
        counted = {
            "peak_gib": (peak - row.get("idle", 0)) / GIB if peak is not None else None,
            "tree_gib": row.get("tree", 0) / GIB,
            "mapped_gib": row.get("tree_file", 0) / GIB,
            "gpu_gib": row["gpu"] / GIB if row.get("gpu") is not None else None,
        }
        for name, value in counted.items():
            if f"fit.{size}.{name}" in ledger.numbers:
                ledger.number(f"fit.{size}.{name}", value, where)
