"""Tokens that were drawn on the device and not yet asked for, by ticket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from homestretch.engine.backends.cuda.memory import Stream
from homestretch.engine.types import RowOut, Ticket

NOBODY = 2_147_483_647
"""What the draw kernels give when every candidate is masked or infinite."""


@dataclass(slots=True, kw_only=True)
class Drawn:
    """One window's draws: tokens (rows,) int64 on the device; logprobs and tops where they were asked for."""

    tokens: torch.Tensor
    logprobs: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None
    counts: Sequence[int] = ()


class Results:
    """Keeps copies, so that the next step may write the buffers."""

    def __init__(self, device: torch.device) -> None:
        self._held: dict[Ticket, tuple[list[Drawn], list[list[Stream]]]] = {}
        self._made = 0

    def add(self, drawn: list[Drawn], streams: list[list[Stream]]) -> Ticket:
        """File draws of a call; streams[w] learn what their window drew when somebody waits."""
        self._made += 1
        self._held[Ticket(self._made)] = (drawn, streams)
        return Ticket(self._made)

    def token(self, ticket: Ticket, window: int, row: int) -> torch.Tensor:
        """A drawn token that nobody has waited for yet, (1,) on the device."""
        return self._held[ticket][0][window].tokens[row : row + 1]

    def wait(self, ticket: Ticket) -> tuple[tuple[RowOut, ...], ...]:
        """FloatingPointError when a row had no finite candidate."""
        drawn, streams = self._held.pop(ticket)
        rows = tuple(_rows(window) for window in drawn)
        for window, owners in zip(rows, streams, strict=False):
            for stream in owners:
                stream.drawn = list(window)
        return rows


def _rows(drawn: Drawn) -> tuple[RowOut, ...]:
    tokens = drawn.tokens.tolist()
    if NOBODY in tokens:
        raise FloatingPointError("a row has no token to draw: every candidate is masked or infinite")
    if drawn.logprobs is None or drawn.top_ids is None or drawn.top_logprobs is None:
        return tuple(RowOut(token=token) for token in tokens)
    made = []
    for row, token in enumerate(tokens):
        count = drawn.counts[row]
        top = tuple(zip(drawn.top_ids[row, :count].tolist(), drawn.top_logprobs[row, :count].tolist(), strict=True))
        made.append(RowOut(token=token, logprob=float(drawn.logprobs[row]) if count else 0.0, top=top))
    return tuple(made)
