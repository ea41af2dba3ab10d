"""The race of the setup page, from its own thinking times and hits, through the judge to every figure the page prints."""

from __future__ import annotations

import json

import pytest

from homestretch.lab.errors import BrokenRun
from homestretch.lab.game.course import RANGES, buzzers_ms, seconds
from homestretch.lab.game.files import Exchange, Lane
from homestretch.lab.game.judge import judge
from homestretch.lab.game.seasons import season
from homestretch.lab.game.tasks import Outcome

THINKING_MS = (2200, 500, 400, 3100)


def lane(**changes: object) -> Lane:
    fields: dict[str, object] = {
        "season": 21,
        "date": "2026-11-10T20:00:00.000Z",
        "model": "m",
        "sampling": {},
        "max_tokens": 512,
        "buzzers_ms": list(buzzers_ms(False)),
        "lab_version": "0",
        "command": [],
    }
    return Lane(**{**fields, **changes})  # type: ignore[arg-type]


def exchanges(answers: dict[str, str], thinking_ms: tuple[int, ...] = THINKING_MS) -> list[Exchange]:
    return [
        Exchange(
            range=at.number,
            task=at.task,
            sent_at="",
            request={},
            status=200,
            ended="answer",
            thinking_ms=ms,
            finish_reason="stop",
            answer=answers.get(at.task, ""),
        )
        for at, ms in zip(RANGES, thinking_ms, strict=True)
    ]


def never(source: str, stdin: str) -> Outcome:
    pytest.fail("no program was answered")


def test_the_pages_race() -> None:
    right = season(21).tasks["seating"].targets[4]["answer"]
    race = judge(lane(), exchanges({"seating": f"```json\n{json.dumps({'5': right})}\n```"}), never)
    assert [row.hits for row in race.ranges] == [0, 0, 1, 0]
    assert race.ranges[2].targets == [False, False, False, False, True]
    assert [seconds(row.loops_ms) for row in race.ranges] == ["60.0", "60.0", "60.0", "75.0"]
    assert [seconds(row.range_ms) for row in race.ranges] == ["69.4", "67.7", "67.6", "85.3"]
    assert (race.loops, seconds(race.loops_ms), seconds(race.thinking_ms)) == (19, "255.0", "6.2")
    assert race.finish_ms is not None
    assert (race.hits, race.buzzers, seconds(race.finish_ms)) == (1, 0, "342.0")


def test_one_rounding_at_the_end() -> None:
    """Four times 49 ms print as 0.0 each and 0.2 together; a half goes up, without a float between."""
    race = judge(lane(), exchanges({}, (49, 49, 49, 49)), never)
    assert [seconds(row.thinking_ms) for row in race.ranges] == ["0.0"] * 4
    assert seconds(race.thinking_ms) == "0.2"
    assert [seconds(ms) for ms in (0, 49, 50, 149, 150, 342_049, 342_050, 999_950)] == [
        "0.0",
        "0.0",
        "0.1",
        "0.1",
        "0.2",
        "342.0",
        "342.1",
        "1000.0",
    ]


def test_the_buzzer_rings_over_the_limit_not_at_it() -> None:
    right = season(21).tasks["seating"].targets[4]["answer"]
    answer = {"seating": json.dumps({"5": right})}
    at_limit = judge(lane(), exchanges(answer, (60_000, 90_000, 120_000, 180_000)), never)
    assert (at_limit.buzzers, at_limit.hits) == (0, 1)
    over = judge(lane(), exchanges(answer, (60_000, 90_000, 120_001, 180_000)), never)
    assert (over.buzzers, over.hits, over.ranges[2].thinking_ms) == (1, 0, 120_000)
    assert over.ranges[2].reasons == ["buzzer"] * 5


def test_thinking_on_has_limits_times_five() -> None:
    assert buzzers_ms(False) == (60_000, 90_000, 120_000, 180_000)
    assert buzzers_ms(True) == (300_000, 450_000, 600_000, 900_000)
    io = exchanges({}, (299_000, 0, 0, 0))
    assert judge(lane(thinking=True, buzzers_ms=list(buzzers_ms(True))), io, never).buzzers == 0
    assert judge(lane(), io, never).buzzers == 1


def test_own_buzzers_are_not_the_games() -> None:
    assert judge(lane(), exchanges({}), never).standard
    assert not judge(lane(buzzers_ms=[1, 1, 1, 1]), exchanges({}), never).standard


def test_an_error_voids_and_anything_else_is_refused() -> None:
    io = exchanges({})
    failed = Exchange(range=2, task="painter", sent_at="", request={}, ended="error", error="status 500", thinking_ms=3)
    race = judge(lane(), [io[0], failed], never)
    assert (race.state, race.finish_ms, race.reason) == ("void", None, "range 2, Painter: status 500")
    for wrong in ([], io[:3], [io[1], *io[1:]], [*io, io[3]], [io[0], failed, io[2]]):
        with pytest.raises(BrokenRun):
            judge(lane(), wrong, never)
