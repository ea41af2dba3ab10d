"""From the exchanges of a race to its result: a function of season, lane and io alone, so that anyone can judge again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from homestretch.lab.errors import BrokenRun
from homestretch.lab.game import files
from homestretch.lab.game.course import COURSE_MS, RANGES, Range, buzzers_ms, finish_ms, loops_ms, range_ms
from homestretch.lab.game.files import Event, Exchange, Lane, Race, RangeResult
from homestretch.lab.game.seasons import Season, season
from homestretch.lab.game.tasks import Run, Shot, find, missed

SLACK_MS = 3_000  # between the last byte and the log's line the reply is parsed, on a machine that may be busy


def shots(made_season: Season, exchange: Exchange, limit_ms: int, run: Run) -> tuple[Shot, ...]:
    """The five shots of one exchange; a buzzer misses them all, a cut answer is judged as it is."""
    if buzzed(exchange, limit_ms):
        return missed("buzzer")
    return find(exchange.task).judge(made_season.tasks[exchange.task], exchange.answer, run)


def buzzed(exchange: Exchange, limit_ms: int) -> bool:
    return exchange.ended == "buzzer" or exchange.thinking_ms > limit_ms


def ranged(made_season: Season, at: Range, exchange: Exchange, limit_ms: int, run: Run) -> RangeResult:
    """One range judged. After a buzzer the thinking time is the limit."""
    verdicts = shots(made_season, exchange, limit_ms, run)
    hits = sum(shot.hit for shot in verdicts)
    buzzer = buzzed(exchange, limit_ms)
    thinking_ms = limit_ms if buzzer else exchange.thinking_ms
    task = find(at.task)
    return RangeResult(
        number=at.number,
        task=at.task,
        title=task.title,
        kind=task.kind,
        level=at.level,
        targets=[shot.hit for shot in verdicts],
        reasons=[shot.reason for shot in verdicts],
        hits=hits,
        thinking_ms=thinking_ms,
        limit_ms=limit_ms,
        buzzer=buzzer,
        cut=exchange.finish_reason == "length",
        loops=len(verdicts) - hits,
        loops_ms=loops_ms(at.level, hits),
        range_ms=range_ms(at.level, hits, thinking_ms),
    )


def total(made_season: Season, lane: Lane, ranges: list[RangeResult], void: str) -> Race:
    """The result of the ranges run; `void` is why the race does not count, or ""."""
    return Race(
        season=lane.season,
        season_sha256=made_season.sha256(),
        date=lane.date,
        model=lane.model,
        setup=lane.setup,
        thinking=lane.thinking,
        state="void" if void else "finished",
        reason=void,
        ranges=ranges,
        hits=sum(row.hits for row in ranges),
        loops=sum(row.loops for row in ranges),
        loops_ms=sum(row.loops_ms for row in ranges),
        thinking_ms=sum(row.thinking_ms for row in ranges),
        buzzers=sum(row.buzzer for row in ranges),
        course_ms=COURSE_MS,
        finish_ms=None if void else finish_ms([row.range_ms for row in ranges]),
        standard=tuple(lane.buzzers_ms) == buzzers_ms(lane.thinking),
    )


def judge(lane: Lane, io: Sequence[Exchange], run: Run) -> Race:
    """The result of a race. BrokenRun when the exchanges are not one for each range in order, up to a void's error."""
    if len(lane.buzzers_ms) != len(RANGES):
        raise BrokenRun(f"model.json: {len(lane.buzzers_ms)} buzzers for {len(RANGES)} ranges")
    made, ranges, void = season(lane.season), [], ""
    for at, exchange, limit_ms in zip(RANGES, io, lane.buzzers_ms, strict=False):
        if (exchange.range, exchange.task) != (at.number, at.task):
            raise BrokenRun(f"io.jsonl: {exchange.task} stands where range {at.number}, {at.task}, is due")
        if exchange.ended == "error":
            void = f"range {at.number}, {find(at.task).title}: {exchange.error}"
            break
        ranges.append(ranged(made, at, exchange, limit_ms, run))
    if len(io) != len(ranges) + bool(void) or (not void and len(ranges) != len(RANGES)):
        raise BrokenRun(f"io.jsonl: {len(io)} exchanges; a race has one for each of {len(RANGES)} ranges and none after an error")
    return total(made, lane, ranges, void)


def faults(folder: Path, run: Run) -> list[str]:
    """What is wrong with the files of a race; [] when the season, made again, and io.jsonl, judged again, give result.json."""
    lane = files.read(folder / "model.json", Lane)
    io = files.read_lines(folder / "io.jsonl", Exchange)
    made, found = season(lane.season), []
    system = (folder / "system.txt").read_text("utf-8")
    for exchange in io:
        if exchange.task not in made.tasks or (exchange.ended == "error" and not exchange.request):
            continue  # the first is named by `judge`, the second was never sent
        messages = exchange.request.get("messages", [])
        due = [{"role": "system", "content": system}, {"role": "user", "content": made.tasks[exchange.task].statement}]
        if messages != due:
            found.append(
                f"io.jsonl, range {exchange.range}: the request does not hold season {lane.season}'s statement and system.txt"
            )
    found += clock_faults(folder, io)
    again = files.encode(judge(lane, io, run))
    kept = (folder / "result.json").read_bytes()
    if again != kept:
        found.append(f"result.json: {_difference(kept, again)}")
    return found


def clock_faults(folder: Path, io: Sequence[Exchange]) -> list[str]:
    """Where the log's own clock contradicts a thinking time: it lies between a request's event and its answer's."""
    found = []
    path = folder / "log.jsonl"
    events = files.read_lines(path, Event) if path.exists() else []
    for exchange in io:
        mine = [event for event in events if event.range == exchange.range]
        sent = next((event.ms for event in mine if event.kind == "sent"), None)
        said = next((event.ms for event in mine if event.kind in ("answer", "buzzer", "error")), None)
        if sent is None or said is None:
            continue
        passed = said - sent
        if not 0 <= exchange.thinking_ms <= passed + 20 or passed - exchange.thinking_ms > SLACK_MS + passed // 10:
            told = f"{exchange.thinking_ms} ms of thinking, {passed} ms by the log"
            found.append(f"io.jsonl, range {exchange.range}: {told}")
    return found


def _difference(kept: bytes, again: bytes) -> str:
    """The first line where two files differ."""
    pairs = zip([*kept.splitlines(), b"(end)"], [*again.splitlines(), b"(end)"], strict=False)
    for number, (old, new) in enumerate(pairs, 1):
        if old != new:
            return (
                f"line {number} holds {old.decode(errors='replace').strip()}, judged again {new.decode(errors='replace').strip()}"
            )
    return "bytes differ"
