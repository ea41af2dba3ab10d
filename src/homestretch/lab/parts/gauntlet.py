"""The Gauntlet: one solo race, one attempt, no help; its files lie in `gauntlet/` of the run folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from homestretch import __version__
from homestretch.lab.errors import ServerFailed, WrongUse
from homestretch.lab.game import files
from homestretch.lab.game.course import RANGES, buzzers_ms
from homestretch.lab.game.files import NOT_RECORDED, Exchange, Lane, Race
from homestretch.lab.game.live import LiveRace
from homestretch.lab.game.programs import sandboxed
from homestretch.lab.game.race import Racer, lane_of, utc, void_interrupted
from homestretch.lab.game.seasons import season
from homestretch.lab.game.tasks import find
from homestretch.lab.guard import LIMIT_PCT
from homestretch.lab.parts import Example, FakeAnswer, NumberSpec, Part, Scored
from homestretch.lab.seen import setting
from homestretch.lab.types import Contract, Number, PartResult, Sourced

if TYPE_CHECKING:
    from homestretch.lab.context import Context
    from homestretch.lab.options import Options
    from homestretch.lab.records import RunFolder

SOURCE = "gauntlet/result.json"
MAX_TOKENS = {False: 4096, True: 12288}


class Gauntlet(Part):
    name = "gauntlet"
    group = "other"
    asks = "How does it play a race of four tasks, against time?"
    numbers = (
        NumberSpec(name="gauntlet.finish_s", unit="s", digits=1, meaning="course + ranges + penalty loops + thinking"),
        NumberSpec(name="gauntlet.hits", unit="targets", digits=0, meaning="targets hit, of 20"),
        NumberSpec(name="gauntlet.loops", unit="loops", digits=0, meaning="penalty loops, one a target missed"),
        NumberSpec(name="gauntlet.loops_s", unit="s", digits=1, meaning="time in penalty loops"),
        NumberSpec(name="gauntlet.thinking_s", unit="s", digits=1, meaning="request sent to last byte, summed over the ranges"),
        NumberSpec(name="gauntlet.buzzers", unit="buzzers", digits=0, meaning="ranges whose thinking the buzzer ended"),
    )

    def settings(self, options: Options) -> dict[str, Sourced]:
        made = season(options.season)
        if options.thinking and not switch(options):
            raise WrongUse("--thinking needs a card that names the model's switch (thinking.field); add it, or race without")
        limits = [round(1000 * limit) for limit in options.buzzers] or list(buzzers_ms(options.thinking))
        if len(limits) != len(RANGES) or min(limits) < 1:
            raise WrongUse(f"--buzzers {options.buzzers}: give {len(RANGES)} limits in seconds, such as 60,90,120,180")
        tokens = options.limits.get("gauntlet", MAX_TOKENS[options.thinking])
        return {
            "season": Sourced(value=options.season, source=options.source("season")),
            "season_sha256": Sourced(value=made.sha256(), source="the season, made here"),
            "thinking": Sourced(value=options.thinking, source=options.source("thinking")),
            "buzzers_ms": Sourced(value=limits, source="--buzzers" if options.buzzers else "the game"),
            "max_tokens": Sourced(value=tokens, source="--limit gauntlet" if "gauntlet" in options.limits else "the part"),
        }

    def plan(self, contract: Contract) -> tuple[str, ...]:
        return ("race",)

    def run(self, context: Context) -> None:
        folder = context.folder.path / "gauntlet"
        if (folder / "result.json").exists():
            context.progress.advance("gauntlet", "race", resumed=True)
            return
        if (race := void_interrupted(folder, sandboxed)) is not None:
            raise ServerFailed(f"part gauntlet: {race.reason}; a race has one attempt: start another run for another race")
        lane = lane_for(context.contract)
        sandboxed("", "")  # the sandbox proves itself before the clock starts
        context.progress.start("gauntlet", "race")
        with context.progress.paused() as console, LiveRace(lane, console) as view:
            racer = Racer(
                target=context.target,
                lane=lane,
                folder=folder,
                body=lambda messages: context.body(
                    messages=messages,
                    max_tokens=lane.max_tokens,
                    thinking=lane.thinking,
                    stream=True,
                    stream_options=dict(context.stream_options),
                ),
                run=sandboxed,
                watch=view,
            )
            with context.guard.watch("gauntlet/race"):
                race = racer.race()
        if race.state == "void":
            raise ServerFailed(f"part gauntlet: the race is void: {race.reason}")
        context.progress.advance("gauntlet", "race")

    def score(self, run: RunFolder) -> Scored:
        path = run.path / "gauntlet" / "result.json"
        if not path.exists():
            return Scored(part=PartResult(state="missing", reason="no race was finished"), numbers={})
        race = files.read(path, Race)
        if race.state == "void":
            return Scored(part=PartResult(state="invalid", measured=race.date[:10], reason=f"void: {race.reason}"), numbers={})
        targets = 5 * len(race.ranges)
        finish_ms = race.finish_ms or 0
        values: dict[str, tuple[float | int, str, int]] = {
            "finish_s": (finish_ms / 1000, "s", 1),
            "hits": (race.hits, "targets", targets),
            "loops": (race.loops, "loops", targets),
            "loops_s": (race.loops_ms / 1000, "s", targets),
            "thinking_s": (race.thinking_ms / 1000, "s", len(race.ranges)),
            "buzzers": (race.buzzers, "buzzers", len(race.ranges)),
        }
        leaked = [] if race.thinking else thought_aloud(files.read_lines(run.path / "gauntlet" / "io.jsonl", Exchange))
        found = (
            {"thinking_leaked": [f"gauntlet: thinking is off, yet reasoning came back in {', '.join(leaked)}"]} if leaked else {}
        )
        numbers = {
            f"gauntlet.{name}": Number(value=v, unit=u, n=n, doubts=list(found), source=SOURCE)
            for name, (v, u, n) in values.items()
        }
        cut = [row.title for row in race.ranges if row.cut]
        notes = [f"Cut at the answer limit and judged as they were: {', '.join(cut)}."] if cut else []
        if not race.standard:
            notes.append("Its buzzers are not the game's own: this race is not ranked.")
        busy = worst_load(run)
        if busy:
            notes.append(busy)
        detail = {"season": race.season, "thinking": race.thinking, "standard": race.standard}
        part = PartResult(state="done", measured=race.date[:10], notes=notes, detail=detail)
        return Scored(part=part, numbers=numbers, doubts=found)

    def example(self) -> Example:
        targets = season(7).tasks["ferry"].targets
        plans = json.dumps({str(number): target["plan"] for number, target in enumerate(targets, 1)})
        return Example(
            options={"parts": ("gauntlet",), "season": 7},
            answers=(
                FakeAnswer(match="River ferry", text=f"Here it is.\n```json\n{plans}\n```"),
                FakeAnswer(match="Bench seating", text="I cannot solve this."),
                FakeAnswer(match="Painter", text="```python\nprint('no')\n```"),
                FakeAnswer(match="Snake", text="```python\nprint('U')\n```"),
            ),
            numbers={
                "gauntlet.hits": 5,
                "gauntlet.loops": 15,
                "gauntlet.loops_s": 210.0,
                "gauntlet.buzzers": 0,
                "gauntlet.finish_s": None,
            },
        )


def thought_aloud(io: list[Exchange]) -> list[str]:
    """Titles of the ranges whose reply holds reasoning, apart or between think tags."""
    return [find(one.task).title for one in io if one.reasoning.strip() or "<think>" in one.answer]


def switch(options: Options) -> str:
    """The card's switch for thinking, "" without one."""
    from homestretch.lab.contract import read_card  # it reads the parts itself

    return read_card(options.card).thinking.field if options.card is not None else ""


