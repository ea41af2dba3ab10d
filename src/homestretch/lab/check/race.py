"""Recounts a race: arithmetic of loops and times, and `io.jsonl` judged again on the season made again from its seed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.raw import Raw, Unreadable
from homestretch.lab.errors import LabError
from homestretch.lab.game import judge
from homestretch.lab.game.programs import sandboxed
from homestretch.lab.sandbox import SandboxFailed, open_sandbox

COURSE, RANGE = 52_000, 7_200
LOOP = {1: 12_000, 2: 12_000, 3: 15_000, 4: 15_000}
TARGETS = 5
RESULT = "gauntlet/result.json"


def recount(raw: Raw, ledger: Ledger) -> None:
    """Numbers `gauntlet.*`, the race's own sums, and its judgement."""
    try:
        result = raw.json(RESULT)
    except Unreadable as error:
        ledger.add(RESULT, "differs", place=RESULT, note=str(error))
        return
    if result is None:
        ledger.rest(("gauntlet",), f"{RESULT} is {'held back' if RESULT in raw.held else 'not there'}")
        return
    sums(ledger, result)
    numbers(ledger, result)
    again(raw, ledger)


def sums(ledger: Ledger, result: dict[str, Any]) -> None:
    """Loops and times of each range, and the totals, by the rules of the course."""
    wrong = ""
    ranges = result.get("ranges") or []
    for row in ranges:
        targets = row.get("targets") or []
        missed = sum(not hit for hit in targets)
        level = row.get("level")
        penalty = missed * LOOP.get(level, 0)
        due = {
            "hits": len(targets) - missed,
            "loops": missed,
            "loops_ms": penalty,
            "range_ms": row.get("thinking_ms", 0) + penalty + RANGE,
        }
        bad = [f"{key} {row.get(key)}, by the rules {value}" for key, value in due.items() if row.get(key) != value]
        if len(targets) != TARGETS or bad:
            wrong = f"range {row.get('number', row.get('range'))}: {bad[0] if bad else f'{len(targets)} targets'}"
            break
    finish = COURSE + sum(row.get("range_ms", 0) for row in ranges)
    void = result.get("state") == "void"
    if not wrong and not void and result.get("finish_ms") != finish:
        wrong = f"finish {result.get('finish_ms')} ms, by its ranges {finish} ms"
    ledger.holds("gauntlet: loops and times", not wrong, place=RESULT, note=wrong)


def numbers(ledger: Ledger, result: dict[str, Any]) -> None:
    """`gauntlet.*` of `result.json` from the ranges."""
    ranges = result.get("ranges") or []
    finish = None if result.get("state") == "void" else (COURSE + sum(row.get("range_ms", 0) for row in ranges)) / 1000
    counted = {
        "finish_s": finish,
        "hits": sum(sum(map(bool, row.get("targets") or [])) for row in ranges),
        "loops": sum(row.get("loops", 0) for row in ranges),
        "loops_s": sum(row.get("loops_ms", 0) for row in ranges) / 1000,
        "thinking_s": sum(row.get("thinking_ms", 0) for row in ranges) / 1000,
        "buzzers": sum(bool(row.get("buzzer")) for row in ranges),
    }
    for name, value in counted.items():
        if f"gauntlet.{name}" in ledger.numbers:
            ledger.number(f"gauntlet.{name}", value, RESULT)


@lru_cache(maxsize=1)
def cage() -> str:
    """Why programs cannot be run on this machine, "" if they can."""
    try:
        open_sandbox()
    except (SandboxFailed, LabError, OSError) as error:
        return str(error)
    return ""


def again(raw: Raw, ledger: Ledger) -> None:
    """The race judged again from `io.jsonl`: every byte of its result must come out."""
    needed = ("model.json", "io.jsonl", "system.txt")
    lost = [name for name in needed if raw.path(f"gauntlet/{name}") is None]
    if lost:
        reason = "held back" if f"gauntlet/{lost[0]}" in raw.held else "not there"
        ledger.skip("gauntlet: judged again", f"gauntlet/{lost[0]} is {reason}")
        return
    if reason := cage():
        ledger.skip("gauntlet: judged again", f"programs cannot be run here: {reason}")
        return
    try:
        faults = judge.faults(raw.folder / "gauntlet", sandboxed)
    except LabError as error:
        faults = [str(error).replace(str(raw.folder) + "/", "")]
    ledger.holds(
        "gauntlet: judged again",
        not faults,
        place=faults[0].split(",")[0].split(":")[0] if faults else RESULT,
        note="; ".join(faults),
    )
