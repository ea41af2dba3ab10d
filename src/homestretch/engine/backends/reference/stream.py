"""One stream of the reference backend: where it stands, what it remembers, and the window in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from homestretch.engine.backends.reference.memory import Memory
from homestretch.engine.state import Lengths
from homestretch.engine.types import RowOut


@dataclass(slots=True, kw_only=True)
class Stream:
    """tokens and hiddens (1, width): the rows of the window in flight; drawn: what the last read or step drew, a row each.

    last_hidden (1, width): the hidden of the last committed position, None at the start of a stream.
    head: rows of the MTP head below this one are absorbed, those below head_first not seen (see `mtp`).
    """

    memory: Memory
    lengths: Lengths = field(default_factory=Lengths)
    tokens: list[int] = field(default_factory=list)
    hiddens: list[torch.Tensor] = field(default_factory=list)
    drawn: list[RowOut] = field(default_factory=list)
    last_hidden: torch.Tensor | None = None
    head: int = 0
    head_first: int = 1

    def commit(self, kept: int) -> None:
        """The first `kept` rows of the window stand; the others never were."""
        self.lengths.commit(kept)
        self.memory.commit(kept)
        if kept:
            self.last_hidden = self.hiddens[kept - 1]
        self.tokens.clear()
        self.hiddens.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a mark holds: full pages, recurrent states, the hidden of the last position."""

    pages: Sequence[int]
    states: dict[str, torch.Tensor]
    last_hidden: torch.Tensor | None
    position: int
