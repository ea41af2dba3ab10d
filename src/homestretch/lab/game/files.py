"""The files of a race in `gauntlet/`: lane (model.json), exchanges (io.jsonl), events (log.jsonl), result.json; one struct each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from homestretch.lab.errors import BrokenRun
from homestretch.lab.game.draws import GAME
from homestretch.lab.types import Record

NOT_RECORDED = "not recorded"
R = TypeVar("R", bound=Record)


class Lane(Record, frozen=True, kw_only=True, omit_defaults=False):
    """`model.json`: everything the race was run with. buzzers_ms: limit of each range. engine_build may be "not recorded"."""

    schema: Literal[1] = 1
    game: str = GAME
    season: int
    date: str
    model: str
    setup: str = ""
    thinking: bool = False
    thinking_field: str = ""
    sampling: dict[str, Any]
    sampling_source: str = ""
    max_tokens: int
    buzzers_ms: list[int]
    engine_build: str = NOT_RECORDED
    lab_version: str
    command: list[str]


class Exchange(Record, frozen=True, kw_only=True, omit_defaults=False):
    """A line of `io.jsonl`: the exact body as sent and all that came back.

    thinking_ms: request sent to last byte. ended: "answer", "buzzer" (cut off at the limit, what had come is kept) or "error".
    """

    range: int
    task: str
    sent_at: str
    request: dict[str, Any]
    status: int = 0
    ended: Literal["answer", "buzzer", "error"]
    error: str = ""
    thinking_ms: int
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning: str = ""
    answer: str = ""


class Event(Record, frozen=True, kw_only=True):
    """A line of `log.jsonl`. ms: since the start; course_ms: the race clock (course, loops and ranges count their fixed times)."""

    at: str
    ms: int
    kind: Literal["start", "sent", "answer", "buzzer", "error", "shot", "loops", "range", "finish", "void"]
    range: int = 0
    text: str = ""
    target: int = 0
    hit: bool = False
    course_ms: int | None = None


class RangeResult(Record, frozen=True, kw_only=True, omit_defaults=False):
    """One range as judged. reasons: why each target was missed, "" for a hit. cut: the answer ended at its token limit."""

    number: int
    task: str
    title: str
    kind: Literal["puzzle", "code"]
    level: int
    targets: list[bool]
    reasons: list[str]
    hits: int
    thinking_ms: int
    limit_ms: int
    buzzer: bool
    cut: bool
    loops: int
    loops_ms: int
    range_ms: int


class Race(Record, frozen=True, kw_only=True, omit_defaults=False):
    """`result.json`. state "void": an HTTP error ended the race; ranges before it are kept, there is no finish."""

    schema: Literal[1] = 1
    game: str = GAME
    season: int
    season_sha256: str
    date: str
    model: str
    setup: str = ""
    thinking: bool
    state: Literal["finished", "void"]
    reason: str = ""
    ranges: list[RangeResult]
    hits: int
    loops: int
    loops_ms: int
    thinking_ms: int
    buzzers: int
    course_ms: int
    finish_ms: int | None
    standard: bool


def encode(record: Record) -> bytes:
    """A JSON file: two spaces, fields in the order of the struct, a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def line(record: Record) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def read(path: Path, kind: type[R]) -> R:
    """A JSON file; BrokenRun names the file and the fault."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise BrokenRun(f"{path}: {error}") from None


def read_lines(path: Path, kind: type[R]) -> list[R]:
    """A file with one record a line; BrokenRun names file, line and fault."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BrokenRun(f"{path}: {error}") from None
    found = []
    for number, text in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(text, type=kind))
        except msgspec.MsgspecError as error:
            raise BrokenRun(f"{path}, line {number}: {error}") from None
    return found
