"""KV pages in one reserved range of memory that fills as pages are first written, and the streams that stand on them."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from homestretch.engine.program import QUANTUM, Conv, Model, Ssm
from homestretch.engine.state import Lengths, Pages, Table
from homestretch.engine.types import RowOut

LANES, ROWS = 16, 16
F32 = npt.NDArray[np.float32]


def page_layout(model: Model) -> tuple[dict[str, int], int]:
    """Where each KV slot lies in a page (16-bit words from its start), main program and head alike, and the page's bytes.

    A token takes head_dim words for its keys, head_dim rounded up to 16 for its values, and 4 for the two float32 scales.
    """
    at, words = {}, 0
    for program in (model.main, model.head):
        for slot in program.slots if program else ():
            if slot.kind == "kv":
                at[slot.name] = words
                _, heads, width = slot.shape
                words += QUANTUM * heads * (width + -(-width // LANES) * LANES + 4)
    return at, words * 2


def state_layout(model: Model) -> tuple[dict[str, tuple[int, int]], int, int]:
    """Where each recurrent slot lies in a stream's state and in the replay of a window's rows (floats), and the size of each.

    conv: state (kernel-1, channels), replay ROWS x channels. ssm: state (heads, state, head_dim up to 16), replay ROWS x
    (channels of its input + heads).
    """
    at, state, replay = {}, 0, 0
    for program in (model.main, model.head):
        slots = {slot.name: slot for slot in program.slots} if program else {}
        for op in program.ops if program else ():
            a = op.attrs
            if op.slot is None or slots[op.slot].per != "stream":
                continue
            at[op.slot] = state, replay
            if isinstance(a, Conv):
                state += (a.kernel - 1) * a.channels
                replay += ROWS * a.channels
            elif isinstance(a, Ssm):
                state += a.heads * a.state * -(-a.head_dim // LANES) * LANES
                replay += ROWS * (a.heads * a.head_dim + 2 * a.groups * a.state + a.heads)
    return at, state, replay


class Pool:
    """Memory for `count` pages; `address(page)` of each."""

    def __init__(self, count: int, page_bytes: int) -> None:
        self.pages, self.page_bytes = Pages(count), page_bytes
        size = max(1, count * page_bytes) + 4096
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, size, flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def address(self, page: int) -> int:
        """Where page `page` begins."""
        return self._base + page * self.page_bytes


@dataclass(slots=True, kw_only=True)
class Stream:
    """handle: the engine's own part. tokens, hiddens (rows, width), drawn: the window in flight, or the end of a prompt.

    last_hidden (width,): of the last committed position; head, head_first: as in the reference backend's stream.
    """

    handle: int
    table: Table
    lengths: Lengths = field(default_factory=Lengths)
    tokens: list[int] = field(default_factory=list)
    hiddens: F32 | None = None
    drawn: list[RowOut] = field(default_factory=list)
    last_hidden: F32 | None = None
    head: int = 0
    head_first: int = 1

    def commit(self, kept: int) -> None:
        """The first `kept` rows of the window stand; the others never were."""
        self.lengths.commit(kept)
        if kept and self.hiddens is not None:
            self.last_hidden = self.hiddens[kept - 1]
        self.tokens, self.hiddens = [], None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a mark holds."""

    pages: tuple[int, ...]
    state: bytes
    last_hidden: F32 | None
    position: int
