"""Runs a race: one request a range, a buzzer that ends the thinking, and every byte kept as it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from homestretch.lab.client import Connection, Target, undisturbed
from homestretch.lab.errors import WrongUse
from homestretch.lab.exchange import read_reply
from homestretch.lab.game import files
from homestretch.lab.game.course import COURSE_MS, RANGE_MS, RANGES, Range, seconds
from homestretch.lab.game.files import Event, Exchange, Lane, Race, RangeResult
from homestretch.lab.game.judge import faults, judge, ranged, total
from homestretch.lab.game.seasons import season
from homestretch.lab.game.tasks import Run, find
from homestretch.lab.types import Record

SYSTEM = (
    "You are in a race. You get one task, once, and nobody helps you. Only your answer counts and the time until it is complete: "
    "think as little as you need and answer in the form the task asks for."
)
FILES = ("result.json", "log.jsonl", "io.jsonl", "system.txt", "model.json", "verify.txt")
Body = dict[str, Any]


class Racer:
    """One race into `folder`. body(messages) makes the request; watch sees every event as it is logged."""

    def __init__(
        self,
        *,
        target: Target,
        lane: Lane,
        folder: Path,
        body: Callable[[list[dict[str, str]]], Body],
        run: Run,
        watch: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.target, self.lane, self.folder, self.run, self.watch = target, lane, folder, run, watch
        self._body = body
        self._began = time.perf_counter()
        self._course_ms = 0

    def race(self) -> Race:
        """The result, written with all files of the race. An HTTP error voids it; WrongUse when the folder holds a race already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if any((self.folder / name).exists() for name in FILES):
            raise WrongUse(f"{self.folder} holds a race already and a race is run once; give another folder")
        made = season(self.lane.season)
        (self.folder / "system.txt").write_text(SYSTEM, encoding="utf-8")
        (self.folder / "model.json").write_bytes(files.encode(self.lane))
        self._began = time.perf_counter()
        mode = "on" if self.lane.thinking else "off"
        self._log("start", text=f"season {self.lane.season}, thinking {mode}, {self.lane.model}", course_ms=0)
        ranges: list[RangeResult] = []
        void = ""
        for at, limit_ms in zip(RANGES, self.lane.buzzers_ms, strict=True):
            exchange = self._think(at, made.tasks[at.task].statement, limit_ms)
            self._keep("io.jsonl", exchange)
            title = find(at.task).title
            if exchange.ended == "error":
                void = f"range {at.number}, {title}: {exchange.error}"
                self._log("error", at.number, text=exchange.error)
                break
            self._said(at, exchange, limit_ms)
            result = ranged(made, at, exchange, limit_ms, self.run)
            ranges.append(result)
            self._shots(result)
        race = total(made, self.lane, ranges, void)
        if void:
            self._log("void", text=void)
        else:
            self._log("finish", text=f"{seconds(race.finish_ms or 0)} s, {race.hits} of 20 hit", course_ms=race.finish_ms)
        (self.folder / "result.json").write_bytes(files.encode(race))
        (self.folder / "verify.txt").write_text(verified(self.folder, self.run), encoding="utf-8")
        return race

    def _think(self, at: Range, statement: str, limit_ms: int) -> Exchange:
        """One request; a timer cuts the connection at the buzzer, so that no silence and no trickle outlasts it."""
        body = self._body([{"role": "system", "content": SYSTEM}, {"role": "user", "content": statement}])
        connection = Connection(self.target, idle_s=limit_ms / 1000 + 5.0, total_s=limit_ms / 1000 + 5.0)
        request = connection.encode("POST", "/chat/completions", body)
        rang = threading.Event()

        def buzz() -> None:
            rang.set()
            connection.stop()

        sent_at = utc()
        self._log("sent", at.number, text=find(at.task).title)
        timer = threading.Timer(limit_ms / 1000, buzz)
        timer.daemon = True
        with undisturbed():
            timer.start()
            raw = connection.exchange(request)
            timer.cancel()
        reply = read_reply(raw, streamed=bool(body.get("stream")))
        buzzer = rang.is_set() and raw.status in (0, 200)
        last = raw.pieces[-1][0] if raw.pieces and not reply.error else raw.end
        error = "" if buzzer else reply.error or raw.error
        usage = reply.usage
        return Exchange(
            range=at.number,
            task=at.task,
            sent_at=sent_at,
            request=body,
            status=raw.status,
            ended="buzzer" if buzzer else "error" if error else "answer",
            error=error,
            thinking_ms=limit_ms if buzzer else int((last - raw.t0) * 1000 + 0.5),
            finish_reason=reply.finish_reason,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            reasoning=reply.reasoning,
            answer=reply.text,
        )

    def _said(self, at: Range, exchange: Exchange, limit_ms: int) -> None:
        late = exchange.ended == "buzzer" or exchange.thinking_ms > limit_ms
        self._course_ms += min(exchange.thinking_ms, limit_ms)
        if late:
            text = f"the buzzer ended the thinking after {seconds(limit_ms)} s"
        else:
            cut = ", cut at the answer limit" if exchange.finish_reason == "length" else ""
            text = f"answered after {seconds(exchange.thinking_ms)} s{cut}"
        self._log("buzzer" if late else "answer", at.number, text=text, course_ms=self._race_clock())

    def _shots(self, result: RangeResult) -> None:
        for target, (hit, reason) in enumerate(zip(result.targets, result.reasons, strict=True), 1):
            self._log("shot", result.number, target=target, hit=hit, text=reason)
        self._course_ms += result.loops_ms + RANGE_MS
        if result.loops:
            self._log("loops", result.number, text=f"{result.loops} ({seconds(result.loops_ms)} s)", course_ms=self._race_clock())
        said = f"{result.title}: {result.hits} of 5, {seconds(result.range_ms)} s"
        self._log("range", result.number, text=said, course_ms=self._race_clock())

    def _race_clock(self) -> int:
        """The course's own time counts as skied evenly: a share before each range and one before the finish."""
        passed = sum(1 for at in RANGES if at.number <= self._at)
        return self._course_ms + COURSE_MS * passed // (len(RANGES) + 1)

    _at = 0

    def _log(self, kind: Any, range_: int = 0, **fields: Any) -> None:
        self._at = range_ or self._at
        event = Event(at=utc(), ms=int((time.perf_counter() - self._began) * 1000), kind=kind, range=range_, **fields)
        self._keep("log.jsonl", event)
        self.watch(event)

    def _keep(self, name: str, record: Record) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(files.line(record))
            file.flush()


