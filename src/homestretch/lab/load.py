"""Samples foreign load in a process of its own: CPU by process every half second, GPU by NVML, clocks and throttling."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from homestretch.lab.types import GuardSample, ProcessLoad, Record

GUARD_S = 0.5
QUIET_S = 10.0
NAMED = 5  # processes named a sample
WORTH_NAMING_PCT = 1.0


class Order(Record, frozen=True, kw_only=True):
    """A line on the sampler's standard input: which server trees are not foreign, and which step runs."""

    server_pids: list[int] | None = None
    step: str | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """CPU seconds of a process: its own, and those of children that it has waited for."""

    name: str
    parent: int
    own_s: float
    reaped_s: float


def processes(proc: Path = Path("/proc")) -> dict[int, Seen]:
    """Every process there is. On Linux straight from /proc (3 ms for 300), else by psutil, which knows no reaped children."""
    if not proc.exists():
        found = {}
        for process in psutil.process_iter(["name", "ppid", "cpu_times"]):
            times = process.info["cpu_times"]
            if times is not None:
                own = times.user + times.system
                found[process.pid] = Seen(
                    name=process.info["name"] or "", parent=process.info["ppid"] or 0, own_s=own, reaped_s=0.0
                )
        return found
    tick = 1.0 / os.sysconf("SC_CLK_TCK")
    found = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            data = (proc / entry / "stat").read_bytes()
        except OSError:
            continue
        name = data[data.find(b"(") + 1 : data.rfind(b")")].decode(errors="replace")
        fields = data[data.rfind(b")") + 2 :].split()
        user, system, child_user, child_system = (int(field) * tick for field in fields[11:15])
        found[int(entry)] = Seen(name=name, parent=int(fields[1]), own_s=user + system, reaped_s=child_user + child_system)
    return found


def trees(seen: dict[int, Seen], roots: Iterable[int]) -> set[int]:
    """The roots and all below them."""
    children: dict[int, list[int]] = {}
    for pid, process in seen.items():
        children.setdefault(process.parent, []).append(pid)
    found, todo = set(), [pid for pid in roots if pid]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


def foreign(before: dict[int, Seen], after: dict[int, Seen], ours: set[int], seconds: float) -> list[ProcessLoad]:
    """Load between two looks, percent of one core, of every process outside `ours`, heaviest first.

    A process that came and went between the looks is charged to its parent, by the CPU time that the parent has since reaped.
    """
    gone: dict[int, float] = {}  # what the nearest surviving ancestor reaps of processes that were charged while they lived
    for pid, process in before.items():
        if pid not in after:
            ancestor = process.parent
            while ancestor not in after and ancestor in before:
                ancestor = before[ancestor].parent
            gone[ancestor] = gone.get(ancestor, 0.0) + process.own_s + process.reaped_s
    loads = []
    for pid, process in after.items():
        if pid in ours:
            continue
        earlier = before.get(pid)
        used = process.own_s - (earlier.own_s if earlier else 0.0)
        if earlier is not None:
            used += max(0.0, process.reaped_s - earlier.reaped_s - gone.get(pid, 0.0))
        percent = 100.0 * used / seconds
        if percent >= WORTH_NAMING_PCT:
            loads.append(ProcessLoad(name=process.name, pid=pid, cpu_pct=round(percent, 1)))
    return sorted(loads, key=lambda load: -load.cpu_pct)[:NAMED]


class Graphics:
    """What NVML tells of the GPUs; silent where there is none."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._seen_us = 0
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except Exception:  # noqa: BLE001 - no driver, no library, no permission: all mean "no GPU to watch"
            self._handles = []

    def foreign(self, ours: set[int], names: dict[int, str]) -> list[ProcessLoad]:
        """Foreign use of a GPU's cores by process since the last look, as percent of the GPU; [] where the driver does not tell."""
        loads = []
        for handle in self._handles:
            try:
                samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us)
            except Exception:  # noqa: BLE001 - no sample since then, or not offered
                continue
            for sample in samples:
                self._seen_us = max(self._seen_us, int(sample.timeStamp))
                if sample.pid not in ours and sample.smUtil >= WORTH_NAMING_PCT:
                    name = f"{names.get(sample.pid, 'a process')} on the GPU"
                    loads.append(ProcessLoad(name=name, pid=int(sample.pid), cpu_pct=float(sample.smUtil)))
        return loads

    def look(self, ours: set[int], names: dict[int, str]) -> dict[str, Any]:
        """Fields of a GuardSample: utilization, clock, throttle reasons, and foreign processes that hold the GPU."""
        if not self._handles:
            return {}
        found: dict[str, Any] = {"gpu_pct": 0.0, "gpu_foreign": [], "throttled": ""}
        nvml = self._nvml
        for handle in self._handles:
            try:
                found["gpu_pct"] = max(found["gpu_pct"], float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
                found["clock_mhz"] = float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
                reasons = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
                found["throttled"] = "; ".join(name for bit, name in THROTTLES.items() if reasons & bit)
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.pid not in ours:
                        found["gpu_foreign"].append(names.get(process.pid, f"process {process.pid}"))
            except Exception:  # noqa: BLE001 - a reading the device does not offer
                continue
        return found


THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}


