"""What streams remember on the device: page pools, page tables, recurrent states and the saved inputs of the last window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from homestretch.engine.program import QUANTUM, Slot
from homestretch.engine.state import Lengths, Pages, Table
from homestretch.engine.types import RowOut

ROWS = 16
"""Rows of a window at most."""


def send(buffer: torch.Tensor, values: Sequence[int] | Sequence[float] | np.ndarray) -> None:
    """Copy a few numbers to the front of a device buffer, in order with the launches around it.

    From pinned memory, which torch keeps until the copy has run; a device that reads pageable memory itself (GB10) could find it
    gone.
    """
    host = torch.as_tensor(values, dtype=buffer.dtype, device="cpu")
    if buffer.is_cuda:
        host = host.pin_memory()
    buffer[: host.shape[0]].copy_(host, non_blocking=True)


class Store:
    """Device memory of `streams` stream places.

    kv: slot -> (pages, 2, kv_heads, QUANTUM, head_dim); state: slot -> (streams, *shape) float32; saved: slot -> the last two
    windows' inputs (2, streams, ROWS, width); tables (streams, pages a window) int32; firsts: program name -> lowest key seen.
    """

    def __init__(
        self, slots: Sequence[Slot], *, pages: int, streams: int, window: int, compute: torch.dtype, device: torch.device
    ) -> None:
        self.pages = Pages(pages)
        self.device, self.streams = device, streams
        self.kv = {
            slot.name: torch.zeros((pages, slot.shape[0], slot.shape[1], QUANTUM, slot.shape[2]), dtype=compute, device=device)
            for slot in slots
            if slot.kind == "kv"
        }
        self.state = {slot.name: torch.zeros((streams, *slot.shape), device=device) for slot in slots if slot.kind != "kv"}
        self.saved: dict[str, torch.Tensor] = {}
        self.tables = torch.zeros((streams, -(-window // QUANTUM) + 1), dtype=torch.int32, device=device)
        self.firsts = {
            "main": torch.zeros(streams, dtype=torch.int32, device=device),
            "head": torch.ones(streams, dtype=torch.int32, device=device),
        }

    def keep_inputs(self, name: str, width: int) -> torch.Tensor:
        """The buffer for a window's inputs of `width` elements a row."""
        if name not in self.saved:
            self.saved[name] = torch.zeros((2, self.streams, ROWS, width), device=self.device)
        return self.saved[name]

    def states(self, place: int) -> dict[str, torch.Tensor]:
        """Copies of a stream's committed recurrent states."""
        return {name: tensor[place].clone() for name, tensor in self.state.items()}

    def restore(self, place: int, states: dict[str, torch.Tensor] | None) -> None:
        """Set a stream's recurrent states; None: those of an empty stream."""
        for name, tensor in self.state.items():
            if states is None:
                tensor[place].zero_()
            else:
                tensor[place].copy_(states[name])


@dataclass(slots=True, kw_only=True)
class Stream:
    """Bookkeeping of one stream on the host. place: its row in the store; phase: which half of `saved` the last window wrote.

    drawn: what the last read or step drew; hiddens: rows of the last window's hidden kept on the device; head, head_first as in the
    reference: rows of the MTP head below `head` are absorbed, those below `head_first` not seen.
    """

    place: int
    table: Table
    lengths: Lengths = field(default_factory=Lengths)
    phase: int = 0
    tokens: list[int] = field(default_factory=list)
    drawn: list[RowOut] = field(default_factory=list)
    started: bool = False
    head: int = 0
    head_first: int = 1

    def need(self, upto: int) -> None:
        """ValueError unless there are pages for every position below `upto`: a row without one would write into another's."""
        if upto > self.table.room:
            raise ValueError(f"no pages for position {upto - 1}: room for {self.table.room} tokens was reserved")

    def cover(self, upto: int, store: Store) -> bool:
        """Pages for positions below `upto`, written to the device's table; False when there are not enough."""
        before = len(self.table.ids)
        if self.table.cover(upto) is None:
            return False
        if len(self.table.ids) > before:
            send(store.tables[self.place, before:], self.table.ids[before:])
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a mark holds: full pages, recurrent states, the hidden of the last position."""

    pages: Sequence[int]
    states: dict[str, torch.Tensor]
    last_hidden: torch.Tensor
    position: int