def void_interrupted(folder: Path, run: Run) -> Race | None:
    """Close a race that a kill left open: its next range gets an error, so that it is void. None when nothing was left open."""
    if not (folder / "model.json").exists() or (folder / "result.json").exists():
        return None
    lane = files.read(folder / "model.json", Lane)
    path = folder / "io.jsonl"
    whole = path.read_bytes() if path.exists() else b""
    path.write_bytes(whole[: whole.rfind(b"\n") + 1])
    io = files.read_lines(path, Exchange)
    if len(io) < len(RANGES) and not (io and io[-1].ended == "error"):
        at = RANGES[len(io)]
        error = "the race was interrupted"
        cut = Exchange(range=at.number, task=at.task, sent_at=utc(), request={}, ended="error", error=error, thinking_ms=0)
        with path.open("ab") as file:
            file.write(files.line(cut))
    race = judge(lane, files.read_lines(path, Exchange), run)
    (folder / "result.json").write_bytes(files.encode(race))
    (folder / "verify.txt").write_text(verified(folder, run), encoding="utf-8")
    return race


def verified(folder: Path, run: Run) -> str:
    """The text of verify.txt: the season made again, io.jsonl judged again, compared with result.json."""
    found = faults(folder, run)
    lane = files.read(folder / "model.json", Lane)
    race = files.read(folder / "result.json", Race)
    lines = [
        f"season {lane.season} made again: sha256 {season(lane.season).sha256()}",
        f"io.jsonl judged again: {race.hits} of {5 * len(race.ranges)} targets hit, {race.buzzers} buzzers",
        *(f"FAULT {text}" for text in found),
        "result.json: other bytes" if found else "result.json: the same bytes",
    ]
    return "\n".join(lines) + "\n"


def utc() -> str:
    """Wall clock in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def lane_of(settings: Mapping[str, Any], **fields: Any) -> Lane:
    """A lane from the contract's flat settings and what the part adds."""
    sampling = {name.removeprefix("sampling."): value for name, value in settings.items() if name.startswith("sampling.")}
    sampling |= {name.removeprefix("request."): value for name, value in settings.items() if name == "request.seed"}
    return Lane(sampling=sampling, **fields)
