"""Whole races against servers of known behaviour: files, judging again, buzzers, deaths, the live view."""

from __future__ import annotations

import io
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gauntlet_solver
import pytest
from rich.console import Console

from homestretch.lab.client import Target
from homestretch.lab.errors import BrokenRun, WrongUse
from homestretch.lab.fake import FakeServer
from homestretch.lab.fake.behaviour import Behaviour, FakeReply
from homestretch.lab.game import files
from homestretch.lab.game.course import RANGES, buzzers_ms
from homestretch.lab.game.files import Event, Exchange, Lane, Race
from homestretch.lab.game.judge import faults
from homestretch.lab.game.live import LiveRace
from homestretch.lab.game.race import FILES, Racer, void_interrupted
from homestretch.lab.game.seasons import season
from homestretch.lab.game.tasks import Outcome

FAST = Behaviour(decode_tokens_per_s=50_000.0, prefill_tokens_per_s=1_000_000.0, usage="own chunk", tokenize=False)


def lane(limits: tuple[int, ...] = buzzers_ms(False), **changes: Any) -> Lane:
    fields: dict[str, Any] = {
        "season": 7,
        "date": "2026-12-01T12:00:00.000Z",
        "model": "fake",
        "sampling": {"temperature": 1.0},
        "max_tokens": 4000,
        "buzzers_ms": list(limits),
        "lab_version": "0",
        "command": ["homestretch", "play"],
    }
    return Lane(**{**fields, **changes})


def answered(*tasks: str) -> tuple[FakeReply, ...]:
    made = season(7).tasks
    titles = {"ferry": "River ferry", "painter": "Painter", "seating": "Bench seating", "snake": "Snake"}
    return tuple(FakeReply(match=titles[task], text=gauntlet_solver.solve(task, made[task].statement)) for task in tasks)


def canned(source: str, stdin: str) -> Outcome:
    """Programs are judged elsewhere; here one is right when it is ours."""
    return Outcome(stdout="", fault="not run here")


