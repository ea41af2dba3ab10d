"""Draws made from SHA-256 alone: the same numbers on every machine, Python and day."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """An endless row of draws named by its key: block n is SHA-256("KEY/n"), read as four 64-bit numbers."""

    def __init__(self, key: str) -> None:
        self._key, self._block, self._waiting = key, 0, []  # type: tuple[str, int, list[int]]

    def bits(self) -> int:
        """The next 64 bits."""
        if not self._waiting:
            digest = hashlib.sha256(f"{self._key}/{self._block}".encode()).digest()
            self._waiting = [int.from_bytes(digest[at : at + 8], "big") for at in (24, 16, 8, 0)]
            self._block += 1
        return self._waiting.pop()

    def below(self, bound: int) -> int:
        """0 to bound - 1, each equally likely: draws beyond the last whole multiple are thrown away."""
        limit = (1 << 64) - (1 << 64) % bound
        while (value := self.bits()) >= limit:
            pass
        return value % bound

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def share(self) -> float:
        """In [0, 1), with 53 bits."""
        return (self.bits() >> 11) / (1 << 53)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Fisher and Yates, from the end."""
        mixed = list(items)
        for last in range(len(mixed) - 1, 0, -1):
            other = self.below(last + 1)
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        return self.shuffled(items)[:count]


def fixed(rows: Sequence[str], count: int, key: str) -> list[str]:
    """The `count` row ids with the smallest SHA-256("KEY/ROW"), in the order of `rows`: a fixed choice anyone can redo."""
    chosen = set(sorted(rows, key=lambda row: hashlib.sha256(f"{key}/{row}".encode()).digest())[:count])
    return [row for row in rows if row in chosen]
