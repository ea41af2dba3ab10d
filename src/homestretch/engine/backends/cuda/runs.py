"""One step of windows: tables to the device, a captured graph replayed, tokens drawn; the last row of a prompt likewise."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from homestretch.engine.backends.cuda.drawing import Drawer, add_bias
from homestretch.engine.backends.cuda.memory import Stream
from homestretch.engine.backends.cuda.results import Drawn, Results
from homestretch.engine.backends.cuda.rows import Rows
from homestretch.engine.types import Draw, FromTicket, Window

MOST_GRAPHS = 512
"""Captured graphs kept; the one that was not used for longest goes first."""


class Graphs:
    """Runs a launch; on a device it is captured the second time and replayed from then on.

    All graphs of a device thread share one memory pool: what a launch allocates while it is captured is free again at its end.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, key: Hashable, launch: Callable[[], None]) -> None:
        """The first run of a key is a plain one (it compiles and allocates), so a shape that comes once costs no capture."""
        if self._device.type != "cuda":
            launch()
            return
        graph = self._graphs.pop(key, None)
        if graph is None and key not in self._seen:
            self._seen.add(key)
            launch()
            return
        if graph is None:
            graph = self._captured(launch)
        self._graphs[key] = graph
        graph.replay()

    def _captured(self, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize(self._device)
        if len(self._graphs) >= MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            launch()
        return graph


class WindowRun:
    """Fills the tables of a `Rows` executor and runs it."""

    def __init__(self, rows: Rows, vocab: int) -> None:
        self._rows, self._vocab = rows, vocab
        self._drawer = Drawer(vocab=vocab, rows=rows.capacity, device=rows.device)
        self._graphs = Graphs(rows.device)

    def windows(self, windows: Sequence[Window], streams: Sequence[Stream], results: Results) -> list[Drawn]:
        """Run every row of every window; one Drawn a window."""
        rows = self._rows
        draws = [draw for window in windows for draw in window.draws]
        count = len(draws)
        starts, tokens = [0], list[int]()
        positions, places = list[int](), list[int]()
        for window, stream in zip(windows, streams, strict=True):
            tokens += [0 if isinstance(token, FromTicket) else token for token in window.tokens]
            positions += range(window.start, window.start + len(window.tokens))
            places += [stream.place] * len(window.tokens)
            starts.append(len(tokens))
        rows.fill(
            tokens=tokens,
            positions=positions,
            slots=places,
            starts=starts,
            places=[stream.place for stream in streams],
            kept=[window.kept for window in windows],
            phases=[stream.phase for stream in streams],
        )
        at = 0
        for window in windows:
            for token in window.tokens:
                if isinstance(token, FromTicket):
                    # A row that drew nothing says 2^31 - 1; `wait` will fail it, the look-up must not read there.
                    torch.clamp(
                        results.token(token.ticket, token.window, token.row), max=self._vocab - 1, out=rows.tokens[at : at + 1]
                    )
                at += 1
        tokens_drawn = self._launch(count, draws)
        made, first = [], 0
        for window in windows:
            made.append(self._drawn(tokens_drawn, window.draws, first))
            first += len(window.tokens)
        return made

    def last_row(self, hidden: torch.Tensor, draw: Draw) -> Drawn:
        """The token after a prompt, from its last row's hidden (1, width)."""
        rows = self._rows
        at = rows.program.outputs["hidden"]
        rows.value(at)[:1] = hidden
        step = rows.lowered.steps[-1]
        if at in rows.lowered.prepared:
            x, sums = rows.cast_of(at)
            group = rows.lowered.prepared[at].group
            x[:1] = hidden.to(x.dtype)
            sums[: x.shape[1] // group] = x[0].to(torch.float32).reshape(-1, group).sum(-1)
        rows.launch_head(step, 1)
        return self._drawn(self._shape_and_draw([draw]), [draw], 0)

    def _launch(self, count: int, draws: Sequence[Draw]) -> torch.Tensor:
        rows = self._rows
        plain = not any(draw.bias or draw.mask or draw.logprobs for draw in draws)
        mode = self._drawer.mode(draws)
        if not plain:
            self._graphs.run((count, rows.windows, rows.chunks, "none"), lambda: rows.launch(count))
            return self._shape_and_draw(draws)
        self._drawer.set(draws)

        def launch() -> None:
            rows.launch(count)
            self._drawer.launch(rows.logits, count, mode)

        self._raw = None
        self._graphs.run((count, rows.windows, rows.chunks, mode), launch)
        return self._drawer.tokens[:count].clone()

    def _shape_and_draw(self, draws: Sequence[Draw]) -> torch.Tensor:
        """Apply biases and masks to the logits, then draw; the unshaped logits are kept for log probabilities."""
        logits = self._rows.logits
        asked = any(draw.logprobs for draw in draws)
        self._raw = logits[: len(draws)].clone() if asked else None
        for row, draw in enumerate(draws):
            if draw.bias:
                add_bias(logits[row], draw.bias)
            if draw.mask is not None:
                bits = torch.frombuffer(bytearray(draw.mask), dtype=torch.uint8).to(logits.device)
                allowed = ((bits[:, None] >> torch.arange(8, device=logits.device, dtype=torch.uint8)) & 1).flatten()[: self._vocab]
                logits[row].masked_fill_(allowed == 0, float("-inf"))
        return self._drawer.draw(logits, draws).clone()

    def _drawn(self, tokens: torch.Tensor, draws: Sequence[Draw], first: int) -> Drawn:
        mine = tokens[first : first + len(draws)]
        counts = [draw.logprobs for draw in draws]
        if self._raw is None or not any(counts):
            return Drawn(tokens=mine)
        scores = torch.log_softmax(self._raw[first : first + len(draws)].to(torch.float64), dim=-1)
        top = torch.sort(scores, dim=-1, descending=True, stable=True)
        most = max(counts)
        return Drawn(
            tokens=mine,
            logprobs=scores.gather(1, mine.clamp(0, self._vocab - 1)[:, None])[:, 0],
            top_ids=top.indices[:, :most],
            top_logprobs=top.values[:, :most],
            counts=counts,
        )

    _raw: torch.Tensor | None = None
