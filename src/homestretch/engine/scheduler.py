"""Who reads next and how much, and how time is shared between prompts and running replies: decisions only, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST_PIECE = 2048
"""Prompt tokens of one piece at most: what is read between two rounds."""

PATIENCE = 4
"""A prompt that was passed over this often is read next, the longest waiting first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt that is being read: tokens left, how often others were preferred to it since its last piece, its arrival number."""

    left: int
    passed: int
    arrival: int
    priority: int = 0


def pick(prompts: Sequence[Prompt]) -> int:
    """Index of the prompt to read a piece of: lower priority number first, then fewest tokens left; but patience ends waiting."""
    waited = [i for i, p in enumerate(prompts) if p.passed >= PATIENCE]
    if waited:
        return min(waited, key=lambda i: (-prompts[i].passed, prompts[i].arrival))
    return min(range(len(prompts)), key=lambda i: (prompts[i].priority, prompts[i].left, prompts[i].arrival))


def piece_end(*, start: int, length: int, stops: Sequence[int], quantum: int, tokens_per_s: float, budget_s: float) -> int:
    """Where the next piece of a prompt ends.

    start (a multiple of quantum) < length. The piece takes about `budget_s` at the measured speed (0 = unknown: one quantum), at
    least a quantum, at most LARGEST_PIECE, and ends at the next of `stops` (multiples of quantum) that it would pass.
    """
    afford = int(tokens_per_s * budget_s) // quantum * quantum
    end = min(start + max(quantum, min(afford, LARGEST_PIECE)), length)
    return min((stop for stop in stops if start < stop < end), default=end)


class Share:
    """Time that prompts owe to running replies: after a piece of t seconds, replies get `share` * t before the next piece."""

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._owed_s = 0.0

    def may_read(self, *, replies: bool) -> bool:
        """Whether a prompt piece may be read now."""
        if not replies:
            self._owed_s = 0.0
        return self._owed_s <= 0.0

    def read_for(self, seconds: float) -> None:
        """A piece was read while replies waited."""
        self._owed_s += self._share * seconds

    def replied_for(self, seconds: float) -> None:
        """Replies went on for so long."""
        self._owed_s = max(0.0, self._owed_s - seconds)
