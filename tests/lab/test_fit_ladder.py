"""The memory test with real processes: what is touched is measured, what fails ends the ladder, what lingers is waited for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homestretch.lab import fitting, ladder, memory
from homestretch.lab.client import Target
from homestretch.lab.context import Context
from homestretch.lab.errors import LabError
from homestretch.lab.fitting import Try
from homestretch.lab.guard import Guard
from homestretch.lab.ladder import Ladder
from homestretch.lab.memory import GIB, MIB
from homestretch.lab.parts.fit import PART
from homestretch.lab.progress import Progress
from homestretch.lab.records import RunFolder
from homestretch.lab.servers import ManagedServer, load
from homestretch.lab.tokenizing import nothing
from homestretch.lab.types import Author, Card, Contract, Engine, Machine, ModelCard, Sourced, Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
STUB = Path(__file__).with_name("memory_stub.py")


def card(*words: str) -> Card:
    command = [sys.executable, str(STUB), "--port", "{port}", "--window", "{window}", *words]
    return Card(
        slug="stub",
        title="stub",
        memory_class_gb=8,
        author=Author(name="a"),
        machine=Machine(label="m", memory_gb=8),
        engine=Engine(name="stub", version="1", server="attach"),
        model=ModelCard(id="stub", name="stub", location="x"),
        start=Start(command=command, port=0, ready_s=30.0),
        window=Sourced(value=512, source="test"),
        slots=Sourced(value=1, source="test"),
        sampling=Sourced(value={}, source="test"),
    )


def settings(sizes: list[int], **changes: Any) -> dict[str, Sourced]:
    values = {
        "parts": ["fit"],
        "fit.version": 1,
        "fit.sizes": sizes,
        "fit.max_tokens": 8,
        "fit.limit_gib": None,
        "fit.attempts": 1,
        "guard.allow_load": True,
        "prompt.template_tokens": 7,
        **changes,
    }
    return {name: Sourced(value=value, source="test") for name, value in values.items()}


def climbed(path: Path, sizes: list[int], *words: str, during: Callable[[], None] = lambda: None, **changes: Any) -> list[Try]:
    """A ladder of the stub in a run folder; every try it wrote."""
    path.mkdir(exist_ok=True)
    folder = RunFolder(path)
    described = card(*words)
    contract = Contract(
        run="r",
        label="r",
        created="2026-12-01T12:00:00.000Z",
        lab_version="0",
        card=described,
        base_url="",
        model="stub",
        settings=settings(sizes, **changes),
        hashes={},
        machine={},
        command=[],
    )
    folder.write_contract(contract)
    server = ManagedServer(described, load("attach"), path / "server.log")
    with Guard(path, lab_pid=os.getpid(), allow_load=True) as guard:
        context = Context(
            part="fit",
            contract=contract,
            target=Target(url="http://127.0.0.1:9/v1"),
            folder=folder,
            tokens=nothing(),
            guard=guard,
            progress=Progress(quiet=True),
            server=server,
        )
        during()
        try:
            Ladder(context=context, server=server).climb()
        finally:
            server.stop()
    return fitting.tries(path)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at no figure: any idle value is still enough."""
    monkeypatch.setattr(ladder, "STILL_S", 0.2)
    monkeypatch.setattr(ladder, "STILL_BYTES", 8 * GIB)


