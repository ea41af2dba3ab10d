"""The race in a terminal while it runs: course, targets, the stopwatch against the buzzer; plain lines when piped."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from homestretch.lab.game.course import LOOP_MS, RANGES, seconds
from homestretch.lab.game.files import Event, Lane
from homestretch.lab.game.tasks import TARGETS, find

BAR = 24
TOLD = {"start", "sent", "answer", "buzzer", "error", "loops", "range", "finish", "void"}


class LiveRace:
    """Feed it every event of the log; use it as a context."""

    def __init__(self, lane: Lane, console: Console) -> None:
        self.lane, self.console = lane, console
        self._events: list[Event] = []
        self._sent_at: float | None = None
        self._live = Live(self, console=console, refresh_per_second=8, transient=False) if console.is_terminal else None

    def __enter__(self) -> LiveRace:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._sent_at = None
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        self._events.append(event)
        self._sent_at = time.monotonic() if event.kind == "sent" else None
        if self._live is None and event.kind in TOLD:
            where = f"range {event.range}: " if event.range else ""
            word = {"sent": "thinking about ", "loops": "penalty loops: ", "void": "void: ", "finish": "finish: "}.get(
                event.kind, ""
            )
            self.console.print(f"gauntlet {where}{word}{event.text}", markup=False)

    def __rich__(self) -> Group:
        mode = "on" if self.lane.thinking else "off"
        head = Text(f"The Gauntlet, season {self.lane.season}, thinking {mode}: {self.lane.model}", style="bold")
        table = Table("#", "task", "targets", "thinking", "buzzer at", "penalty loops", "range", box=None, pad_edge=False)
        for at, limit_ms in zip(RANGES, self.lane.buzzers_ms, strict=True):
            mine = [event for event in self._events if event.range == at.number]
            found = {event.kind: event for event in mine}
            thought = found.get("buzzer") or found.get("answer") or found.get("error")
            name = Text(f"{find(at.task).title} ({find(at.task).kind}, level {at.level})")
            if "sent" in found and thought is None and self._sent_at is not None:
                spent = min(1.0, (time.monotonic() - self._sent_at) * 1000 / limit_ms)
                clock = f"{spent * limit_ms / 1000:6.1f} s "
                thinking = Text(clock + "█" * round(spent * BAR) + "·" * (BAR - round(spent * BAR)), style="yellow")
            else:
                thinking = Text(thought.text if thought else "", style="red" if thought and thought.kind != "answer" else "")
            targets = Text()
            shots = [event for event in mine if event.kind == "shot"]
            for number in range(TARGETS):
                if number < len(shots):
                    targets.append("● " if shots[number].hit else "✕ ", style="green" if shots[number].hit else "red")
                else:
                    targets.append("○ ", style="dim")
            loops = found["loops"].text if "loops" in found else "0" if "range" in found else f"{LOOP_MS[at.level] // 1000} s each"
            done = found["range"].text.rsplit(", ", 1)[1] if "range" in found else ""
            style = "" if "sent" in found else "dim"
            table.add_row(str(at.number), name, targets, thinking, f"{seconds(limit_ms)} s", loops, done, style=style)
        clocks = [event.course_ms for event in self._events if event.course_ms is not None]
        last = self._events[-1] if self._events else None
        told = f"finish {last.text}" if last and last.kind == "finish" else f"race clock {seconds(clocks[-1] if clocks else 0)} s"
        if last and last.kind == "void":
            told = f"void: {last.text}"
        return Group(head, self._track(), table, Text(told, style="bold"))

    def _track(self) -> Text:
        """Start to finish in one line; passed ranges are filled."""
        passed = {event.range for event in self._events if event.kind == "range"}
        at = max((event.range for event in self._events), default=0)
        line = Text("start ")
        for stop in RANGES:
            line.append("━━━━━━━━" if at >= stop.number else "┄┄┄┄┄┄┄┄", style="cyan" if at >= stop.number else "dim")
            mark = "◉" if stop.number in passed else "◎" if at == stop.number else "○"
            line.append(f" {mark} ", style="bold" if at == stop.number else "")
        finished = any(event.kind == "finish" for event in self._events)
        line.append("━━━━━━━━ finish" if finished else "┄┄┄┄┄┄┄┄ finish", style="cyan" if finished else "dim")
        return line
