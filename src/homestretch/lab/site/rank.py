"""One line per setup for home, class, compare, chart and feed: kept between builds, so that unchanged setups are not read again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from homestretch.lab.setups import PARTS, LoadedSetup
from homestretch.lab.site.figures import depth, headline, keys, printed
from homestretch.lab.site.quality import is_house
from homestretch.lab.site.race import raced, standing
from homestretch.lab.site.speed import merged
from homestretch.lab.types import Record

FOUR = ("mmlupro", "gpqa", "ifeval", "lcb")
CLASSES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)


class Line(Record, frozen=True, kw_only=True):
    """What lists know of a setup. numbers: printed digits by number name, refused ones left out; values: the same, unrounded."""

    slug: str
    title: str
    gb: int
    model: str
    engine: str
    machine: str
    author: str
    date: str
    check: str
    quality: float | None = None
    quality_margin: float | None = None
    values: dict[str, float] = msgspec.field(default_factory=dict)
    units: dict[str, str] = msgspec.field(default_factory=dict)
    race: dict[str, Any] = msgspec.field(default_factory=dict)
    past_races: list[dict[str, Any]] = msgspec.field(default_factory=list)
    earlier: int = 0

    @property
    def decode(self) -> float | None:
        return self.values.get("decode.tokens_per_s")

    def shown(self, name: str) -> str:
        """The printed digits of a number, "" when the setup has none that may be ranked."""
        return printed(name, self.values.get(name))


def line(setup: LoadedSetup, check: str) -> Line:
    """The setup's line; `check` is the verdict's state."""
    values: dict[str, float] = {}
    units: dict[str, str] = {}
    speed = merged(setup)
    for part in PARTS:
        run = setup.counting.get(part)
        if run is None or run.result is None or is_house(run, part):
            continue
        source = speed if part in speed.parts else run.result
        heads = (part, "drafts") if part == "decode" else (part,)
        for name, number in source.numbers.items():
            if name.split(".")[0] in heads and (value := headline(source, name)) is not None:
                values[name] = float(value)
                units[name] = number.unit
    score, margin = four(values)
    races = [{name: getattr(item, name) for name in item.__dataclass_fields__} for _, item in raced(setup)]
    counts = bool(races) and standing(setup) is not None
    return Line(
        slug=setup.slug,
        title=setup.card.title,
        gb=setup.card.memory_class_gb,
        model=setup.card.model.name,
        engine=f"{setup.card.engine.name} {setup.card.engine.version}".strip(),
        machine=setup.card.machine.label,
        author=setup.card.author.name,
        date=setup.date,
        check=check,
        quality=score,
        quality_margin=margin,
        values=values,
        units=units,
        race=races[0] if counts else {},
        past_races=races[1:] if counts else races,
        earlier=len(setup.earlier),
    )


def four(values: dict[str, float]) -> tuple[float | None, float | None]:
    """Mean right share of the four public tests and its margin (independent margins: root of the sum of squares over four)."""
    rights = [values[f"{part}.right_pct"] for part in FOUR if f"{part}.right_pct" in values]
    margins = [values[f"{part}.margin_pts"] for part in FOUR if f"{part}.margin_pts" in values]
    if len(rights) < len(FOUR) or len(margins) < len(FOUR):
        return None, None
    return sum(rights) / len(FOUR), math.sqrt(sum(margin * margin for margin in margins)) / len(FOUR)


def ordered(lines: Sequence[Line]) -> list[Line]:
    """Fastest decode headline first, setups without one at the end by title; equal ones by title and slug."""
    return sorted(lines, key=lambda item: (item.decode is None, -(item.decode or 0.0), item.title, item.slug))


def columns(lines: Sequence[Line]) -> list[tuple[str, str, str]]:
    """Number name, heading and unit of a class table's columns: those at least one of its setups has."""
    wanted = [
        ("decode.tokens_per_s", "Decode", "tok/s"),
        ("prefill.8192.tokens_per_s", "Prefill 8K", "tok/s"),
        ("prefill.2048.tokens_per_s", "Prefill 2K", "tok/s"),
        ("prefill.2048.ttft_s", "First token 2K", "s"),
        ("conc.8.total_tokens_per_s", "8 at once", "tok/s"),
        ("conc.2.total_tokens_per_s", "2 at once", "tok/s"),
        ("mmlupro.right_pct", "MMLU-Pro", "%"),
        ("gpqa.right_pct", "GPQA", "%"),
        ("ifeval.right_pct", "IFEval", "%"),
        ("lcb.right_pct", "LiveCode", "%"),
        ("ruler.32768.right_pct", "Long text 32K", "%"),
        ("think.right_pct", "Thinking", "%"),
        ("fit.largest_tokens", "Context", "tokens"),
        ("gauntlet.finish_s", "Gauntlet", "s"),
    ]
    out = [item for item in wanted if any(item[0] in line.values for line in lines)]
    names = {name for name, _, _ in out}
    if "conc.8.total_tokens_per_s" in names:
        out = [item for item in out if item[0] != "conc.2.total_tokens_per_s"]
    if "prefill.8192.tokens_per_s" in names:
        out = [item for item in out if item[0] != "prefill.2048.tokens_per_s"]
    return out


def compared(lines: Sequence[Line]) -> list[tuple[str, str, str]]:
    """Number name, label and unit of every row of a comparison: all numbers that one of the setups has, in the page's order."""
    from homestretch.lab.site.speed import names
    from homestretch.lab.types import Number, PartResult, Result

    every = {name: line.units.get(name, "") for line in lines for name in line.values}
    joined = Result(
        run="",
        scored_by="",
        parts={"decode": PartResult(state="done")},
        numbers={name: Number(value=0.0, unit=unit) for name, unit in every.items()},
    )
    out = [(name, label, every[name]) for name, label in names(joined) if name in every]
    for tokens in keys(joined, "ctx"):
        out += [
            (name, f"{label} at {depth(tokens)}, long prompt", every[name])
            for name, label in (
                (f"ctx.{tokens}.prefill.tokens_per_s", "Prefill"),
                (f"ctx.{tokens}.decode.code.tokens_per_s", "Decode, code prompt"),
                (f"ctx.{tokens}.decode.prose.tokens_per_s", "Decode, prose prompt"),
            )
            if name in every
        ]
    titles = {
        "mmlupro": "MMLU-Pro",
        "gpqa": "GPQA Diamond",
        "ifeval": "IFEval",
        "lcb": "LiveCodeBench",
        "think": "GPQA 30, thinking on",
    }
    for part, title in titles.items():
        out += [(f"{part}.{kind}", f"{title}, {text}", unit) for kind, text, unit in RIGHT if f"{part}.{kind}" in every]
    for tokens in keys(joined, "ruler"):
        prefix = f"ruler.{tokens}"
        out += [
            (f"{prefix}.{kind}", f"Long text {depth(tokens)}, {text}", unit)
            for kind, text, unit in RIGHT
            if f"{prefix}.{kind}" in every
        ]
    out += [
        (f"fit.{size}.peak_gib", f"Peak memory at {depth(size)}", "GiB")
        for size in keys(joined, "fit")
        if f"fit.{size}.peak_gib" in every
    ]
    out += [
        (name, label, every[name])
        for name, label in (
            ("fit.largest_tokens", "Largest context tested"),
            ("gauntlet.finish_s", "Gauntlet, finish"),
            ("gauntlet.hits", "Gauntlet, targets hit"),
            ("gauntlet.thinking_s", "Gauntlet, thinking"),
        )
        if name in every
    ]
    return out


RIGHT = (("right_pct", "right", "%"), ("margin_pts", "95 % margin", "pts"))