@pytest.mark.timing
def test_one_gib_touched_is_measured_within_3_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that others use too: repeated while their memory moves; a figure that is off alike each time fails."""
    monkeypatch.setattr(ladder, "STILL_S", 0.4)
    rises: list[int] = []
    for attempt in range(8):
        (one,) = climbed(tmp_path / str(attempt), [512], "--touch-mib", "1024")
        assert (one.outcome, one.reason) == ("answered", "")
        assert one.tree == pytest.approx(GIB, rel=0.03)
        rises.append(one.rise)
        if abs(one.rise - GIB) < 0.03 * GIB:
            return
    assert max(rises) - min(rises) > 0.03 * GIB, f"off each time alike: {rises}"
    pytest.skip(f"memory of others moved in each of eight tries: {[round(rise / GIB, 2) for rise in rises]} GiB")


def near(one: Try) -> bool:
    return abs(one.rise - one.tree) <= max(0.15 * one.tree, 100 * MIB)


@pytest.mark.timing
def test_each_window_starts_anew_and_the_figures_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "STILL_S", 0.4)
    seen: set[int] = set()
    for attempt in range(5):
        run = tmp_path / str(attempt)
        every = climbed(run, [512, 1024, 2048], "--per-window-mib", "200")
        seen |= {one.size for one in every if near(one)}
        if len(seen) == 3:
            break
    else:
        pytest.skip(f"memory of others moved in each of five climbs: {[(one.rise >> 20, one.tree >> 20) for one in every]} MiB")
    assert [one.size for one in every] == [512, 1024, 2048]
    assert [one.outcome for one in every] == ["answered"] * 3
    assert [one.prompt_tokens for one in every] == [486, 972, 1945]
    for one in every:
        assert one.tree == pytest.approx(one.size / 1024 * 200 * MIB, abs=25 * MIB)
        assert one.peak == max(used for _, used in one.used)
    records = RunFolder(run).kept("fit")
    assert [record.usage.prompt_tokens for record in records if record.usage] == [486, 972, 1945]
    scored = PART.score(RunFolder(run))
    assert scored.part.state == "done"
    assert scored.numbers["fit.largest_tokens"].value == 2048
    assert scored.numbers["fit.1024.prefill_tokens_per_s"].value == 972 / 0.5
    assert scored.numbers["fit.1024.decode_tokens_per_s"].value == 40.0
    assert scored.numbers["fit.2048.filled_pct"].value == pytest.approx(94.97, abs=0.01)
    assert scored.part.detail["sizes"][0] == {"size": 512, "outcome": "answered", "finish_reason": "stop"}


@pytest.mark.usefixtures("hasty")
def test_a_disturbed_try_is_repeated_and_the_last_counts_with_its_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(["memory_intruder: browser changed by +900 MiB", ""])
    monkeypatch.setattr(ladder, "disturbed", lambda one: next(said))
    every = climbed(tmp_path / "run", [512], **{"fit.attempts": 3})
    assert [(one.attempt, bool(one.discarded)) for one in every] == [(1, True), (2, False)]
    assert fitting.counting(every)[512].attempt == 2
    requests = RunFolder(tmp_path / "run").requests("fit")
    assert [record.discarded for record in requests] == ["memory_intruder: browser changed by +900 MiB", ""]


def tried(**changes: Any) -> Try:
    fields = {"size": 512, "attempt": 1, "at": "2026-12-01T12:00:00.000Z", "outcome": "answered", "idle": GIB, "samples": 9}
    return Try(**{**fields, **changes})


def test_what_disturbs_a_try() -> None:
    browser = fitting.Foreign(name="browser", pid=1, bytes=40 * MIB)
    assert ladder.disturbed(tried(peak=2 * GIB, tree=GIB)) == ""
    assert "browser changed by +40 MiB" in ladder.disturbed(tried(peak=2 * GIB, tree=GIB, intruders=[browser]))
    assert ladder.disturbed(tried(peak=11 * GIB, tree=10 * GIB, intruders=[browser])) == "", "under 3 % of the rise"
    assert "102 MiB below what the server itself held" in ladder.disturbed(tried(peak=2 * GIB - 102 * MIB, tree=GIB))
    assert ladder.disturbed(tried(peak=3 * GIB, tree=GIB)) == "", "an accelerator may hold the rest"
    assert "1024 MiB above what the server" in ladder.disturbed(tried(peak=3 * GIB, tree=GIB, own_only=True))
    assert ladder.disturbed(tried(peak=2 * GIB + 140 * MIB, tree=GIB, own_only=True)) == "", "within 15 %"
    assert ladder.disturbed(tried(peak=2 * GIB, tree=3 * GIB, tree_file=2 * GIB)) == "", "mapped files are not in the rise"


def test_the_next_need_is_judged_by_the_windows_before() -> None:
    one, two = tried(size=1024, peak=2 * GIB), tried(size=2048, peak=3 * GIB)
    assert fitting.expected_rise([], 1024) is None
    assert fitting.expected_rise([one], 2048) == GIB
    assert fitting.expected_rise([one, two], 4096) == 4 * GIB


@pytest.mark.usefixtures("hasty")
def test_mapped_files_show_in_the_tree_and_are_named(tmp_path: Path) -> None:
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(os.urandom(MIB) * 300)
    (one,) = climbed(tmp_path / "run", [512], "--map", str(weights))
    assert one.mapped["weights.gguf"] == pytest.approx(300 * MIB, rel=0.02)
    assert one.tree_file >= 295 * MIB
    assert one.tree >= 300 * MIB
    assert any("weights.gguf 0.29 GiB" in note and "does not count" in note for note in one.notes)
    if not one.intruders:
        assert one.rise < 150 * MIB
    assert PART.score(RunFolder(tmp_path / "run")).numbers["fit.512.mapped_gib"].value == pytest.approx(0.293, abs=0.02)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--refuse-at", "1024"), "ended with exit code 3 before it was ready: window 1024 does not fit: 3.2 GiB more are needed"),
        (("--die-at", "1024"), "error"),
    ],
)
def test_the_ladder_ends_where_the_server_refuses_or_dies(words: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    every = climbed(tmp_path / "run", [512, 1024, 2048], *words)
    assert [(one.size, one.outcome) for one in every] == [(512, "answered"), (1024, "failed")]
    assert reason in every[1].reason
    assert "3.2 GiB more are needed" in every[1].log_tail or "out of memory" in every[1].log_tail
    scored = PART.score(RunFolder(tmp_path / "run"))
    assert scored.part.state == "done"
    assert scored.numbers["fit.largest_tokens"].value == 512
    assert scored.part.reason.startswith("the ladder ended at 1024 tokens: ")


@pytest.mark.usefixtures("hasty")
def test_an_ended_ladder_goes_on_where_it_failed(tmp_path: Path) -> None:
    climbed(tmp_path / "run", [512, 1024], "--refuse-at", "1024")
    every = climbed(tmp_path / "run", [512, 1024])
    assert [(one.size, one.outcome, one.attempt) for one in every] == [
        (512, "answered", 1),
        (1024, "failed", 1),
        (1024, "answered", 2),
    ]
    assert PART.score(RunFolder(tmp_path / "run")).numbers["fit.largest_tokens"].value == 1024


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--says", " "), "no answer: the reply is empty"),
        (("--reads", "100"), "the server read 386 tokens of a prompt of 486"),
    ],
)
def test_a_wrong_answer_fails_the_window(words: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    (one,) = climbed(tmp_path / "run", [512, 1024], *words)
    assert (one.outcome, one.reason.startswith(reason)) == ("failed", True), one.reason


@pytest.mark.usefixtures("hasty")
def test_a_server_that_leaves_memory_behind_is_waited_for(tmp_path: Path) -> None:
    """Its child outlives it by three seconds and lets 256 MiB go bit by bit: the next window waits and says so."""
    every = climbed(tmp_path / "run", [512, 1024], "--leak-mib", "256")
    assert [one.outcome for one in every] == ["answered", "answered"]
    said = " ".join(every[1].notes)
    assert "until the processes of the server before were gone" in said
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "1024 tokens: Waited" in log


@pytest.mark.usefixtures("hasty")
def test_a_process_that_never_goes_stops_the_ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "GONE_S", 0.3)
    with pytest.raises(LabError, match="of the server before still run; end them"):
        climbed(tmp_path / "run", [512, 1024], "--leak-mib", "64")


def test_memory_that_does_not_come_to_rest_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "wait_idle", lambda **options: None)
    with pytest.raises(LabError, match="did not come to rest"):
        climbed(tmp_path / "run", [512])


@pytest.mark.usefixtures("hasty")
def test_the_limit_stops_a_server_that_grows(tmp_path: Path) -> None:
    began = time.monotonic()
    (one,) = climbed(tmp_path / "run", [512], "--grow", **{"fit.limit_gib": 0.4})
    assert one.outcome == "failed"
    assert one.reason.startswith("stopped by the lab: used memory had risen by 0.")
    assert one.rise < 1.2 * GIB, "it is stopped at the limit, not far above"
    assert time.monotonic() - began < 60


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("limit", "started"), [(3.5, False), (4.5, True)])
def test_a_window_that_would_pass_the_limit_is_not_started(limit: float, started: bool, tmp_path: Path) -> None:
    """2 and 2.5 GiB at 512 and 1,024 tokens: on a straight line 2,048 tokens need 3.5 GiB."""
    (tmp_path / "run").mkdir()
    for one in (tried(size=512, peak=GIB + 2 * GIB), tried(size=1024, peak=GIB + 5 * GIB // 2)):
        fitting.append(tmp_path / "run", one)
    last = climbed(tmp_path / "run", [512, 1024, 2048], **{"fit.limit_gib": limit})[-1]
    assert last.size == 2048
    if started:
        assert last.outcome == "answered"
    else:
        assert (last.outcome, last.samples) == ("failed", 0)
        assert last.reason == "not started: by the windows before it needs about 3.50 GiB, over the limit of --limit-gib 3.50"


def test_an_intruder_is_named(tmp_path: Path) -> None:
    """A program of somebody else that takes 200 MiB in the middle of a step."""
    import subprocess

    started: list[subprocess.Popen[bytes]] = []
    idle = memory.wait_idle(window_s=0.2, tolerance=8 * GIB, patience_s=60)
    assert idle is not None
    watch = memory.Watch(idle=idle, pid=lambda: None)
    watch.start()
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    x = bytearray(200 << 20)\n    time.sleep(2.5)\n"
    started.append(subprocess.Popen([sys.executable, "-c", code]))
    started[0].wait()
    time.sleep(1.5)
    watch.stop()
    found = [who for who in watch.intruders(100 * MIB) if 190 * MIB < who.bytes < 260 * MIB]
    assert found, watch.intruders(MIB)
    assert "python" in found[0].name


def test_samples_come_at_least_every_100_ms(tmp_path: Path) -> None:
    idle = memory.Idle(used=memory.room().used, waited_s=0.0, moved=0, foreign={})
    watch = memory.Watch(idle=idle, pid=lambda: os.getpid())
    began = time.monotonic()
    watch.start()
    time.sleep(2.0)
    watch.stop()
    assert watch.samples >= (time.monotonic() - began) / 0.1
    assert watch.tree_peak > 5 * MIB


def test_the_idle_value_is_waited_for_while_memory_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Used memory falls by 100 MiB every 0.1 s for a second, then rests: the wait says so and ends on the lower value."""
    began = time.monotonic()

    def falling() -> memory.Room:
        fallen = min(10, int((time.monotonic() - began) / 0.1))
        return memory.Room(used=4 * GIB - fallen * 100 * MIB, left=GIB, total=8 * GIB)

    monkeypatch.setattr(memory, "room", falling)
    idle = memory.wait_idle(window_s=0.4, tolerance=32 * MIB, patience_s=30)
    assert idle is not None
    assert idle.used == 4 * GIB - 1000 * MIB
    assert idle.waited_s > 1.2
    began = time.monotonic() + 3_600
    restless = iter(range(10**6))
    monkeypatch.setattr(memory, "room", lambda: memory.Room(used=next(restless) * 50 * MIB, left=GIB, total=8 * GIB))
    assert memory.wait_idle(window_s=0.2, tolerance=32 * MIB, patience_s=0.6) is None


def test_an_idle_value_above_the_first_is_said(tmp_path: Path) -> None:
    rung = Ladder(context=None, server=None)  # type: ignore[arg-type]
    first = memory.Idle(used=GIB, waited_s=2.0, moved=0, foreign={})
    assert rung._idle_notes(first) == []
    later = memory.Idle(used=GIB + 310 * MIB, waited_s=7.5, moved=0, foreign={})
    assert rung._idle_notes(later) == [
        "Waited 7.5 s for a stable idle value.",
        "The idle value lies 310 MiB above the one before the first window.",
    ]


def test_a_containers_limit_is_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n")
    monkeypatch.setattr(memory, "CGROUPS", ())
    assert memory.room(meminfo) == memory.Room(used=2 * GIB, left=6 * GIB, total=8 * GIB)
    (tmp_path / "max").write_text(f"{2 * GIB}\n")
    (tmp_path / "current").write_text(f"{GIB}\n")
    monkeypatch.setattr(memory, "CGROUPS", ((tmp_path / "max", tmp_path / "current"),))
    assert memory.room(meminfo).left == GIB
    (tmp_path / "max").write_text("max\n")
    assert memory.room(meminfo).left == 6 * GIB
