"""The MTP head on the device: it absorbs tiles and kept rows, then drafts a chain whose links feed each other without the host.

Positions are the reference's: the head's row j holds token j and the main hidden of position j - 1, and predicts token j + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from homestretch.engine.backends.cuda.drawing import Drawer, add_bias
from homestretch.engine.backends.cuda.loading import Loaded
from homestretch.engine.backends.cuda.memory import ROWS, Stream, send
from homestretch.engine.backends.cuda.results import Drawn
from homestretch.engine.backends.cuda.rows import chunks_for
from homestretch.engine.backends.cuda.runs import Graphs
from homestretch.engine.errors import SetupError
from homestretch.engine.program import Model
from homestretch.engine.types import Draw


class Head:
    """hidden (places, ROWS + 1, width): row 0 the last committed hidden of a stream, rows 1.. those of its window in flight."""

    def __init__(self, loaded: Loaded, model: Model, hidden: torch.Tensor, piece: int) -> None:
        if model.head is None:
            raise SetupError(f"{model.name} has no MTP head")
        self._hidden = hidden
        self._rows = loaded.rows("head", model.head, ROWS)
        self._tiles = loaded.tiles("head", model.head, piece)
        self._store = self._rows.store
        self._drawer = Drawer(vocab=model.vocab, rows=ROWS, device=hidden.device)
        self._graphs = Graphs(hidden.device)
        self._tokens = torch.zeros((hidden.shape[0], ROWS), dtype=torch.int64, device=hidden.device)
        self._made = torch.zeros(ROWS, dtype=torch.int64, device=hidden.device)

    def absorb_tile(self, stream: Stream, ids: torch.Tensor, hidden: torch.Tensor, start: int, count: int) -> None:
        """A prompt piece that the main program has just read; ids (count,) on the device, hidden (rows, width) is its own."""
        tiles = self._tiles
        tiles.tokens[:count] = ids
        into = tiles.value(1)
        if stream.started:
            into[:1] = self._hidden[stream.place, :1]
        else:
            into[:1].zero_()
        into[1:count] = hidden[: count - 1]
        tiles.at(stream.place, start, count, stream.head_first)
        tiles.launch(count)
        stream.head = start + count

    def window(self, stream: Stream, tokens: torch.Tensor) -> None:
        """Remember the tokens of a window that the main program has just run."""
        self._tokens[stream.place, : tokens.shape[0]] = tokens

    def draft(self, stream: Stream, kept: int, draws: Sequence[Draw], limit: int) -> Drawn:
        """Absorb the first `kept` rows of the window in flight, then chain up to `limit` drafts; fewer where the pages end."""
        start = stream.lengths.committed
        if not stream.started or not stream.drawn:
            raise ValueError("nothing was read or drawn yet that a draft could follow")
        if stream.head < start:
            stream.head = stream.head_first = start
            self._store.firsts["head"][stream.place] = start
        first = stream.head - start
        if first < kept:
            self._absorb(stream, start, first, kept)
        at = start + kept
        stream.head = max(stream.head, at)
        links = draws[: max(0, min(limit, stream.table.room - at))]
        if links:
            self._chain(stream, kept, at, links)
            stream.head = at + 1
        return Drawn(tokens=self._made[: len(links)].clone())

    def _absorb(self, stream: Stream, start: int, first: int, kept: int) -> None:
        rows, count = self._rows, kept - first
        rows.tokens[:count] = self._tokens[stream.place, first:kept]
        rows.value(1)[:count] = self._hidden[stream.place, first:kept]
        self._place(stream, range(start + first, start + kept))
        rows.asked = False
        try:
            self._graphs.run(("absorb", count, rows.chunks), lambda: rows.launch(count))
        finally:
            rows.asked = True

    def _chain(self, stream: Stream, kept: int, at: int, links: Sequence[Draw]) -> None:
        rows = self._rows
        self._drawer.set(links)
        mode = Drawer.mode(links)
        send(rows.tokens, [stream.drawn[max(kept - 1, 0)].token])
        rows.value(1)[:1] = self._hidden[stream.place, kept : kept + 1]
        self._place(stream, [at])
        rows.chunks = chunks_for(at + len(links) - 1)
        for link, draw in enumerate(links):
            if draw.bias:
                self._link(link, mode, draw.bias)
            else:
                self._graphs.run(("link", link, rows.chunks, mode), partial(self._link, link, mode))

    def _link(self, link: int, mode: str, bias: Sequence[tuple[int, float]] = ()) -> None:
        """One draft; later links take the token and hidden of the one before. A bias is of one round, and in no graph."""
        rows = self._rows
        if link:
            torch.clamp(self._made[link - 1 : link], max=self._drawer.vocab - 1, out=rows.tokens[:1])
            rows.value(1)[:1] = rows.hidden[:1]
            rows.positions[:1] += 1
        rows.launch(1)
        if bias:
            add_bias(rows.logits[0], bias)
        self._made[link : link + 1] = self._drawer.launch(rows.logits, 1, mode, first=link)

    def _place(self, stream: Stream, positions: Sequence[int]) -> None:
        """Positions and stream of the next rows."""
        rows, count = self._rows, len(positions)
        send(rows.positions, list(positions))
        rows.slots[:count] = stream.place
        rows.chunks = chunks_for(positions[-1])
