"""Race pages: a race on the track, ranks and ties, past seasons, head to head, links, spoiled results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import racesetups
from racesetups import Wish

from homestretch.lab import site
from homestretch.lab.game.course import COURSE_MS
from homestretch.lab.publish import Filter
from homestretch.lab.site.race import Standing, ranked, rows
from homestretch.lab.site.racetrack import tall, timeline, wide


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("races")
    thinking = Wish(thinking=True, thinking_ms=(200_000, 3_000, 4_000, 5_000), day="2026-11-01")
    racesetups.make(root / "setups", 1, Wish(season=20, day="2026-10-01"), thinking, Wish(solved=("ferry",)))
    racesetups.make(root / "setups", 2, Wish(solved=("ferry", "seating"), thinking_ms=(2_000, 3_000, 4_000, 181_000)))
    racesetups.make(root / "setups", 3, Wish(season=20, solved=("seating",)))
    built = site.build(root / "setups", root / "public", what=Filter(["sparkhost"]))
    assert not built.refused
    return root / "public"


def text(path: Path) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", path.read_text()))


def test_the_race_page_prints_the_race(public: Path) -> None:
    page = text(public / "race" / "small-002" / "index.html")
    assert "Rank in 128 GB 2 of 2" in page
    assert "Finish time 404.8 s" in page
    assert "4 Snake code, level 4 0 of 5 hit ✕ ✕ ✕ ✕ ✕ 0 / 5 180.0 s yes 5 (75.0 s) 262.2 s" in page
    assert "1 River ferry puzzle, level 1 5 of 5 hit ● ● ● ● ● 5 / 5 2.0 s no 0 (0.0 s) 9.2 s" in page
    assert "Game rank as of 2026-11-12" in page
    assert "target 1: buzzer" in page


def test_seasons_and_modes_are_ranked_apart_and_past_ones_stay(public: Path) -> None:
    now = (public / "race" / "small-001" / "index.html").read_text()
    assert "Season 21, thinking off, 128 GB" in now
    assert "small-002" in now
    assert "small-003" not in now
    past = (public / "race" / "small-001" / "season-20-plain" / "index.html").read_text()
    assert "Season 20, thinking off, 128 GB" in past
    assert "../../../race/small-003/index.html" in past
    alone = text(public / "race" / "small-001" / "season-21-thinking" / "index.html")
    assert "Rank in 128 GB 1 of 1" in alone
    assert "200.0 s no" in alone
    listed = (public / "class" / "128" / "index.html").read_text()
    for page in ("small-001/index.html", "small-001/season-20-plain/index.html", "small-002/index.html", "small-003/index.html"):
        assert f"race/{page}" in listed


def test_head_to_head_says_who_leads_after_each_range(public: Path) -> None:
    page = text(public / "race" / "small-001" / "against" / "small-002" / "index.html")
    assert "setup 1 is ahead by 100.0 s" in page
    assert re.search(r"1 River ferry .* level 2 Painter .* level 3 Bench seating .* B by 75\.0 s 4 Snake .* A by 100\.0 s", page)
    back = text(public / "race" / "small-002" / "against" / "small-001" / "index.html")
    assert re.search(r"3 Bench seating .* A by 75\.0 s 4 Snake .* B by 100\.0 s", back)
    assert not (public / "race" / "small-003" / "against" / "small-002").exists(), "another season is no opponent"


def test_every_link_of_the_race_pages_resolves(public: Path) -> None:
    pages = list((public / "race").rglob("index.html"))
    assert len(pages) >= 9
    for page in pages:
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text()):
            if "://" not in target and not target.startswith("feed"):
                assert (page.parent / target).resolve().exists(), (page, target)


def test_the_setup_page_links_its_race_page(public: Path) -> None:
    assert 'href="../../race/small-001/index.html"' in (public / "setup" / "small-001" / "index.html").read_text()


def item(slug: str, finish: float, hits: int, thinking: float, date: str, **more: Any) -> Standing:
    fields = {"title": slug, "gb": 8, "season": 21, "thinking_on": False, "finish_s": finish, "hits": hits, "thinking_s": thinking}
    return Standing(slug=slug, date=date, **{**fields, **more})


def test_rank_is_finish_then_hits_then_thinking_then_date() -> None:
    races = [
        item("later", 300.0, 5, 6.0, "2026-11-02"),
        item("earlier", 300.0, 5, 6.0, "2026-11-01"),
        item("slower mind", 300.0, 5, 6.1, "2026-01-01"),
        item("more hits", 300.0, 6, 99.0, "2026-12-01"),
        item("fastest", 299.999, 0, 0.0, "2026-12-01"),
        item("equal", 300.0, 5, 6.0, "2026-11-02"),
    ]
    assert [(rank, one.slug) for rank, one in ranked(races)] == [
        (1, "fastest"),
        (2, "more hits"),
        (3, "earlier"),
        (4, "equal"),
        (4, "later"),
        (6, "slower mind"),
    ]


RESULT: dict[str, Any] = {
    "ranges": [
        {
            "task": "ferry",
            "title": "River ferry <script>",
            "kind": "puzzle",
            "level": 1,
            "targets": [True, False, True, True, False],
            "thinking_ms": 1000,
            "loops": 2,
            "loops_ms": 24_000,
            "range_ms": 32_200,
        }
    ]
    * 4
}


def test_the_drawing_shows_each_target_and_lap_and_escapes_words() -> None:
    for drawing in (wide(rows(RESULT)), tall(rows(RESULT))):
        assert drawing.count('class="hit"') == 12
        assert drawing.count('class="miss"') == 8
        assert drawing.count('class="loop"') == 8
        assert "<script" not in drawing
    clock = timeline(rows(RESULT), COURSE_MS + 4 * 32_200)
    widths = [float(found) for found in re.findall(r'x="[\d.]+" y="4" width="([\d.]+)"', clock)]
    assert sum(widths[1:]) == pytest.approx(1000, abs=0.2)


@pytest.mark.parametrize(
    "spoiled",
    [
        {},
        {"ranges": None},
        {"ranges": [1, None, {}]},
        {"ranges": [{"targets": "abc"}]},
        {"ranges": [{**RESULT["ranges"][0], "level": "x"}]},
    ],
)
def test_a_spoiled_result_has_no_rows_and_breaks_nothing(spoiled: dict[str, Any]) -> None:
    assert rows(msgspec.json.decode(msgspec.json.encode(spoiled))) == []


def test_a_race_with_its_own_buzzers_is_not_ranked(tmp_path: Path) -> None:
    home = racesetups.make(tmp_path / "setups", 1, Wish(solved=("ferry",)))
    path = home / "runs" / "race-0" / "result.json"
    path.write_text(path.read_text().replace('"standard": true', '"standard": false'))
    assert '"standard": false' in path.read_text()
    site.build(tmp_path / "setups", tmp_path / "public", what=Filter(["sparkhost"]))
    page = text(tmp_path / "public" / "setup" / "small-001" / "index.html")
    assert "Rank in" not in page
