"""Memory of the machine and of a server's process tree while a step runs: idle value, samples, mapped files, intruders, a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from homestretch.lab import machine
from homestretch.lab.load import processes, trees

MIB = 1 << 20
GIB = 1 << 30
SAMPLE_S = 0.025  # the promise is one at least every 100 ms, also on a busy machine
TREE_S = 0.5
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


@dataclass(frozen=True, kw_only=True)
class Room:
    """used: MemTotal − MemAvailable; left: what can still be taken before this machine (or its container) kills a process."""

    used: int
    left: int
    total: int


def room(meminfo: Path = Path("/proc/meminfo")) -> Room:
    """One reading of /proc/meminfo, narrowed by a container's own limit where there is one (bytes)."""
    if not meminfo.exists():
        import psutil

        told = psutil.virtual_memory()
        return Room(used=int(told.total - told.available), left=int(told.available), total=int(told.total))
    values: dict[str, int] = {}
    for line in meminfo.read_text().splitlines()[:5]:
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    total, available = values["MemTotal"], values["MemAvailable"]
    left = available
    for limit, usage in CGROUPS:
        with contextlib.suppress(OSError, ValueError):
            left = min(left, int(limit.read_text()) - int(usage.read_text()))
    return Room(used=total - available, left=max(0, left), total=total)


@dataclass(frozen=True, kw_only=True)
class TreeMemory:
    """Proportional set size of a process tree: a page shared by n processes counts 1/n in each. file: what mapped files hold."""

    pss: int
    file: int


def tree_memory(pids: Sequence[int]) -> TreeMemory:
    """Summed over processes from /proc/PID/smaps_rollup; resident size where the system has no such file (bytes)."""
    pss = mapped = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            if not Path("/proc").exists():
                pss += machine.tree_bytes(pid)
            continue
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            if name == "Pss":
                pss += int(rest.split()[0]) * 1024
            elif name == "Pss_File":
                mapped += int(rest.split()[0]) * 1024
    return TreeMemory(pss=pss, file=mapped)


def mapped_files(pids: Sequence[int], least: int = 16 * MIB) -> dict[str, int]:
    """Name → PSS of each mapped file that holds `least` bytes or more in these processes, largest first."""
    found: dict[str, int] = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        name = ""
        for line in lines:
            head, _, rest = line.partition(":")
            if "-" in head.split(" ")[0] and " " in head:
                words = line.split(None, 5)
                name = Path(words[5]).name if len(words) == 6 and words[5].startswith("/") else ""
            elif head == "Pss" and name:
                found[name] = found.get(name, 0) + int(rest.split()[0]) * 1024
    return dict(sorted(((n, size) for n, size in found.items() if size >= least), key=lambda item: -item[1]))


