"""Setup folders with a race each, of one memory class and season: what was answered and how long it took is chosen."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gauntlet_solver
import msgspec
from pagefiles import contract, seal, write_json, write_lines
from smallsetup import small_card

from homestretch.lab.game.course import RANGES, buzzers_ms
from homestretch.lab.game.files import Exchange, Lane, Race, encode
from homestretch.lab.game.judge import judge
from homestretch.lab.game.programs import sandboxed
from homestretch.lab.game.race import SYSTEM
from homestretch.lab.game.seasons import season
from homestretch.lab.types import EarlierRun, Setup


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """A race to make: tasks that are solved, thinking of each range, season, mode, day."""

    solved: tuple[str, ...] = ()
    thinking_ms: tuple[int, ...] = (2_000, 3_000, 4_000, 5_000)
    season: int = 21
    thinking: bool = False
    day: str = "2026-11-12"


def make(root: Path, index: int, *wishes: Wish, memory_class_gb: int = 128) -> Path:
    """`root/small-INDEX`: the last race counts, those before it are kept as earlier ones."""
    card = small_card(index, memory_class_gb)
    home = root / card.slug
    names = [f"race-{number}" for number in range(len(wishes))]
    for name, wish in zip(names, wishes, strict=True):
        race_run(home / "runs" / name, name, card, wish)
    (home / "card.toml").write_bytes(msgspec.toml.encode(card))
    earlier = [EarlierRun(part="gauntlet", run=f"runs/{name}", replaced="2026-11-20") for name in names[:-1]]
    setup = Setup(card="card.toml", runs={"gauntlet": f"runs/{names[-1]}"}, earlier=earlier)
    (home / "setup.toml").write_bytes(msgspec.toml.encode(setup))
    return home


def race_run(folder: Path, name: str, card: msgspec.Struct, wish: Wish) -> Race:
    made = season(wish.season)
    at = f"{wish.day}T20:00:00.000Z"
    lane = Lane(
        season=wish.season,
        date=at,
        model=card.model.id,  # type: ignore[attr-defined]
        setup=card.slug,  # type: ignore[attr-defined]
        thinking=wish.thinking,
        sampling={},
        max_tokens=4096,
        buzzers_ms=list(buzzers_ms(wish.thinking)),
        lab_version="0.1.0",
        command=["homestretch", "play", "card.toml"],
    )
    io = [
        Exchange(
            range=stop.number,
            task=stop.task,
            sent_at=at,
            request={
                "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": made.tasks[stop.task].statement}]
            },
            status=200,
            ended="answer",
            thinking_ms=ms,
            finish_reason="stop",
            answer=gauntlet_solver.solve(stop.task, made.tasks[stop.task].statement) if stop.task in wish.solved else "",
        )
        for stop, ms in zip(RANGES, wish.thinking_ms, strict=True)
    ]
    race = judge(lane, io, sandboxed)
    home = folder / "gauntlet"
    home.mkdir(parents=True)
    (home / "result.json").write_bytes(encode(race))
    (home / "model.json").write_bytes(encode(lane))
    (home / "system.txt").write_text(SYSTEM)
    write_lines(home / "io.jsonl", io)
    values = {
        "finish_s": ((race.finish_ms or 0) / 1000, "s", 1),
        "hits": (race.hits, "targets", 20),
        "loops": (race.loops, "loops", 20),
        "loops_s": (race.loops_ms / 1000, "s", 20),
        "thinking_s": (race.thinking_ms / 1000, "s", 4),
        "buzzers": (race.buzzers, "buzzers", 4),
    }
    numbers = {
        f"gauntlet.{key}": {"value": value, "unit": unit, "n": n, "source": "gauntlet/result.json"}
        for key, (value, unit, n) in values.items()
    }
    write_json(folder / "contract.json", contract(name, card, "", at, {}, lane.command))  # type: ignore[arg-type]
    parts = {"gauntlet": {"state": "done", "measured": wish.day, "detail": {"standard": race.standard}}}
    write_json(
        folder / "result.json", {"schema": 1, "run": name, "scored_by": "homestretch 0.1.0", "parts": parts, "numbers": numbers}
    )
    seal(folder)
    return race
