"""Progress of a run: each step, how far, how long still; a live bar in a terminal, plain lines when piped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """Steps of a run are announced with `plan`; rate and time left are judged from the pace of each part so far.

    Pace is elapsed time over steps done, so that steps which run at once are not counted one after the other.
    """

    def __init__(self, stream: IO[str] | None = None, *, quiet: bool = False) -> None:
        self.console = Console(file=stream, stderr=stream is None, quiet=quiet, highlight=False, soft_wrap=True)
        self._live = self.console.is_terminal and not quiet
        self._lock = threading.Lock()
        self._planned: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._resumed: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self._until: dict[str, float] = {}
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        if self._live:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[left]}"),
                TimeElapsedColumn(),
            )
            self._bar = Bar(*columns, console=self.console, transient=True, refresh_per_second=2)
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None, left="")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @contextmanager
    def paused(self) -> Iterator[Console]:
        """The console for a view of its own; the bar is put away meanwhile."""
        if self._bar is not None:
            self._bar.stop()
        try:
            yield self.console
        finally:
            if self._bar is not None:
                self._bar.start()

    def plan(self, part: str, steps: int) -> None:
        with self._lock:
            self._planned[part] = steps
            self._done.setdefault(part, 0)

    def say(self, text: str) -> None:
        """A line that stays: what happens now, outside of steps."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text)
        self.console.print(text, markup=False)

    note = say

    def start(self, part: str, step: str, attempt: int = 1) -> None:
        with self._lock:
            if not step.startswith("warmup"):
                self._began.setdefault(part, time.monotonic())
            text = self._text(part, step, attempt)
        if self._bar is not None and self._task is not None:
            total = sum(self._planned.values())
            done = sum(self._done.values())
            self._bar.update(self._task, description=text, total=total or None, completed=done, left=self.left())
        else:
            left = self.left()
            self.console.print(f"{text}{', ' + left if left else ''}", markup=False)

    def advance(self, part: str, step: str, *, resumed: bool = False) -> None:
        if step.startswith("warmup"):
            return
        with self._lock:
            self._done[part] = self._done.get(part, 0) + 1
            if resumed:
                self._resumed[part] = self._resumed.get(part, 0) + 1
            elif part in self._began:
                self._until[part] = time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=sum(self._done.values()), left=self.left())

    def left(self) -> str:
        """Rate of the part in hand and the time left, in words; "" while no step has been measured."""
        with self._lock:
            measured = {part: self._done[part] - self._resumed.get(part, 0) for part in self._done}
            known = {p: (self._until[p] - self._began[p]) / n for p, n in measured.items() if n and p in self._until}
            if not known:
                return ""
            mean = sum(known.values()) / len(known)
            left = sum((self._planned.get(p, 0) - self._done.get(p, 0)) * known.get(p, mean) for p in self._planned)
            newest = max(known, key=lambda part: self._until[part])
        pace = f"{60 / known[newest]:.0f} a minute, " if known[newest] > 0 and self._planned.get(newest, 0) >= 20 else ""
        if left < 90:
            return f"{pace}about {max(0, round(left))} s left"
        return f"{pace}about {round(left / 60)} min left"

    def _text(self, part: str, step: str, attempt: int) -> str:
        if step.startswith("warmup"):
            return f"{part}: {step}"
        total, done = self._planned.get(part, 0), self._done.get(part, 0)
        of = f" {done + 1} of {total}" if total else ""
        return f"{part}{of}: {step}{f', attempt {attempt}' if attempt > 1 else ''}"
