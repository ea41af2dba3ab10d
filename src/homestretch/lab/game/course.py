"""The Gauntlet's course and its arithmetic: four ranges, loops, buzzers; whole milliseconds, rounded once when printed."""

from __future__ import annotations

from dataclasses import dataclass

from homestretch.lab.game.tasks import TARGETS

COURSE_MS = 52_000
RANGE_MS = 7_200
LOOP_MS = {1: 12_000, 2: 12_000, 3: 15_000, 4: 15_000}
BUZZER_MS = {1: 60_000, 2: 90_000, 3: 120_000, 4: 180_000}
THINKING_FACTOR = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A stop of the course. level sets the length of a loop and the buzzer."""

    number: int
    task: str
    level: int


RANGES = (
    Range(number=1, task="ferry", level=1),
    Range(number=2, task="painter", level=2),
    Range(number=3, task="seating", level=3),
    Range(number=4, task="snake", level=4),
)


def buzzers_ms(thinking: bool) -> tuple[int, ...]:
    """The limit of each range."""
    return tuple(BUZZER_MS[at.level] * (THINKING_FACTOR if thinking else 1) for at in RANGES)


def loops_ms(level: int, hits: int) -> int:
    """Time in the penalty loops of a range: one loop for each target missed."""
    return (TARGETS - hits) * LOOP_MS[level]


def range_ms(level: int, hits: int, thinking_ms: int) -> int:
    """Time of a range: thinking, loops and the range itself."""
    return thinking_ms + loops_ms(level, hits) + RANGE_MS


def finish_ms(ranges_ms: list[int]) -> int:
    return COURSE_MS + sum(ranges_ms)


def seconds(ms: int) -> str:
    """A time as pages and terminals print it: one digit, halves up, so that no float rounds."""
    return f"{(ms + 50) // 1000}.{(ms + 50) // 100 % 10}"