def resident() -> dict[int, int]:
    """Resident bytes of every process; file-backed pages are left out, since nobody's rise of MemAvailable comes from them."""
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
    found = {}
    for entry in Path("/proc").iterdir() if Path("/proc").exists() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = (entry / "statm").read_text().split()
                found[int(entry.name)] = max(0, int(words[1]) - int(words[2])) * page
    return found


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A stable idle value: median of `used` over the last window. foreign: resident bytes of all processes then."""

    used: int
    waited_s: float
    moved: int
    foreign: dict[int, int]


def wait_idle(*, window_s: float, tolerance: int, patience_s: float, say: Callable[[str], None] = lambda text: None) -> Idle | None:
    """Wait until used memory stays within `tolerance` for `window_s`; None when it did not within `patience_s`."""
    began = told = time.monotonic()
    readings: list[tuple[float, int]] = []
    while True:
        now = time.monotonic()
        readings = [pair for pair in readings if pair[0] >= now - window_s]
        readings.append((now, room().used))
        values = [used for _, used in readings]
        moved = max(values) - min(values)
        if readings[0][0] <= now - 0.9 * window_s and moved <= tolerance:
            return Idle(used=int(statistics.median(values)), waited_s=now - began, moved=moved, foreign=resident())
        if now - began > patience_s:
            return None
        if now - told > 5.0:
            told = now
            say(f"waiting for a stable idle value: used memory moved by {moved / MIB:.0f} MiB in {window_s:g} s")
        time.sleep(SAMPLE_S)


@dataclass(frozen=True, kw_only=True)
class Intruder:
    """Another program whose own memory changed during a step; negative: it gave memory back."""

    name: str
    pid: int
    bytes: int


@dataclass(kw_only=True)
class Watch:
    """Samples from `start` to `stop`, in threads of its own. pid: the server's process as long as it lives.

    used: (seconds, bytes) maxima of half seconds. ceiling and spare bytes: when the rise comes to the ceiling or less than `spare`
    is left, the server is killed at once and `stopped` says so.
    tree: every process of the server that was seen, pid → start time.
    """

    idle: Idle
    pid: Callable[[], int | None]
    ceiling: int | None = None
    spare: int = 512 * MIB
    used: list[tuple[float, int]] = field(default_factory=list)
    peak: int = 0
    samples: int = 0
    longest_gap_s: float = 0.0
    tree_peak: int = 0
    tree_file: int = 0
    gpu_peak: int | None = None
    mapped: dict[str, int] = field(default_factory=dict)
    stopped: str = ""
    tree: dict[int, float] = field(default_factory=dict)
    _rises: dict[int, tuple[int, int]] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._sample, self._follow)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.look()
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _sample(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # where the account may, so that a busy machine does not delay samples
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -5)
        began = last = time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            reading = room()
            self.longest_gap_s = max(self.longest_gap_s, now - last)
            last = now
            self.samples += 1
            self.peak = max(self.peak, reading.used)
            bucket = int((now - began) / 0.5) * 0.5
            if self.used and self.used[-1][0] == bucket:
                self.used[-1] = (bucket, max(self.used[-1][1], reading.used))
            else:
                self.used.append((bucket, reading.used))
            rise = reading.used - self.idle.used
            if self.ceiling is not None and rise >= self.ceiling:
                self._kill(
                    f"used memory had risen by {rise / GIB:.2f} GiB, the limit is {self.ceiling / GIB:.2f} GiB (--limit-gib)"
                )
            elif reading.left < self.spare:
                self._kill(f"only {reading.left / GIB:.2f} GiB of memory were left, {self.spare / GIB:.2f} GiB are always spared")
            self._ended.wait(max(0.0, SAMPLE_S - (time.monotonic() - now)))

    def _kill(self, reason: str) -> None:
        pid = self.pid()
        if pid is not None and not self.stopped:
            self.stopped = f"stopped by the lab: {reason}"
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _follow(self) -> None:
        while not self._ended.wait(TREE_S):
            self.look()

    def look(self) -> None:
        """The tree's own memory, and everybody else's, now."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        seen = processes()
        root = self.pid()
        ours = trees(seen, [root]) if root is not None else set()
        for pid in ours - set(self.tree):
            if (started := started_at(pid)) is not None:
                self.tree[pid] = started
        told = tree_memory(sorted(ours))
        if told.pss > self.tree_peak:
            self.tree_peak, self.tree_file = told.pss, told.file
            if told.file >= 16 * MIB:
                self.mapped = mapped_files(sorted(ours))
        gpu = machine.gpu_bytes(ours) if ours else None
        if gpu is not None:
            self.gpu_peak = max(self.gpu_peak or 0, gpu)
        mine = trees(seen, [os.getpid()]) | set(self.tree)
        for pid, size in resident().items():
            if pid in mine:
                continue
            change = size - self.idle.foreign.get(pid, 0)
            low, high = self._rises.get(pid, (0, 0))
            self._rises[pid] = (min(low, change), max(high, change))
            self._names[pid] = seen[pid].name if pid in seen else self._names.get(pid, f"process {pid}")
        for pid, size in self.idle.foreign.items():
            if pid not in seen and pid not in mine:
                low, high = self._rises.get(pid, (0, 0))
                self._rises[pid] = (min(low, -size), high)

    def intruders(self, least: int) -> list[Intruder]:
        """Other programs whose own memory changed by `least` bytes or more, largest change first."""
        found = []
        for pid, (low, high) in self._rises.items():
            change = high if high >= -low else low
            if abs(change) >= least:
                found.append(Intruder(name=self._names.get(pid, f"process {pid}"), pid=pid, bytes=change))
        return sorted(found, key=lambda intruder: -abs(intruder.bytes))


def accelerated() -> bool:
    """Whether an accelerator is known here whose memory may be outside every process's own."""
    devices = (Path("/dev/kfd"), Path("/dev/dri"), Path("/dev/nvidia0"), Path("/dev/accel"))
    return sys.platform != "linux" or any(path.exists() for path in devices) or bool(machine.graphics())


def still_alive(tree: dict[int, float]) -> list[int]:
    """Of a server's former processes (pid → start time) those that live on; a reused number is not taken for one."""
    return [pid for pid, started in tree.items() if started_at(pid) == started]


def started_at(pid: int) -> float | None:
    """Start time of a process, None when it is gone (or waits to be reaped)."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None