def body(messages: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "model": "fake",
        "messages": messages,
        "max_tokens": 4000,
        "temperature": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def raced(url: str, folder: Path, lane_: Lane, watch: Callable[[Event], None] = lambda event: None) -> Race:
    return Racer(target=Target(url=url), lane=lane_, folder=folder, body=body, run=canned, watch=watch).race()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("race") / "gauntlet"
    server = FakeServer({"fake": FAST}, answers=(*answered("ferry", "seating"), FakeReply(text="```python\nprint(1)\n```")))
    race = raced(server.url, folder, lane())
    server.close()
    assert (race.state, race.hits, race.loops, race.buzzers) == ("finished", 10, 10, 0)
    return folder


def test_a_race_leaves_all_its_files(finished: Path) -> None:
    assert sorted(path.name for path in finished.iterdir()) == sorted(FILES)
    exchanges = files.read_lines(finished / "io.jsonl", Exchange)
    assert [exchange.task for exchange in exchanges] == [at.task for at in RANGES]
    for exchange in exchanges:
        assert exchange.request["messages"][1]["content"] == season(7).tasks[exchange.task].statement
        assert exchange.request["messages"][0]["content"] == (finished / "system.txt").read_text()
        assert exchange.status == 200
        assert exchange.finish_reason == "stop"
        assert exchange.completion_tokens
        assert 0 < exchange.thinking_ms < 20_000
    events = files.read_lines(finished / "log.jsonl", Event)
    assert [event.kind for event in events].count("shot") == 20
    assert events[0].kind == "start"
    assert events[-1].kind == "finish"
    times = [event.ms for event in events]
    assert times == sorted(times)
    race = files.read(finished / "result.json", Race)
    assert race.finish_ms == 52_000 + sum(row.range_ms for row in race.ranges)
    assert events[-1].course_ms == race.finish_ms
    assert files.read(finished / "model.json", Lane).engine_build == "not recorded"
    assert "result.json: the same bytes" in (finished / "verify.txt").read_text()


def test_judged_again_it_is_the_same_and_a_changed_byte_is_found(finished: Path, tmp_path: Path) -> None:
    assert faults(finished, canned) == []
    copy = tmp_path / "gauntlet"

    def changed(name: str, old: bytes, new: bytes) -> list[str]:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(finished, copy)
        data = (copy / name).read_bytes()
        assert old in data
        (copy / name).write_bytes(data.replace(old, new, 1))
        try:
            return faults(copy, canned)
        except BrokenRun as error:
            return [str(error)]

    hits = changed("result.json", b'"hits": 10', b'"hits": 11')
    assert len(hits) == 1
    assert hits[0].endswith('holds "hits": 11,, judged again "hits": 10,')
    assert changed("result.json", b"true", b"false")
    assert changed("result.json", b'"standard": true', b'"standard":  true')
    assert changed("io.jsonl", b'"thinking_ms":', b'"thinking_ms":1')
    slower = changed("log.jsonl", b'"kind":"answer"', b'"kind":"range"')
    assert slower == [], "a log without the event says nothing"
    sent = next(one for one in files.read_lines(finished / "log.jsonl", Event) if one.kind == "answer")
    late = changed("log.jsonl", f'"ms":{sent.ms},"kind":"answer"'.encode(), f'"ms":{sent.ms + 9_000},"kind":"answer"'.encode())
    assert "of thinking" in late[0]
    name = season(7).tasks["seating"].targets[0]["answer"][0].encode()
    assert changed("io.jsonl", b'[\\"' + name, b'[\\"Zoe')
    assert changed("io.jsonl", b"animals across a river", b"animals over a river!!")
    assert changed("io.jsonl", b'{"range":1', b'{"range":2')
    assert changed("io.jsonl", b'"ended"', b'"endet"')
    assert changed("model.json", b'"season": 7', b'"season": 8')
    assert changed("system.txt", b"race", b"walk")


def test_a_race_is_run_once(finished: Path) -> None:
    with pytest.raises(WrongUse, match="a race is run once"):
        raced("http://127.0.0.1:9/v1", finished, lane())


def test_a_cut_answer_is_judged_as_it_is_and_flagged(tmp_path: Path) -> None:
    cut = answered("ferry")[0].text
    server = FakeServer(
        {"fake": FAST}, answers=(FakeReply(match="River ferry", text=cut, finish_reason="length"), FakeReply(text="no"))
    )
    race = raced(server.url, tmp_path / "g", lane())
    server.close()
    assert race.ranges[0].cut
    assert race.ranges[0].hits == 5
    assert not race.ranges[1].cut


def test_thinking_that_stays_inside_its_limit_is_no_buzzer_and_a_stall_meets_it(tmp_path: Path) -> None:
    """Ranges of 0.4 s: a server that falls silent after some tokens is cut at the limit, and what it said is kept."""
    stalls = Behaviour(decode_tokens_per_s=2000.0, fault="stall", faults=4, fault_after=5, stall_s=60.0, tokenize=False)
    server = FakeServer({"fake": stalls}, answers=(FakeReply(text="one two three four five six seven eight nine"),))
    began = time.monotonic()
    told: list[Event] = []
    race = raced(server.url, tmp_path / "g", lane((400, 500, 600, 700)), told.append)
    assert time.monotonic() - began < 30
    server.close()
    assert (race.state, race.buzzers, race.hits) == ("finished", 4, 0)
    assert [row.thinking_ms for row in race.ranges] == [400, 500, 600, 700]
    assert race.finish_ms == 52_000 + 4 * 7_200 + 60_000 * 2 + 75_000 * 2 + 2_200
    assert not race.standard
    assert next(event.text for event in told if event.kind == "buzzer") == "the buzzer ended the thinking after 0.4 s"
    kept = files.read_lines(tmp_path / "g" / "io.jsonl", Exchange)
    assert [exchange.ended for exchange in kept] == ["buzzer"] * 4
    assert kept[0].answer.startswith("one two")
    assert faults(tmp_path / "g", canned) == []


@contextmanager
def raw_server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A socket that does with each connection what `talk` says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(20)
                    head = b""
                    while b"\r\n\r\n" not in head:
                        head += connection.recv(65536)
                    try:
                        talk(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        ended.set()
        thread.join(timeout=5)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def trickle(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(event("x"))
        time.sleep(0.02)


def silent(connection: socket.socket) -> None:
    connection.recv(1)


@pytest.mark.parametrize("talk", [trickle, silent])
def test_neither_a_trickle_nor_silence_outlasts_the_buzzer(talk: Callable[[socket.socket], None], tmp_path: Path) -> None:
    with raw_server(talk) as url:
        began = time.monotonic()
        race = raced(url, tmp_path / "g", lane((300, 300, 300, 300)))
        assert time.monotonic() - began < 20
    assert (race.state, race.buzzers) == ("finished", 4)


def dies(connection: socket.socket) -> None:
    connection.sendall(HEAD + event("half an ans"))


def fails(connection: socket.socket) -> None:
    connection.sendall(b'HTTP/1.1 500 Oh\r\nContent-Length: 29\r\n\r\n{"error":{"message":"broken"}}')


@pytest.mark.parametrize(("talk", "words"), [(dies, "dropped: the stream ended"), (fails, "status 500")])
def test_a_server_that_dies_or_errs_voids_the_race(talk: Callable[[socket.socket], None], words: str, tmp_path: Path) -> None:
    told: list[Event] = []
    with raw_server(talk) as url:
        race = raced(url, tmp_path / "g", lane(), told.append)
    assert race.state == "void"
    assert race.finish_ms is None
    assert race.reason.startswith("range 1, River ferry: ")
    assert words in race.reason
    assert [event.kind for event in told][-2:] == ["error", "void"]
    assert faults(tmp_path / "g", canned) == []


def test_no_server_voids_the_race(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    race = raced(f"http://127.0.0.1:{port}/v1", tmp_path / "g", lane())
    assert "refused" in race.reason


def test_a_race_cut_by_a_kill_is_closed_as_void(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "g"
    shutil.copytree(finished, copy)
    for name in ("result.json", "verify.txt"):
        (copy / name).unlink()
    lines = (copy / "io.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "io.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:40])
    race = void_interrupted(copy, canned)
    assert race is not None
    assert (race.state, len(race.ranges)) == ("void", 2)
    assert race.reason == "range 3, Bench seating: the race was interrupted"
    assert faults(copy, canned) == []
    assert void_interrupted(copy, canned) is None


def test_the_live_view_shows_targets_stopwatch_and_finish(finished: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=130, color_system=None)
    view = LiveRace(lane(), console)
    events = files.read_lines(finished / "log.jsonl", Event)

    def shown() -> str:
        console.file = io.StringIO()
        console.print(view)
        return console.file.getvalue()  # type: ignore[attr-defined]

    for one in events:
        view(one)
        if one.kind == "sent" and one.range == 1:
            assert "○ ○ ○ ○ ○" in shown()
            assert "·····" in shown()
    text = shown()
    assert "● ● ● ● ●" in text
    assert "✕ ✕ ✕ ✕ ✕" in text
    assert "5 (75.0 s)" in text
    assert "10 of 20 hit" in text
    assert text.count("◉") == 4


def test_piped_the_live_view_says_lines(finished: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    with LiveRace(lane(), console) as view:
        for one in files.read_lines(finished / "log.jsonl", Event):
            view(one)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "gauntlet range 1: thinking about River ferry" in text
    assert "gauntlet range 2: penalty loops: 5 (60.0 s)" in text
