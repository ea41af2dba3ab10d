"""What rounds cost: windows and drafts as the backend measured them at load, corrected by what rounds really take."""

from __future__ import annotations

import math

from homestretch.engine.types import WindowCosts

TRUST = 0.1
"""Share of an observation's surprise that goes into its width, and again into all widths."""
CLIP = 0.7
"""Largest logarithm of a surprise that counts: a preempted thread is not a wide window."""


class Costs:
    """Seconds of a step by rows, of absorbing a round's rows into the head, and of each draft after that.

    A step of n rows is predicted as scale * shape(n). An observation moves both: its own width, because the shape may be wrong,
    and all widths, because the machine may be slower or faster than it was at load.
    """

    def __init__(self, measured: WindowCosts) -> None:
        self._rows = [max(0.0, seconds) for seconds in measured.rows]
        self._calibrated = bool(self._rows) and self._rows[0] > 0.0
        self._shift: dict[int, float] = {}
        self._scale = 0.0
        self._absorb_s: float | None = None
        self._draft_s = measured.draft

    def step_s(self, rows: int) -> float:
        """Seconds of a step of `rows` rows of all streams together."""
        return self._shape(rows) * math.exp(self._scale + self._shift.get(rows, 0.0))

    def _shape(self, rows: int) -> float:
        """As measured; beyond the widths measured it grows by the average of the second half's increments.

        Nothing measured: a row more costs a fiftieth of the first.
        """
        known = self._rows
        if not known or known[0] <= 0.0:
            return 1.0 + 0.02 * (rows - 1)
        if rows <= len(known):
            return known[rows - 1]
        half = len(known) // 2
        slope = max(0.0, (known[-1] - known[half]) / max(1, len(known) - 1 - half))
        return known[-1] + slope * (rows - len(known))

    @property
    def absorb_s(self) -> float:
        """Seconds of a call that only absorbs."""
        return self._draft_s if self._absorb_s is None else self._absorb_s

    @property
    def draft_s(self) -> float:
        """Seconds of one draft more."""
        return self._draft_s

    def stepped(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took so long, the core's own work included."""
        if seconds <= 0.0:
            return
        if not self._calibrated:
            self._scale, self._calibrated = math.log(seconds / self._shape(rows)), True
        surprise = TRUST * max(-CLIP, min(CLIP, math.log(seconds / self.step_s(rows))))
        self._scale += surprise
        self._shift[rows] = self._shift.get(rows, 0.0) + surprise

    def drafted(self, drafts: int, seconds: float) -> None:
        """A call of the head took so long for absorbing and `drafts` drafts."""
        if seconds <= 0.0:
            return
        if drafts == 0:
            self._absorb_s = seconds if self._absorb_s is None else self._absorb_s + TRUST * _clipped(self._absorb_s, seconds)
        elif self._draft_s <= 0.0:
            self._draft_s = seconds / (drafts + 1)
        else:
            each = max(0.1 * self._draft_s, (seconds - self.absorb_s) / drafts)
            self._draft_s += TRUST * _clipped(self._draft_s, each)


def _clipped(known: float, seen: float) -> float:
    return max(-known * CLIP, min(known * CLIP, seen - known))
