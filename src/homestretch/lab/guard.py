"""The guard: was another program busy while a step ran? Judges steps by the samples that `load` takes in its own process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from homestretch.lab.errors import LabError
from homestretch.lab.load import GUARD_S, Order
from homestretch.lab.types import GuardSample

LIMIT_PCT = 25.0
WAIT_S = 5.0


class Watched:
    """The time of one step; `verdict` after it has ended."""

    def __init__(self, guard: Guard, began: float) -> None:
        self._guard, self.began, self.ended = guard, began, 0.0

    def verdict(self) -> str:
        """Why the step does not count, "" when nothing disturbed it (or load is allowed)."""
        self.ended = self.ended or time.perf_counter()
        return self._guard.judge(self.began, self.ended)


class Guard:
    """Samples into a run folder from entering to leaving. allow_load: samples are kept, but discard nothing."""

    def __init__(self, folder: Path, *, lab_pid: int, allow_load: bool = False) -> None:
        self.folder, self.lab_pid, self.allow_load = folder, lab_pid, allow_load
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._samples: list[GuardSample] = []
        self._offset = 0

    def __enter__(self) -> Guard:
        path = self.folder / "guard.jsonl"
        self._offset = path.stat().st_size if path.exists() else 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "homestretch.lab.load", str(self.folder), str(self.lab_pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def server(self, pids: Sequence[int]) -> None:
        """These process trees are the measured server; their load is not foreign."""
        self._order(Order(server_pids=list(pids)))

    @contextmanager
    def watch(self, step: str) -> Iterator[Watched]:
        self._order(Order(step=step))
        watched = Watched(self, time.perf_counter())
        try:
            yield watched
        finally:
            watched.ended = time.perf_counter()
            self._order(Order(step=""))

    def judge(self, began: float, ended: float) -> str:
        """The heaviest foreign load in any half second that touches the step, if it is over the limit."""
        if self.allow_load:
            return ""
        samples = self.samples_of(began, ended)
        worst = max((load for sample in samples for load in sample.foreign), key=lambda load: load.cpu_pct, default=None)
        if worst is not None and worst.cpu_pct > LIMIT_PCT:
            return f"load: {worst.name} used {worst.cpu_pct:.0f} % of one core (limit {LIMIT_PCT:.0f} %)"
        return ""

    def samples_of(self, began: float, ended: float) -> list[GuardSample]:
        """Samples whose half second touches [began, ended]; waits until the last of them is there."""
        deadline = time.perf_counter() + WAIT_S
        while True:
            with self._lock:
                self._read()
                if self._samples and self._samples[-1].mono >= ended:
                    return [sample for sample in self._samples if sample.mono > began and sample.mono - GUARD_S < ended]
            if self._process is None or self._process.poll() is not None or time.perf_counter() > deadline:
                raise LabError(
                    "the load guard has stopped; the step cannot be judged. Look at guard.jsonl, then go on with --resume"
                )
            time.sleep(0.02)

    def _read(self) -> None:
        path = self.folder / "guard.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        decoder = msgspec.json.Decoder(GuardSample)
        self._samples += [decoder.decode(line) for line in data[:end].splitlines()]
        self._offset += end
        self._samples = self._samples[-20_000:]

    def _order(self, order: Order) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with self._lock:
            try:
                process.stdin.write(msgspec.json.encode(order) + b"\n")
                process.stdin.flush()
            except OSError:
                return
