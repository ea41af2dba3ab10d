"""The guard's summary of each part against its samples and the discarded steps."""

from __future__ import annotations

from typing import Any

from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.raw import Raw


def recount(raw: Raw, ledger: Ledger, parts: dict[str, Any]) -> None:
    """`parts.PART.guard` of `result.json`: steps, discarded attempts, samples, busiest process."""
    samples = raw.lines("guard.jsonl")
    for part, state in parts.items():
        told = state.get("guard") if isinstance(state, dict) else None
        if not isinstance(told, dict):
            continue
        requests = raw.requests(part)
        if samples is None or requests is None:
            name = "guard.jsonl" if samples is None else f"requests-{part}.jsonl"
            ledger.skip(f"{part}: guard", f"{name} is {'held back' if name in raw.held else 'not there'}")
            continue
        mine = [row for _, row in samples if str(row.get("step", "")).split("/")[0] == part]
        loads = [float(item.get("cpu_pct", 0.0)) for row in mine for item in row.get("foreign", [])]
        discarded = {(request.get("step"), request.get("attempt", 1)) for request in requests if request.get("discarded")}
        steps = {request.get("step") for request in requests if not str(request.get("step")).startswith("warmup")}
        counted = {
            "steps": len(steps),
            "discarded": len(discarded),
            "samples": len(mine),
            "busiest_pct": max(loads, default=0.0),
        }
        wrong = {key: (told.get(key, 0), value) for key, value in counted.items() if abs(told.get(key, 0) - value) > 1e-9}
        note = "; ".join(f"{key} {one} in result.json, {other} by the samples" for key, (one, other) in wrong.items())
        ledger.holds(f"{part}: guard", not wrong, place="guard.jsonl", note=note)
