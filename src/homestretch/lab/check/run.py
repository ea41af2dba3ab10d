"""Recounts one run folder: hashes, every number, contract against requests, verdicts against replies, the guard, the race."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from homestretch import __version__
from homestretch.lab.check import files, load, memory, quality, race, settings, speed
from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.raw import Raw, Unreadable
from homestretch.lab.check.report import Report
from homestretch.lab.check.signature import verify

SPEED = ("decode", "prefill", "conc", "ctx")
QUALITY = ("mmlupro", "gpqa", "ifeval", "lcb", "ruler", "think")


def check_run(folder: Path, signers: Path | None = None) -> Report:
    """The report of a run folder, published or not. Never raises for what is in it: a file that cannot be read is a row."""
    ledger = recount(folder)
    signed = verify(folder, signers)
    if signed is not None and signed.state == "failed":
        ledger.add("signature of the manifest", "differs", place="manifest.json.sig", note=signed.text)
    return Report(
        run=ledger.run,
        checked_by=f"homestretch {__version__}",
        passed=not any(row.outcome == "differs" for row in ledger.rows),
        signature=signed.text if signed is not None else "",
        rows=ledger.rows,
    )


def recount(folder: Path) -> Ledger:
    """Everything counted again; `values` holds the recounted numbers by name."""
    raw = Raw(folder)
    ledger = Ledger(run=folder.name, numbers={})
    if not folder.is_dir():
        ledger.add("run folder", "differs", place=folder.name, note="it is not a folder")
        return ledger
    guarded(ledger, "files", lambda: files.recount(raw, ledger))
    result = whole(raw, ledger, "result.json")
    contract = whole(raw, ledger, "contract.json")
    if result is None:
        return ledger
    numbers, parts = result.get("numbers"), result.get("parts")
    if not isinstance(numbers, dict) or not isinstance(parts, dict):
        ledger.add("result.json", "differs", place="result.json", note="it holds no numbers or no parts")
        return ledger
    ledger.numbers = {name: number if isinstance(number, dict) else {} for name, number in numbers.items()}
    if contract is not None:
        ledger.holds(
            "run name",
            result.get("run") == contract.get("run"),
            place="result.json",
            note="result and contract name different runs",
        )
    for part in parts:
        if (parts[part] or {}).get("state") == "missing":
            continue
        one(raw, ledger, str(part), contract)
    guarded(ledger, "guard", lambda: load.recount(raw, ledger, parts))
    done = {row.name for row in ledger.rows}
    for name, number in ledger.numbers.items():
        if name not in done and number.get("value") is not None:
            ledger.skip(name, "the recount knows no raw record for it")
    return ledger


def one(raw: Raw, ledger: Ledger, part: str, contract: dict[str, Any] | None) -> None:
    """All points of one part."""
    if contract is not None and part != "gauntlet":
        guarded(ledger, f"{part}: requests", lambda: settings.compare(raw, ledger, part, contract))
    known = {key: item.get("value") for key, item in (contract or {}).get("settings", {}).items() if isinstance(item, dict)}
    if part in SPEED:
        guarded(ledger, f"{part}: numbers", lambda: speed.recount(raw, ledger, part, known))
    elif part in QUALITY:
        guarded(ledger, f"{part}: answers", lambda: quality.recount(raw, ledger, part))
    elif part == "fit":
        guarded(ledger, "fit: numbers", lambda: memory.recount(raw, ledger))
    elif part == "gauntlet":
        guarded(ledger, "gauntlet: numbers", lambda: race.recount(raw, ledger))


def whole(raw: Raw, ledger: Ledger, name: str) -> dict[str, Any] | None:
    try:
        value = raw.json(name)
    except Unreadable as error:
        ledger.add(name, "differs", place=name, note=str(error))
        return None
    if value is None:
        if name in raw.held:
            ledger.skip(name, f"held back: {raw.held[name]}")
        else:
            ledger.add(name, "differs", place=name, note="it is missing")
    return value


def guarded(ledger: Ledger, name: str, count: Callable[[], None]) -> None:
    """Run one recount; a file that is not what it should be is a difference with its reason."""
    try:
        count()
    except Unreadable as error:
        ledger.add(name, "differs", note=str(error))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, OSError, RecursionError) as error:
        ledger.add(name, "differs", note=f"a record does not have its form ({type(error).__name__}: {str(error)[:80]})")
