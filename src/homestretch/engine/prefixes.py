"""Kept prompt states: which positions of a prompt to keep, the longest one a new prompt can start from, and eviction by bytes."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from homestretch.engine.types import Mark

GRID = 2048
"""Distance of the marks that every long prompt leaves behind, whatever its text means."""


def chain(prompt: Sequence[int], quantum: int) -> tuple[bytes, ...]:
    """Names of the prompt's prefixes: entry k names the first (k + 1) * quantum ids (SHA-256 over the entry before and the ids)."""
    names: list[bytes] = []
    last = b""
    for end in range(quantum, len(prompt) + 1, quantum):
        last = hashlib.sha256(last + array("L", prompt[end - quantum : end]).tobytes()).digest()
        names.append(last)
    return tuple(names)


def stops(length: int, wanted: Iterable[int], quantum: int, grid: int = GRID) -> tuple[int, ...]:
    """Positions worth keeping in a prompt of `length` ids, ascending: those wanted, the grid, and the last one that a repetition
    of the same prompt can use; all floored to `quantum`, none at 0 (at least one id must be left to read)."""
    positions = {min(position, length - 1) // quantum * quantum for position in wanted}
    positions.update(range(grid // quantum * quantum, length, grid // quantum * quantum))
    positions.add((length - 1) // quantum * quantum)
    return tuple(sorted(position for position in positions if position > 0))


class Prefixes:
    """Marks by the name of the prefix they stand for, least recently used first."""

    def __init__(self, *, limit_bytes: int, quantum: int, drop: Callable[[Mark], None]) -> None:
        self._limit_bytes, self._quantum, self._drop = limit_bytes, quantum, drop
        self._marks: OrderedDict[bytes, Mark] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def enabled(self) -> bool:
        return self._limit_bytes > 0

    def best(self, names: Sequence[bytes], length: int) -> Mark | None:
        """The longest kept prefix of a prompt of `length` ids that leaves at least one id to read."""
        usable = min(len(names), (length - 1) // self._quantum)
        for name in reversed(names[:usable]):
            mark = self._marks.get(name)
            if mark is not None:
                self._marks.move_to_end(name)
                return mark
        return None

    def has(self, name: bytes) -> bool:
        """Whether a prefix is kept; asking counts as a use."""
        if name in self._marks:
            self._marks.move_to_end(name)
            return True
        return False

    def put(self, name: bytes, mark: Mark) -> None:
        """Keep a mark, and drop the least recently used ones beyond the limit (itself, if it alone is beyond it)."""
        self._marks[name] = mark
        self.bytes += mark.bytes
        while self.bytes > self._limit_bytes:
            self.evict()

    def evict(self) -> bool:
        """Drop the least recently used mark; False when there is none."""
        if not self._marks:
            return False
        _, mark = self._marks.popitem(last=False)
        self.bytes -= mark.bytes
        self._drop(mark)
        return True
