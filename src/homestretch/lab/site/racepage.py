"""Race pages: one finished race on the track with its season's standings, and two races of one season side by side."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from homestretch.lab.game.course import COURSE_MS, RANGE_MS, seconds
from homestretch.lab.setups import LoadedSetup
from homestretch.lab.site import racetrack
from homestretch.lab.site.figures import printed
from homestretch.lab.site.race import RangeRow, Standing, race, ranked, rows, standing
from homestretch.lab.site.rawpages import RawFile
from homestretch.lab.site.setuppage import Place, files_of, write
from homestretch.lab.site.start import commands

MOST_DUELS = 12
ROOT = "../../"


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A range of a duel: both rows, and who is ahead after it (negative: the first is)."""

    one: RangeRow
    two: RangeRow
    gap: str
    ahead: str


def link(slug: str) -> str:
    """The race page as a setup page links it."""
    return f"{ROOT}race/{slug}/index.html"


def field(mine: Standing, races: Sequence[Standing]) -> list[Standing]:
    """The races that are ranked with `mine`: same memory class, season and thinking mode."""
    return [item for item in races if (item.gb, item.season, item.thinking_on) == (mine.gb, mine.season, mine.thinking_on)]


def render(setup: LoadedSetup, raw: dict[str, dict[str, RawFile]], races: Sequence[Standing], place: Place) -> bool:
    """Write `race/SLUG/` anew: the race page and a duel with each of the nearest in rank. False when no race is finished."""
    folder = place.out / "race" / setup.slug
    shutil.rmtree(folder, ignore_errors=True)
    mine = standing(setup)
    section = race(setup, list(races), "")
    if mine is None or section is None or not mine.ranges:
        return False
    rivals = ranked(field(mine, races))
    at = next(number for number, (_, item) in enumerate(rivals) if item.slug == mine.slug)
    near = sorted((item for number, (_, item) in enumerate(rivals) if number != at and item.ranges), key=lambda item: item.slug)
    near = sorted(near, key=lambda item: abs([other.slug for _, other in rivals].index(item.slug) - at))[:MOST_DUELS]
    duels = {item.slug for item in near}
    mine_rows = drawn_rows(mine, place)
    write(
        place,
        folder / "index.html",
        "race.html.jinja",
        root=ROOT,
        card=setup.card,
        race=section,
        rows=[replace(row, title=mine_rows[number].title, kind=mine_rows[number].kind) for number, row in enumerate(section.rows)],
        season=mine.season,
        mode="on" if mine.thinking_on else "off",
        wide=racetrack.wide(mine_rows),
        tall=racetrack.tall(mine_rows),
        clock=racetrack.timeline(mine_rows, finish_ms(mine_rows)),
        finish=printed("finish_s", mine.finish_s),
        course=seconds(COURSE_MS),
        ranges=seconds(RANGE_MS * len(mine_rows)),
        single=seconds(RANGE_MS),
        standings=[
            {
                "rank": rank,
                "slug": item.slug,
                "title": item.title,
                "finish": printed("finish_s", item.finish_s),
                "hits": item.hits,
                "thinking": printed("thinking_s", item.thinking_s),
                "date": item.date,
                "mine": item.slug == mine.slug,
                "duel": item.slug in duels,
            }
            for rank, item in rivals
        ],
        files=files_of(setup, raw, ("gauntlet",)),
        commands=commands(setup, ("gauntlet",)),
    )
    for item in near:
        duel(mine, item, place)
    return True


def duel(one: Standing, two: Standing, place: Place) -> None:
    """Write `race/SLUG/against/OTHER/index.html`."""
    first, second = drawn_rows(one, place), drawn_rows(two, place)
    longest = max(finish_ms(first), finish_ms(second))
    ahead = 0
    gaps = []
    for mine, other in zip(first, second, strict=False):
        ahead += mine.range_ms - other.range_ms
        gaps.append(
            Gap(one=mine, two=other, gap=seconds(abs(ahead)), ahead="level" if not ahead else "one" if ahead < 0 else "two")
        )
    write(
        place,
        place.out / "race" / one.slug / "against" / two.slug / "index.html",
        "raceduel.html.jinja",
        root="../../../../",
        season=one.season,
        mode="on" if one.thinking_on else "off",
        gb=one.gb,
        gaps=gaps,
        racers=[
            {
                "slug": item.slug,
                "title": item.title,
                "finish": printed("finish_s", item.finish_s),
                "hits": item.hits,
                "wide": racetrack.wide(own),
                "tall": racetrack.tall(own),
                "clock": racetrack.timeline(own, longest),
            }
            for item, own in ((one, first), (two, second))
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


def drawn_rows(item: Standing, place: Place) -> list[RangeRow]:
    """The ranges of a race for a drawing; every word of them has passed the filter."""
    told: dict[str, Any] = {"ranges": item.ranges}
    return [replace(row, title=place.what.scrub(row.title)[:40], kind=place.what.scrub(row.kind)[:12]) for row in rows(told)]


def finish_ms(own: Sequence[RangeRow]) -> int:
    return COURSE_MS + sum(row.range_ms for row in own)
