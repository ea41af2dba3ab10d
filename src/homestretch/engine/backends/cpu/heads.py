"""The MTP head on the cpu backend: absorbs what the main program has read, drafts chains; defined by the reference backend's `mtp`.

The head's row j holds token j and the main hidden of position j - 1; row 0 is never seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from homestretch.engine.backends.cpu.calls import F32, Caller, Rows
from homestretch.engine.backends.cpu.memory import Stream
from homestretch.engine.types import Draw, RowOut


def absorb_prompt(caller: Caller, head: int, stream: Stream, start: int, tokens: Sequence[int], hidden: F32) -> None:
    """Prompt rows that the main program has just read: hidden (rows, width) is its own."""
    before = stream.last_hidden if stream.last_hidden is not None else np.zeros(hidden.shape[1], dtype=np.float32)
    rows = Rows(stream=stream.handle, start=start, tokens=tokens, seen=stream.head_first)
    caller.run(head, [rows], (), prompt=True, hidden=np.concatenate((before[None], hidden[:-1])))
    stream.head = start + len(tokens)


def draft(caller: Caller, head: int, stream: Stream, kept: int, draws: Sequence[Draw], limit: int) -> tuple[RowOut, ...]:
    """Absorb the first `kept` rows of the window in flight, then chain up to `limit` drafts; fewer where the pages end.

    The rows to absorb and the chain's first link share one call. Each later link reads the draft before it and that link's hidden.
    """
    start = stream.lengths.committed
    if stream.last_hidden is None or not stream.drawn:
        raise ValueError("nothing was read or drawn yet that a draft could follow")
    hiddens = stream.last_hidden[None] if stream.hiddens is None else np.concatenate((stream.last_hidden[None], stream.hiddens))
    if stream.head < start:
        # Rows went by without the head (their hiddens are gone): it sees the text from here on.
        stream.head = stream.head_first = start
    at, first = start + kept, stream.head
    wanted = draws[: max(0, min(limit, stream.table.room - at))]
    tokens = stream.tokens[first - start : kept]
    given = hiddens[first - start : kept]
    if wanted:
        # A chain whose first link was kept already (first past `at`) starts from that row again.
        tokens = [*tokens, stream.drawn[max(kept - 1, 0)].token]
        given = np.concatenate((given, hiddens[kept : kept + 1]))
        first = min(first, at)
    if not tokens:
        return ()
    rows = Rows(stream=stream.handle, start=first, tokens=tokens, seen=stream.head_first)
    asked = [(len(tokens) - 1, wanted[0])] if wanted else []
    made, out = caller.run(head, [rows], asked, hidden=given, want_hidden=len(wanted) > 1)
    stream.head = max(stream.head, at)
    for wish in wanted[1:]:
        if out is None:
            break
        at += 1
        link = Rows(stream=stream.handle, start=at, tokens=[made[-1].token], seen=stream.head_first)
        drawn, out = caller.run(head, [link], [(0, wish)], hidden=out[-1:], want_hidden=True)
        made += drawn
    if made:
        stream.head = start + kept + 1
    return tuple(made)
