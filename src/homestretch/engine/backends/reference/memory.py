"""Where the reference backend keeps what streams remember: a tensor of pages a KV slot, immutable tensors for recurrent states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from homestretch.engine.program import QUANTUM, Slot
from homestretch.engine.state import Pages, Recurrent, Table


class Store:
    """Page tensors of every KV slot, (pages, 2, kv_heads, QUANTUM, head_dim) float32, and zero states for the recurrent ones."""

    def __init__(self, slots: Sequence[Slot], count: int, device: torch.device) -> None:
        self.pages = Pages(count)
        self.kv = {
            slot.name: torch.empty((count, slot.shape[0], slot.shape[1], QUANTUM, slot.shape[2]), device=device)
            for slot in slots
            if slot.kind == "kv"
        }
        self.zeros = {slot.name: torch.zeros(slot.shape, device=device) for slot in slots if slot.kind != "kv"}

    def clean(self, pages: Sequence[int]) -> None:
        """Zero fresh pages: masked positions are multiplied by 0, which only finite numbers survive."""
        if pages:
            at = torch.tensor(pages, device=next(iter(self.kv.values())).device) if self.kv else None
            for tensor in self.kv.values():
                tensor[at] = 0.0


class Memory:
    """One stream's memory: its pages in every KV slot, and its recurrent states."""

    def __init__(self, store: Store, committed: Mapping[str, torch.Tensor] | None = None) -> None:
        self._store = store
        self.table = Table(pages=store.pages)
        self.recurrent = {name: Recurrent(state) for name, state in (committed or store.zeros).items()}

    def cover(self, upto: int) -> bool:
        """Have pages below position `upto`; False when there are not enough."""
        fresh = self.table.cover(upto)
        if fresh is None:
            return False
        self._store.clean(fresh)
        return True

    def need(self, upto: int) -> None:
        """ValueError unless there are pages for every position below `upto`: the caller did not reserve."""
        if upto > self.table.room:
            raise ValueError(f"no pages for position {upto - 1}: room for {self.table.room} tokens was reserved")

    def write(self, slot: str, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Keys and values (rows, kv_heads, head_dim) of positions from `start` on; they lie in one page."""
        page, row = self.table.ids[start // QUANTUM], start % QUANTUM
        place = self._store.kv[slot][page, :, :, row : row + k.shape[0]]
        place[0] = k.transpose(0, 1)
        place[1] = v.transpose(0, 1)

    def past(self, slot: str, upto: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of positions below `upto`, (kv_heads, n, head_dim) each, n rounded up to whole pages."""
        kv = self._store.kv[slot]
        at = torch.tensor(self.table.ids[: -(-upto // QUANTUM)], device=kv.device)
        pages = kv.index_select(0, at)
        both = pages.permute(1, 2, 0, 3, 4).reshape(2, kv.shape[2], -1, kv.shape[4])
        return both[0], both[1]

    def commit(self, kept: int) -> None:
        """The first `kept` rows of the window stand."""
        for state in self.recurrent.values():
            state.commit(kept)

    def states(self) -> dict[str, torch.Tensor]:
        """The committed recurrent states; nobody changes them in place, so a mark may hold them as they are."""
        return {name: state.committed for name, state in self.recurrent.items()}
