"""Keyed draws of the Gauntlet: integers alone, the same on every machine and Python version.

The key is SHA-256 of the labels joined by "/"; draw n is the SplitMix64 finaliser (Steele, Lea and Flood 2014) of the key's
first 64 bits + n times the golden ratio. Nothing here depends on hash randomisation, floats or the random module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
GAME = "gauntlet-1"


def mix64(x: int) -> int:
    """A bijection of 64-bit integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


class Draws:
    """A stream of draws for one (season, task, target, …). Two streams with the same labels give the same values."""

    def __init__(self, *labels: str | int) -> None:
        text = "/".join([GAME, *(str(label) for label in labels)])
        self._key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        self._count = 0

    def bits(self) -> int:
        """The next 64 bits."""
        self._count += 1
        return mix64((self._key + self._count * GOLDEN) & MASK64)

    def below(self, bound: int) -> int:
        """A uniform integer in 0 … bound − 1; draws that would favour low values are thrown away."""
        if bound < 1:
            raise ValueError(f"a draw below {bound}: the bound must be at least 1")
        room = (1 << 64) - (1 << 64) % bound
        while True:
            value = self.bits()
            if value < room:
                return value % bound

    def between(self, low: int, high: int) -> int:
        """A uniform integer in low … high, both included."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All items in a drawn order (Fisher–Yates)."""
        out = list(items)
        for last in range(len(out) - 1, 0, -1):
            at = self.below(last + 1)
            out[last], out[at] = out[at], out[last]
        return out

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items in a drawn order."""
        return self.shuffled(items)[:count]
