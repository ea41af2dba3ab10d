"""The MTP head in the reference backend: it absorbs what the main program has read, then drafts a chain of tokens.

The head's row j holds token j and the main hidden of position j - 1, and predicts token j + 1; its keys lie at j. So the head's
tiles and pages fall on the main program's boundaries, and a mark at m lacks nothing but row m, whose hidden it keeps. Row 0 has no
hidden before it and is never seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from homestretch.engine import draws as drawing
from homestretch.engine.backends.reference.machine import Machine
from homestretch.engine.backends.reference.stream import Stream
from homestretch.engine.program import Program
from homestretch.engine.types import Draw, RowOut


def absorb_tile(machine: Machine, head: Program, stream: Stream, start: int, tokens: Sequence[int], hidden: torch.Tensor) -> None:
    """A prompt tile that the main program has just read: hidden (QUANTUM, width) is its own."""
    before = stream.last_hidden if stream.last_hidden is not None else torch.zeros_like(hidden[:1])
    machine.tile(head, tokens, stream.memory, start, hidden=torch.cat((before, hidden[:-1])), first=stream.head_first)
    stream.head = start + len(tokens)


def draft(machine: Machine, head: Program, stream: Stream, kept: int, draws: Sequence[Draw], limit: int) -> tuple[RowOut, ...]:
    """Absorb the first `kept` rows of the window in flight, then chain up to `limit` drafts after the token that they led to.

    Each link reads the link before it and that link's own hidden. Fewer drafts where the stream's pages end. Only the first link,
    made of a true token and a true hidden, is kept; the next window's rows are written over the others.
    """
    start = stream.lengths.committed
    if stream.last_hidden is None or not stream.drawn:
        raise ValueError("nothing was read or drawn yet that a draft could follow")
    hiddens = [stream.last_hidden, *stream.hiddens]
    if stream.head < start:
        # Rows went by without the head (their hiddens are gone): it sees the text from here on.
        stream.head = stream.head_first = start
    for at in range(stream.head, start + kept):
        row = at - start
        machine.row(head, stream.tokens[row], stream.memory, at, 0, hidden=hiddens[row], first=stream.head_first, asked=False)
    at, token, hidden = start + kept, stream.drawn[max(kept - 1, 0)].token, hiddens[kept]
    stream.head = max(stream.head, at)
    made: list[RowOut] = []
    for wish in draws[: max(0, min(limit, stream.memory.table.room - at))]:
        out = machine.row(head, token, stream.memory, at, 0, hidden=hidden, first=stream.head_first)
        made.append(drawing.draw(out.logits[0], wish))
        token, hidden = made[-1].token, out.hidden
        at += 1
    if made:
        stream.head = start + kept + 1
    return tuple(made)