def worst_load(run: RunFolder) -> str:
    """A sentence on the heaviest foreign load while the race ran, "" when it stayed under the guard's limit. One attempt stands."""
    samples = [sample for sample in run.guard_samples() if sample.step.startswith("gauntlet/")]
    worst = max((load for sample in samples for load in sample.foreign), key=lambda load: load.cpu_pct, default=None)
    if worst is None or worst.cpu_pct <= LIMIT_PCT:
        return ""
    return (
        f"While the race ran another program, {worst.name}, used up to {worst.cpu_pct:.0f} % of one core; a race has one attempt."
    )


def lane_for(contract: Contract) -> Lane:
    """The lane config from the contract."""
    values = {name: sourced.value for name, sourced in contract.settings.items()}
    source = next((sourced.source for name, sourced in contract.settings.items() if name.startswith("sampling.")), "")
    return lane_of(
        values,
        season=values["gauntlet.season"],
        date=utc(),
        model=contract.model,
        setup=contract.card.slug if contract.card else "",
        thinking=values["gauntlet.thinking"],
        thinking_field=str(setting(contract, "thinking.field", "") or ""),
        sampling_source=source,
        max_tokens=values["gauntlet.max_tokens"],
        buzzers_ms=values["gauntlet.buzzers_ms"],
        engine_build=str(setting(contract, "server.version") or NOT_RECORDED),
        lab_version=__version__,
        command=contract.command,
    )


PART = Gauntlet()