def cpu_clock_mhz(cpus: Path = Path("/sys/devices/system/cpu")) -> float | None:
    """The mean current CPU clock, where the kernel tells."""
    readings = []
    for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        try:
            readings.append(int(path.read_text()) / 1000.0)
        except (OSError, ValueError):
            continue
    return sum(readings) / len(readings) if readings else None


def cpu_throttles(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """How often any core was slowed for heat since boot, where the kernel counts it."""
    total = 0
    for path in cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            total += int(path.read_text())
        except (OSError, ValueError):
            continue
    return total


class Sampler:
    """Writes `guard.jsonl` every half second and `quiet.jsonl` every ten, until standard input ends."""

    def __init__(self, folder: Path, lab_pid: int) -> None:
        self.folder, self.lab_pid = folder, lab_pid
        self.server_pids: list[int] = []
        self.step = ""  # the last one that ran in the half second, even if it has ended since
        self.step_ended = False
        self.graphics = Graphics()
        self.throttles = cpu_throttles()

    def sample(self, before: dict[int, Seen], after: dict[int, Seen], seconds: float) -> GuardSample:
        from homestretch.lab.records import now

        ours = trees(after, [self.lab_pid, *self.server_pids])
        names = {pid: process.name for pid, process in after.items()}
        fields: dict[str, Any] = self.graphics.look(ours, names)
        loads = foreign(before, after, ours, seconds) + self.graphics.foreign(ours, names)
        throttles = cpu_throttles()
        if throttles > self.throttles and not fields.get("throttled"):
            fields["throttled"] = "a core was too hot"
        self.throttles = throttles
        if fields.get("clock_mhz") is None and (clock := cpu_clock_mhz()) is not None:
            fields["clock_mhz"] = round(clock)
        return GuardSample(
            at=now(),
            mono=round(time.perf_counter(), 4),
            step=self.step,
            foreign=sorted(loads, key=lambda load: -load.cpu_pct)[:NAMED],
            available_bytes=psutil.virtual_memory().available,
            **fields,
        )

    def run(self) -> None:
        encode = msgspec.json.Encoder().encode
        last = quiet_last = processes()
        last_at = quiet_at = time.perf_counter()
        buffer = b""
        with (self.folder / "guard.jsonl").open("ab") as guard, (self.folder / "quiet.jsonl").open("ab") as quiet:
            while True:
                ready, _, _ = select.select([sys.stdin.fileno()], [], [], max(0.0, last_at + GUARD_S - time.perf_counter()))
                ended = False
                if ready:
                    data = os.read(sys.stdin.fileno(), 65536)
                    ended = not data
                    *lines, buffer = (buffer + data).split(b"\n")
                    for line in lines:
                        self._obey(msgspec.json.decode(line, type=Order))
                now_s = time.perf_counter()
                if now_s - last_at >= GUARD_S or ended:
                    seen = processes()
                    if now_s - last_at >= 0.1:
                        guard.write(encode(self.sample(last, seen, now_s - last_at)) + b"\n")
                        guard.flush()
                        if self.step_ended:
                            self.step, self.step_ended = "", False
                    last, last_at = seen, now_s
                    if now_s - quiet_at >= QUIET_S or ended:
                        if now_s - quiet_at >= 1.0:
                            quiet.write(encode(self.sample(quiet_last, seen, now_s - quiet_at)) + b"\n")
                        quiet_last, quiet_at = seen, now_s
                        for file in (guard, quiet):
                            file.flush()
                            os.fsync(file.fileno())
                if ended:
                    return

    def _obey(self, order: Order) -> None:
        if order.server_pids is not None:
            self.server_pids = order.server_pids
        if order.step is not None:
            self.step, self.step_ended = order.step or self.step, not order.step


if __name__ == "__main__":
    Sampler(Path(sys.argv[1]), int(sys.argv[2])).run()
