"""The Game section of a setup page, read from the race's own `gauntlet/result.json` and the run's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from homestretch.lab.errors import WrongUse
from homestretch.lab.game.course import seconds
from homestretch.lab.setups import LoadedSetup, Run, inside
from homestretch.lab.site.figures import printed, refused

MAX_BYTES = 4_000_000
STORED = ("task", "title", "kind", "level", "targets", "thinking_ms", "buzzer", "loops", "loops_ms", "range_ms")


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A headline of the race. number: the name in `result.json` it prints, "" for a rank."""

    label: str
    value: str
    unit: str
    number: str = ""


@dataclass(frozen=True, kw_only=True)
class RangeRow:
    """One range: what was asked, what was hit, what it cost. Times printed in seconds with one digit, and in milliseconds."""

    number: int
    task: str
    title: str
    kind: str
    level: int
    targets: list[bool]
    hits: int
    thinking: str
    buzzer: bool
    loops: int
    loops_s: str
    range_s: str
    thinking_ms: int
    loops_ms: int
    range_ms: int
    reasons: list[str]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A finished race as rankings need it. page: its race page, from the site's root."""

    slug: str
    title: str
    gb: int
    season: int
    thinking_on: bool
    finish_s: float
    hits: int
    thinking_s: float
    date: str
    page: str = ""
    ranges: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RaceSection:
    """Everything the Game section shows."""

    run: Run
    about: str
    mode: str
    tiles: list[Tile]
    rows: list[RangeRow]
    as_of: str
    recipe: str
    page: str


def stored(run: Run) -> dict[str, Any]:
    """`gauntlet/result.json`, {} when it is absent or unreadable."""
    try:
        path = inside(run.folder, "gauntlet/result.json")
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return {}
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, RecursionError, WrongUse):
        return {}
    return value if isinstance(value, dict) else {}


def flag(value: dict[str, Any]) -> bool:
    """Whether a race was run with thinking on."""
    found = value.get("thinking_on", value.get("thinking", False))
    return found in (True, "on")


def standing(setup: LoadedSetup, run: Run | None = None) -> Standing | None:
    """The setup's race for the rankings, the counting one unless a run is given; None if it did not finish by the game's rules."""
    counting = setup.counting.get("gauntlet")
    run = run or counting
    if run is None or run.result is None:
        return None
    part = run.result.parts.get("gauntlet")
    if part is None or part.state != "done" or part.detail.get("standard") is False:
        return None
    numbers = run.result.numbers
    values = [numbers.get(f"gauntlet.{name}") for name in ("finish_s", "hits", "thinking_s")]
    if any(number is None or refused(number) for number in values):
        return None
    finish, hits, thinking = (float(number.value) for number in values if number is not None and number.value is not None)
    result = stored(run)
    found = result.get("season")
    season = found if isinstance(found, int) else 0
    folder = "" if run is counting else f"season-{season}-{'thinking' if flag(result) else 'plain'}/"
    return Standing(
        slug=setup.slug,
        title=setup.card.title,
        gb=setup.card.memory_class_gb,
        season=season,
        thinking_on=flag(result),
        finish_s=finish,
        hits=round(hits),
        thinking_s=thinking,
        date=run.date,
        page=f"race/{setup.slug}/{folder}index.html",
        ranges=[{name: getattr(row, name) for name in STORED} for row in rows(result)],
    )


def raced(setup: LoadedSetup) -> list[tuple[Run, Standing]]:
    """Every finished race of a setup, the counting one first: one for each season and thinking mode, past seasons stay."""
    counting = setup.counting.get("gauntlet")
    earlier = [run for entry, run in setup.earlier if entry.part == "gauntlet"]
    found: dict[tuple[int, bool], tuple[Run, Standing]] = {}
    for run in [*([counting] if counting else []), *sorted(earlier, key=lambda run: run.date, reverse=True)]:
        item = standing(setup, run)
        if item is not None:
            found.setdefault((item.season, item.thinking_on), (run, item))
    return list(found.values())


def ranked(standings: list[Standing]) -> list[tuple[int, Standing]]:
    """By season (newest first) and thinking mode, then finish, hits, thinking time, date. Equal ones share a rank."""

    def key(item: Standing) -> tuple[float, int, float, str]:
        return (round(item.finish_s, 3), -item.hits, round(item.thinking_s, 3), item.date)

    out: list[tuple[int, Standing]] = []
    for group in sorted({(-item.season, item.thinking_on) for item in standings}):
        members = sorted(
            (item for item in standings if (-item.season, item.thinking_on) == group), key=lambda item: (key(item), item.slug)
        )
        rank = 0
        for place, item in enumerate(members, 1):
            if place == 1 or key(item) != key(members[place - 2]):
                rank = place
            out.append((rank, item))
    return out


