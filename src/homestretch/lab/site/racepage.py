"""Race pages: each finished race on the track with its season's standings, and two races of one season side by side."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from homestretch.lab.game.course import COURSE_MS, RANGE_MS, seconds
from homestretch.lab.setups import LoadedSetup, Run
from homestretch.lab.site import racetrack
from homestretch.lab.site.figures import printed
from homestretch.lab.site.race import RangeRow, Standing, race, raced, ranked, rows, standing
from homestretch.lab.site.rawpages import RawFile
from homestretch.lab.site.setuppage import Place, write
from homestretch.lab.site.start import commands

MOST_DUELS = 12
TITLES = {
    "gauntlet/result.json": "Result (result.json)",
    "gauntlet/log.jsonl": "Race log (log.jsonl)",
    "gauntlet/io.jsonl": "Model answers (io.jsonl)",
    "gauntlet/system.txt": "System prompt",
    "gauntlet/verify.txt": "Verify output",
    "gauntlet/model.json": "Model config",
    "contract.json": "Contract",
}


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A range of a duel: both rows, and who is ahead after it."""

    one: RangeRow
    two: RangeRow
    gap: str
    ahead: str


def render(setup: LoadedSetup, raw: dict[str, dict[str, RawFile]], races: Sequence[Standing], place: Place) -> str:
    """Write `race/SLUG/` anew: a page for each finished race. Returns the counting one's from the site's root, "" without one."""
    shutil.rmtree(place.out / "race" / setup.slug, ignore_errors=True)
    for run, item in raced(setup):
        if item.ranges:
            page(setup, run, item, raw.get(run.name, {}), races, place)
    mine = standing(setup)
    return mine.page if mine is not None and mine.ranges else ""


def field(mine: Standing, races: Sequence[Standing]) -> list[tuple[int, Standing]]:
    """The races that are ranked with `mine`, in rank order: same memory class, season and thinking mode."""
    return ranked([item for item in races if (item.gb, item.season, item.thinking_on) == (mine.gb, mine.season, mine.thinking_on)])


def upward(page: str) -> str:
    """From a page to the site's root."""
    return "../" * (len(PurePosixPath(page).parts) - 1)


def page(setup: LoadedSetup, run: Run, mine: Standing, raw: dict[str, RawFile], races: Sequence[Standing], place: Place) -> None:
    """The page of one race, and its duels with the nearest in rank."""
    rivals = field(mine, races)
    at = next((number for number, (_, item) in enumerate(rivals) if item.slug == mine.slug), 0)
    near = [(abs(number - at), item) for number, (_, item) in enumerate(rivals) if item.slug != mine.slug and item.ranges]
    duels = {item.slug: item for _, item in sorted(near, key=lambda pair: (pair[0], pair[1].slug))[:MOST_DUELS]}
    own = drawn_rows(mine, place)
    root = upward(mine.page)
    section = race(setup, list(races), "", run)
    if section is None:
        return
    files = [
        replace(raw[name], title=title, link=raw[name].link.replace("../../", root, 1))
        for name, title in TITLES.items()
        if name in raw
    ]
    write(
        place,
        place.out / mine.page,
        "race.html.jinja",
        root=root,
        card=setup.card,
        race=section,
        rows=[replace(row, title=own[number].title, kind=own[number].kind) for number, row in enumerate(section.rows)],
        season=mine.season,
        mode=mode(mine),
        wide=racetrack.wide(own),
        tall=racetrack.tall(own),
        clock=racetrack.timeline(own, finish_ms(own)),
        finish=printed("finish_s", mine.finish_s),
        course=seconds(COURSE_MS),
        ranges=seconds(RANGE_MS * len(own)),
        single=seconds(RANGE_MS),
        standings=[
            {
                "rank": rank,
                "page": item.page,
                "title": item.title,
                "finish": printed("finish_s", item.finish_s),
                "hits": item.hits,
                "thinking": printed("thinking_s", item.thinking_s),
                "date": item.date,
                "mine": item.slug == mine.slug,
                "duel": f"against/{item.slug}/index.html" if item.slug in duels else "",
            }
            for rank, item in rivals
        ],
        files=files,
        commands=[item for item in commands(setup, ("gauntlet",)) if item.run == run.name],
    )
    for item in duels.values():
        duel(mine, item, place)


def duel(one: Standing, two: Standing, place: Place) -> None:
    """Write `against/OTHER/index.html` beside the page of the first race."""
    first, second = drawn_rows(one, place), drawn_rows(two, place)
    longest = max(finish_ms(first), finish_ms(second))
    ahead = 0
    gaps = []
    for mine, other in zip(first, second, strict=False):
        ahead += mine.range_ms - other.range_ms
        leader = "level" if not ahead else "A" if ahead < 0 else "B"
        gaps.append(Gap(one=mine, two=other, gap=seconds(abs(ahead)), ahead=leader))
    path = f"{one.page.removesuffix('index.html')}against/{two.slug}/index.html"
    write(
        place,
        place.out / path,
        "raceduel.html.jinja",
        root=upward(path),
        season=one.season,
        mode=mode(one),
        gb=one.gb,
        gaps=gaps,
        racers=[
            {
                "letter": letter,
                "page": item.page,
                "title": item.title,
                "finish": printed("finish_s", item.finish_s),
                "hits": item.hits,
                "wide": racetrack.wide(own),
                "tall": racetrack.tall(own),
                "clock": racetrack.timeline(own, longest),
            }
            for letter, item, own in (("A", one, first), ("B", two, second))
        ],
        lead=lead(one, two),
    )


def lead(one: Standing, two: Standing) -> str:
    """Who won by how much, in one sentence."""
    apart = round(abs(one.finish_s - two.finish_s) * 1000)
    if not apart:
        return "Both finish in the same time; hits, then thinking time, then the date decide."
    winner = one if one.finish_s < two.finish_s else two
    return f"{winner.title} is ahead by {seconds(apart)} s."


def mode(item: Standing) -> str:
    return "on" if item.thinking_on else "off"


def drawn_rows(item: Standing, place: Place) -> list[RangeRow]:
    """The ranges of a race for a drawing; every word of them has passed the filter."""
    told: dict[str, Any] = {"ranges": item.ranges}
    return [replace(row, title=place.what.scrub(row.title)[:40], kind=place.what.scrub(row.kind)[:12]) for row in rows(told)]


def finish_ms(own: Sequence[RangeRow]) -> int:
    return COURSE_MS + sum(row.range_ms for row in own)
