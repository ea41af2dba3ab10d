"""The guard: load is charged to the right process, ours is left out, and a step that was disturbed is discarded and repeated."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from homestretch.lab.guard import Guard
from homestretch.lab.load import Graphics, Seen, foreign, processes, trees
from homestretch.lab.records import RunFolder
from homestretch.lab.types import GuardSample, ProcessLoad


def seen(name: str, parent: int, own: float, reaped: float = 0.0) -> Seen:
    return Seen(name=name, parent=parent, own_s=own, reaped_s=reaped)


def test_only_what_is_outside_our_trees_is_foreign() -> None:
    before = {
        1: seen("init", 0, 1),
        10: seen("lab", 1, 5),
        11: seen("fake", 10, 5),
        20: seen("server", 1, 9),
        30: seen("browser", 1, 2),
    }
    after = {
        **before,
        10: seen("lab", 1, 5.4),
        11: seen("fake", 10, 5.5),
        21: seen("worker", 20, 0.4),
        30: seen("browser", 1, 2.2),
        31: seen("tab", 30, 0.1),
    }
    ours = trees(after, [10, 20])
    assert ours == {10, 11, 20, 21}
    assert foreign(before, after, ours, 0.5) == [
        ProcessLoad(name="browser", pid=30, cpu_pct=40.0),
        ProcessLoad(name="tab", pid=31, cpu_pct=20.0),
    ]


def test_processes_that_came_and_went_are_charged_to_who_waited_for_them() -> None:
    before = {5: seen("make", 1, 1.0, 10.0), 6: seen("cc", 5, 3.0), 7: seen("cc1", 6, 20.0)}
    after = {5: seen("make", 1, 1.0, 10.0 + 3.0 + 20.0 + 0.4)}
    (load,) = foreign(before, after, set(), 0.5)
    assert (load.name, load.cpu_pct) == ("make", 80.0)


def test_proc_is_read_with_odd_names(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_bytes(
        b"7 (a) b (c) S 3 7 7 0 -1 0 0 0 0 0 %d %d %d 0 20 0 1 0 0\n" % (2 * tick, tick, 4 * tick)
    )
    (tmp_path / "self").mkdir()
    (tmp_path / "8").mkdir()
    assert processes(tmp_path) == {7: Seen(name="a) b (c", parent=3, own_s=3.0, reaped_s=4.0)}


def test_this_process_is_seen_by_the_real_reader() -> None:
    mine = processes()[os.getpid()]
    assert mine.own_s > 0
    assert mine.parent == os.getppid()


def test_a_gpu_tells_load_clock_throttling_and_foreign_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = SimpleNamespace
    stub = one(
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: "gpu",
        nvmlDeviceGetUtilizationRates=lambda handle: one(gpu=97),
        nvmlDeviceGetClockInfo=lambda handle, kind: 2200,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x04 | 0x40,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [one(pid=20), one(pid=30)],
        nvmlDeviceGetProcessUtilization=lambda handle, since: [
            one(pid=20, smUtil=60, timeStamp=5),
            one(pid=30, smUtil=31, timeStamp=7),
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", stub)
    graphics = Graphics()
    assert graphics.look({20}, {30: "game"}) == {
        "gpu_pct": 97.0,
        "clock_mhz": 2200.0,
        "gpu_foreign": ["game"],
        "throttled": "power cap; too hot (hardware)",
    }
    assert graphics.foreign({20}, {30: "game"}) == [ProcessLoad(name="game on the GPU", pid=30, cpu_pct=31.0)]


def judged(tmp_path: Path, samples: list[GuardSample], *, allow: bool = False) -> str:
    guard = Guard(tmp_path, lab_pid=os.getpid(), allow_load=allow)
    guard._samples = samples
    return guard.judge(10.0, 11.0)


def sample(mono: float, pct: float) -> GuardSample:
    return GuardSample(at="", mono=mono, foreign=[ProcessLoad(name="updater", pid=1, cpu_pct=pct)])


def test_the_limit_is_a_quarter_of_one_core_in_any_half_second_of_the_step(tmp_path: Path) -> None:
    quiet = [sample(9.9, 90.0), sample(10.4, 25.0), sample(10.9, 3.0), sample(11.4, 25.0), sample(11.9, 90.0)]
    assert judged(tmp_path, quiet) == ""
    busy = [*quiet[:2], sample(10.9, 25.6), *quiet[3:]]
    assert judged(tmp_path, busy) == "load: updater used 26 % of one core (limit 25 %)"
    assert judged(tmp_path, busy, allow=True) == ""


def scene(folder: Path, burn_s: float) -> RunFolder:
    """A decode run of four two-second steps; a foreign process burns one core once the first has begun. See guard_scene.py.

    Where bubblewrap is installed the scene plays in a process namespace of its own, so that other work on this machine is unseen.
    """
    command = [sys.executable, str(Path(__file__).with_name("guard_scene.py")), str(folder), str(burn_s)]
    apart = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent"]
    if shutil.which("bwrap") and subprocess.run([*apart, "true"], capture_output=True, check=False).returncode == 0:
        command = [*apart, *command]
    subprocess.run(command, check=True, timeout=150, capture_output=True)
    return RunFolder.open(folder)


@pytest.mark.timing
def test_a_process_that_burns_a_core_discards_the_step_it_disturbs(tmp_path: Path) -> None:
    run = scene(tmp_path / "disturbed", 3.0)
    records = run.requests("decode")
    discarded = [record for record in records if record.discarded]
    assert 1 <= len(discarded) <= 3, [record.discarded for record in records]
    assert all(record.discarded.startswith("load: python") for record in discarded)
    assert run.result().parts["decode"].state == "done"
    assert run.steps_done("decode") == {"warmup-1", "code-1", "code-2", "prose-1", "prose-2"}
    for step in {record.step for record in discarded}:
        attempts = [record for record in records if record.step == step]
        assert [bool(record.discarded) for record in attempts] == [True] * (len(attempts) - 1) + [False]
        assert [record.attempt for record in attempts] == list(range(1, len(attempts) + 1))
    assert any(load.cpu_pct > 25 for one in run.guard_samples() if one.step for load in one.foreign)
    summary = run.result().parts["decode"].guard
    assert summary is not None
    assert (summary.steps, summary.discarded) == (4, len(discarded))


@pytest.mark.timing
def test_without_load_no_step_is_discarded(tmp_path: Path) -> None:
    for attempt in (1, 2):
        run = scene(tmp_path / f"quiet-{attempt}", 0.0)
        discarded = [record.discarded for record in run.requests("decode") if record.discarded]
        if not discarded:
            break
    assert not discarded, f"this machine was not quiet: {run.result().parts['decode'].guard}"