def race(setup: LoadedSetup, standings: list[Standing], page: str, run: Run | None = None) -> RaceSection | None:
    """The section's data of the counting race, or of `run`; None without one. page: link of the race page, "" if there is none."""
    run = run or setup.counting.get("gauntlet")
    if run is None or run.result is None:
        return None
    result = stored(run)
    mine = standing(setup, run)
    numbers = run.result.numbers

    def tile(label: str, name: str, unit: str, digits: str = "") -> Tile | None:
        number = numbers.get(f"gauntlet.{name}")
        if number is None or number.value is None:
            return None
        return Tile(label=label, value=printed(digits or name, number.value), unit=unit, number=f"gauntlet.{name}")

    tiles: list[Tile | None] = []
    as_of = ""
    if mine is not None:
        rivals = [
            item for item in standings if (item.gb, item.season, item.thinking_on) == (mine.gb, mine.season, mine.thinking_on)
        ]
        rank = next(rank for rank, item in ranked(rivals) if item.slug == mine.slug)
        tiles.append(Tile(label=f"Rank in {mine.gb} GB", value=str(rank), unit=f"of {len(rivals)}"))
        newest = max(item.date for item in rivals)
        as_of = f"Game rank as of {newest}. The rank is the order of the Gauntlet finish times in this memory class."
    loops_s = numbers.get("gauntlet.loops_s")
    tiles += [
        tile("Finish time", "finish_s", "s"),
        tile("Targets hit", "hits", f"of {numbers['gauntlet.hits'].n or 20}" if "gauntlet.hits" in numbers else ""),
        tile(
            "Penalty loops",
            "loops",
            f"({printed('loops_s', loops_s.value)} s)" if loops_s is not None and loops_s.value is not None else "",
        ),
        tile("Thinking time", "thinking_s", "s"),
        tile("Buzzers", "buzzers", ""),
    ]
    season = result.get("season")
    return RaceSection(
        run=run,
        about=f"One solo race{f', season seed {season}' if isinstance(season, int) else ''}, one attempt, no help.",
        mode=f"Thinking {'on' if flag(result) else 'off'}",
        tiles=[item for item in tiles if item is not None],
        rows=rows(result),
        as_of=as_of,
        recipe=recipe(run, result),
        page=page,
    )


def rows(result: dict[str, Any]) -> list[RangeRow]:
    """The ranges as stored; one that does not have the expected form is left out (the check names it)."""
    out: list[RangeRow] = []
    found = result.get("ranges") or result.get("tasks")
    for item in found[:8] if isinstance(found, list) else ():
        try:
            targets = [bool(target) for target in item["targets"]]
            thinking_ms, loops_ms, range_ms = int(item["thinking_ms"]), int(item["loops_ms"]), int(item["range_ms"])
            reasons = item.get("reasons") or []
            out.append(
                RangeRow(
                    number=len(out) + 1,
                    task=str(item["task"]),
                    title=str(item.get("title") or item["task"]),
                    kind=str(item["kind"]),
                    level=int(item["level"]),
                    targets=targets,
                    hits=int(item.get("hits", sum(targets))),
                    thinking=seconds(thinking_ms),
                    buzzer=bool(item.get("buzzer", False)),
                    loops=int(item["loops"]),
                    loops_s=seconds(loops_ms),
                    range_s=seconds(range_ms),
                    thinking_ms=thinking_ms,
                    loops_ms=loops_ms,
                    range_ms=range_ms,
                    reasons=[str(reason) for reason in reasons],
                )
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return out


def recipe(run: Run, result: dict[str, Any]) -> str:
    """What the race was run with, as far as its files say."""
    try:
        path = inside(run.folder, "gauntlet/model.json")
        config = msgspec.json.decode(path.read_bytes()) if path.is_file() and path.stat().st_size < MAX_BYTES else {}
    except (OSError, msgspec.MsgspecError, RecursionError, WrongUse):
        config = {}
    build = config.get("engine_build") if isinstance(config, dict) else None
    if not build or build == "not recorded":
        told = "The engine build of the race is not recorded in the race files."
    else:
        told = f"Engine build of the race: {build}."
    return f"The race ran with the sampling and answer limit of its lane config (model.json). {told}"
