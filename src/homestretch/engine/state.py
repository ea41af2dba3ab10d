"""What a stream remembers: KV pages shared by reference count, recurrent states row by row, commit. Bookkeeping only, no tensors.

A page holds QUANTUM tokens of every KV slot of a model. Marks share the pages of the stream they were made from: a mark stands at
a multiple of QUANTUM, so its pages are full and nobody writes to them again (a backend that must, asks `own` first).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from homestretch.engine.program import QUANTUM

T = TypeVar("T")


class Pages:
    """A fixed number of pages, each free or held by one or more owners."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self, wanted: int) -> list[int] | None:
        """`wanted` free pages, each held once; None, and nothing taken, when there are fewer."""
        if wanted > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(wanted)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def hold(self, pages: Iterable[int]) -> None:
        """One more holder for each page."""
        for page in pages:
            if self._holders[page] < 1:
                raise ValueError(f"page {page} is free; only a held page can be shared")
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each page; the last one frees it."""
        for page in pages:
            if self._holders[page] < 1:
                raise ValueError(f"page {page} is free already")
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free.append(page)

    def shared(self, page: int) -> bool:
        """True when a page has more than one holder: writing to it would change somebody else's past."""
        return self._holders[page] > 1


@dataclass(slots=True)
class Table:
    """The pages of one stream in order: position p lies in ids[p // QUANTUM] at row p % QUANTUM."""

    pages: Pages
    ids: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Tokens the pages can hold."""
        return len(self.ids) * QUANTUM

    def cover(self, upto: int) -> list[int] | None:
        """Have pages for positions below `upto`: the new ones, or None when there are not enough free ones (nothing changes)."""
        missing = -(-upto // QUANTUM) - len(self.ids)
        if missing <= 0:
            return []
        taken = self.pages.take(missing)
        if taken is not None:
            self.ids += taken
        return taken

    def own(self, position: int) -> tuple[int, int] | None:
        """Make the page of `position` this stream's alone. (old, new) when it was shared, the caller then copies old to new."""
        at = position // QUANTUM
        old = self.ids[at]
        if not self.pages.shared(old):
            return None
        taken = self.pages.take(1)
        if taken is None:
            raise MemoryError("no free page for a copy of a shared one")
        self.pages.release([old])
        self.ids[at] = taken[0]
        return old, taken[0]

    def clear(self) -> None:
        """Let go of every page."""
        self.pages.release(self.ids)
        self.ids.clear()


class Recurrent(Generic[T]):
    """A recurrent state: the committed one, and the one after each row of the window in flight. Never changed in place."""

    __slots__ = ("_rows", "committed")

    def __init__(self, start: T) -> None:
        self.committed = start
        self._rows: list[T] = []

    def before(self, row: int) -> T:
        """The state that row `row` of the window starts from."""
        return self.committed if row == 0 else self._rows[row - 1]

    def after(self, row: int, state: T) -> None:
        """The state that row `row` leaves. Rows come in order."""
        if row != len(self._rows):
            raise ValueError(f"row {row} follows {len(self._rows)} rows")
        self._rows.append(state)

    def commit(self, kept: int) -> None:
        """The first `kept` rows stand, the others never were."""
        if not 0 <= kept <= len(self._rows):
            raise ValueError(f"{kept} rows cannot stand of {len(self._rows)}")
        if kept:
            self.committed = self._rows[kept - 1]
        self._rows.clear()

    def replace(self, state: T) -> None:
        """The state after a prompt tile: committed at once."""
        self._rows.clear()
        self.committed = state


class Lengths:
    """How far a stream has come: `committed` tokens, then the rows of the window in flight. `pure`: made by prompt tiles alone."""

    __slots__ = ("committed", "pure", "rows")

    def __init__(self, committed: int = 0) -> None:
        self.committed, self.rows, self.pure = committed, 0, True

    def commit(self, kept: int) -> None:
        """The first `kept` of the window's rows stand."""
        if not 0 <= kept <= self.rows:
            raise ValueError(f"{kept} rows cannot stand: the last window had {self.rows}")
        self.committed += kept
        self.rows = 0

    def read(self, start: int, count: int) -> None:
        """`count` prompt tokens from `start` on: at a tile's boundary, just where the stream stands, before any window."""
        if start != self.committed or start % QUANTUM or not self.pure:
            raise ValueError(
                f"a prompt piece at {start} cannot follow: the stream stands at {self.committed}, tiles begin at {QUANTUM}s"
            )
        if count < 1:
            raise ValueError("a prompt piece holds at least one token")
        self.committed += count

    def window(self, start: int, count: int) -> None:
        """`count` rows from `start` on, just where the stream stands; 1 to 16 of them."""
        if start != self.committed or self.rows:
            raise ValueError(f"a window at {start} cannot follow: the stream stands at {self.committed} with {self.rows} rows open")
        if not 1 <= count <= 16:
            raise ValueError(f"a window has 1 to 16 rows, not {count}")
        self.rows, self.pure = count, False


def pieces(tokens: Sequence[int], start: int) -> Iterable[tuple[int, Sequence[int]]]:
    """A prompt piece cut into tiles: (absolute start, up to QUANTUM tokens) each; `start` is a multiple of QUANTUM."""
    for offset in range(0, len(tokens), QUANTUM):
        yield start + offset, tokens[offset : offset + QUANTUM]
