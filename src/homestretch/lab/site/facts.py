"""Facts that sentences are made of, counted from a run's raw files and contract: requests, drafts, guard, machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from homestretch.lab.rates import timing
from homestretch.lab.records import RunFolder
from homestretch.lab.setups import Run, inside
from homestretch.lab.types import Card, GuardSample, RequestRecord, Result

MAX_RAW_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class OneRun:
    """A counting request of the decode part: its rate and its drafts (None where the server told none)."""

    prompt: str
    rate: float | None
    drafted: int | None
    accepted: int | None


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the guard and the quiet check saw during a run."""

    steps: int
    discarded: int
    samples: int
    quiet: int
    busiest_name: str
    busiest_pct: float


def setting(run: Run | None, *names: str) -> Any:
    """The first of these settings that the run's contract holds, else None."""
    settings = run.contract.settings if run and run.contract else {}
    return next((settings[name].value for name in names if name in settings), None)


def source(run: Run | None, name: str) -> str:
    """Where a setting came from, "" when the contract does not hold it."""
    settings = run.contract.settings if run and run.contract else {}
    return settings[name].source if name in settings else ""


def slots(run: Run | None, card: Card) -> tuple[Any, str]:
    """The server's slots and where that is known from: the run's contract, else the card."""
    value = setting(run, "server.slots")
    return (value, source(run, "server.slots")) if value is not None else (card.slots.value, f"card: {card.slots.source}")


def requests(run: Run, part: str, *, counting: bool = True) -> list[RequestRecord]:
    """Requests of a part, those that count or all; [] when the raw file is absent, too large or unreadable (the check says so)."""
    try:
        path = inside(run.folder, f"requests-{part}.jsonl")
        if not path.is_file() or path.stat().st_size > MAX_RAW_BYTES:
            return []
        folder = RunFolder(run.folder)
        return folder.kept(part) if counting else folder.requests(part)
    except Exception:  # noqa: BLE001 - a hostile raw file must not stop the page; its numbers are judged by the check
        return []


def decode_runs(run: Run) -> list[OneRun]:
    """Each counting decode request, in the order of the raw file, warm-ups left out."""
    out = []
    for record in requests(run, "decode"):
        if record.step.startswith("warmup"):
            continue
        timed = timing(record)
        rate = timed.decode() if timed is not None else None
        drafts = record.extras.get("drafts", record.extras.get("speculative"))
        drafts = drafts if isinstance(drafts, dict) else {}
        out.append(
            OneRun(prompt=record.prompt_id, rate=rate, drafted=whole(drafts.get("drafted")), accepted=whole(drafts.get("accepted")))
        )
    return out


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def cached(run: Run, parts: tuple[str, ...]) -> tuple[int, int, int]:
    """Requests examined for cached prompt tokens, those in which the server told a count, and those in which it was above 0."""
    examined = told = hit = 0
    for part in parts:
        for record in requests(run, part, counting=False):
            examined += 1
            count = record.usage.cached_tokens if record.usage else None
            told += count is not None
            hit += bool(count)
    return examined, told, hit


def thinking_sent(run: Run, part: str, field: str) -> set[Any]:
    """The values of the thinking switch in the requests of a part as sent; {None} where it was not sent."""
    values: set[Any] = set()
    for record in requests(run, part):
        value: Any = record.settings
        for piece in field.split("."):
            value = value.get(piece) if isinstance(value, dict) else None
        values.add(value if isinstance(value, bool) else None)
    return values


def load(run: Run, parts: tuple[str, ...]) -> Load:
    """The guard's verdict summed over parts, with the quiet check's busiest foreign process."""
    result = run.result or Result(run=run.name, scored_by="", parts={}, numbers={})
    summaries = [result.parts[part].guard for part in parts if part in result.parts]
    judged = [summary for summary in summaries if summary is not None]
    samples = quiet_samples(run)
    loads = [item for sample in samples for item in sample.foreign]
    busiest = max(loads, key=lambda item: item.cpu_pct, default=None)
    return Load(
        steps=sum(item.steps for item in judged),
        discarded=sum(item.discarded for item in judged),
        samples=sum(item.samples for item in judged),
        quiet=len(samples),
        busiest_name=busiest.name if busiest else "",
        busiest_pct=busiest.cpu_pct if busiest else 0.0,
    )


def quiet_samples(run: Run) -> list[GuardSample]:
    """Samples of the quiet check, [] when absent or unreadable."""
    try:
        path = inside(run.folder, "quiet.jsonl")
        if not path.is_file() or path.stat().st_size > MAX_RAW_BYTES:
            return []
        return RunFolder(run.folder).guard_samples("quiet")
    except Exception:  # noqa: BLE001 - see `requests`
        return []


def instrument(run: Run) -> dict[str, Any]:
    """What the instrument check found before the run, {} when it was not kept."""
    try:
        path = inside(run.folder, "instrument.json")
        value = msgspec.json.decode(path.read_bytes()) if path.is_file() and path.stat().st_size < 1_000_000 else {}
    except Exception:  # noqa: BLE001 - see `requests`
        return {}
    return value if isinstance(value, dict) else {}
