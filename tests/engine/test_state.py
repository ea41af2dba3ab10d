"""Pages, tables, recurrent states and lengths against plain models of them, over random sequences of calls."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from homestretch.engine.program import QUANTUM
from homestretch.engine.state import Lengths, Pages, Recurrent, Table, pieces

COUNT = 12


class Sharing(RuleBasedStateMachine):
    """Tables that grow, are copied like marks, copy on write, and go; pages are counted by hand."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages(COUNT)
        self.alive: list[Table] = []

    @rule(target=tables)
    def opened(self) -> Table:
        self.alive.append(Table(pages=self.pages))
        return self.alive[-1]

    @rule(table=tables, tokens=st.integers(0, 5 * QUANTUM))
    def covered(self, table: Table, tokens: int) -> None:
        before, free = list(table.ids), self.pages.free
        fresh = table.cover(tokens)
        wanted = max(0, -(-tokens // QUANTUM) - len(before))
        assert (fresh is None) == (wanted > free)
        assert table.ids == before + (fresh or [])
        assert table.room >= tokens or fresh is None

    @rule(target=tables, table=tables)
    def marked(self, table: Table) -> Table:
        self.pages.hold(table.ids)
        self.alive.append(Table(pages=self.pages, ids=list(table.ids)))
        return self.alive[-1]

    @rule(table=tables, data=st.data())
    def written(self, table: Table, data: st.DataObject) -> None:
        if not table.ids:
            return
        position = data.draw(st.integers(0, table.room - 1))
        old = table.ids[position // QUANTUM]
        shared = self.holders()[old] > 1
        if shared and not self.pages.free:
            with pytest.raises(MemoryError):
                table.own(position)
            return
        moved = table.own(position)
        assert (moved is not None) == shared
        assert self.holders()[table.ids[position // QUANTUM]] == 1

    @rule(table=consumes(tables))
    def closed(self, table: Table) -> None:
        table.clear()
        self.alive = [one for one in self.alive if one is not table]

    def holders(self) -> Counter[int]:
        return Counter(page for table in self.alive for page in table.ids)

    @invariant()
    def nothing_is_lost(self) -> None:
        holders = self.holders()
        assert self.pages.free == COUNT - len(holders)
        assert all(self.pages.shared(page) == (count > 1) for page, count in holders.items())


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class Committing(RuleBasedStateMachine):
    """A recurrent state whose value is the tuple of the rows that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Recurrent[tuple[int, ...]] = Recurrent(())
        self.stands: tuple[int, ...] = ()
        self.rows: list[int] = []
        self.next = 0

    @rule(count=st.integers(1, 16))
    def window(self, count: int) -> None:
        if self.rows:
            return
        for row in range(count):
            self.next += 1
            self.state.after(row, (*self.state.before(row), self.next))
            self.rows.append(self.next)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        kept = data.draw(st.integers(0, len(self.rows)))
        self.state.commit(kept)
        self.stands += tuple(self.rows[:kept])
        self.rows = []

    @invariant()
    def the_committed_state_is_what_stands(self) -> None:
        assert self.state.committed == self.stands


TestCommitting = Committing.TestCase
TestCommitting.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def test_recurrent_refuses_what_cannot_be() -> None:
    state: Recurrent[int] = Recurrent(0)
    with pytest.raises(ValueError, match="row 1 follows 0"):
        state.after(1, 5)
    with pytest.raises(ValueError, match="1 rows cannot stand"):
        state.commit(1)


def test_lengths() -> None:
    lengths = Lengths()
    lengths.read(0, 2 * QUANTUM)
    assert (lengths.committed, lengths.pure) == (2 * QUANTUM, True)
    with pytest.raises(ValueError, match="cannot follow"):
        lengths.read(QUANTUM, 4)
    with pytest.raises(ValueError, match="at least one token"):
        lengths.read(2 * QUANTUM, 0)
    lengths.read(2 * QUANTUM, 10)
    with pytest.raises(ValueError, match="tiles begin at"):
        lengths.read(2 * QUANTUM + 10, 4)
    lengths.window(2 * QUANTUM + 10, 3)
    assert not lengths.pure
    with pytest.raises(ValueError, match="with 3 rows open"):
        lengths.window(2 * QUANTUM + 10, 1)
    with pytest.raises(ValueError, match="4 rows cannot stand"):
        lengths.commit(4)
    lengths.commit(2)
    with pytest.raises(ValueError, match="1 to 16 rows"):
        lengths.window(2 * QUANTUM + 12, 17)
    assert (lengths.committed, lengths.rows) == (2 * QUANTUM + 12, 0)


def test_pages_refuse_double_release() -> None:
    pages = Pages(2)
    taken = pages.take(1)
    assert taken is not None
    pages.release(taken)
    with pytest.raises(ValueError, match="free already"):
        pages.release(taken)
    with pytest.raises(ValueError, match="only a held page"):
        pages.hold(taken)
    assert pages.take(3) is None


@pytest.mark.parametrize("count", [1, QUANTUM - 1, QUANTUM, QUANTUM + 1, 3 * QUANTUM])
def test_pieces_cover_the_tokens_in_order(count: int) -> None:
    cut = list(pieces(range(count), 256))
    assert [token for _, part in cut for token in part] == list(range(count))
    assert [start for start, _ in cut] == list(range(256, 256 + count, QUANTUM))
