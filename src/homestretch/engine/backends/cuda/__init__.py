"""The CUDA backend: a Program as Triton kernels in captured graphs; tokens are drawn and kept on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from homestretch.engine.backends import planning
from homestretch.engine.backends.cuda import sizes
from homestretch.engine.backends.cuda.memory import ROWS, Kept, Store, Stream, send
from homestretch.engine.backends.cuda.results import Results
from homestretch.engine.checkpoint import Checkpoint
from homestretch.engine.program import QUANTUM, Experts, Model
from homestretch.engine.state import Table
from homestretch.engine.types import (
    Draw,
    Limits,
    Mark,
    MemoryPlan,
    Numerics,
    PromptPiece,
    RowOut,
    StreamId,
    Ticket,
    Window,
    WindowCosts,
)

LEAST = (8, 0)
"""Compute capability from which the kernels are built."""

PIECE = 2048
"""Prompt rows that share a launch."""


class Backend:
    """Computes in order on one device stream; `wait` is the only call that waits for it."""

    name: ClassVar[str] = "cuda"
    numerics = Numerics(backend="cuda", quantum=QUANTUM, attention_chunk=512, activations="bfloat16", prompt="bfloat16")

    def __init__(self) -> None:
        self._streams: dict[StreamId, Stream] = {}
        self._marks: dict[int, Kept] = {}
        self._marked: dict[int, int] = {}
        self._made = 0
        self._costs = WindowCosts(rows=(0.0,) * ROWS, draft=0.0)

    @classmethod
    def refusal(cls, device: str = "") -> str | None:
        """Why there is no CUDA device to use, or what it lacks; reads no weights."""
        try:
            import triton
        except ImportError:
            return "the cuda backend needs Triton, which is not installed: pip install 'homestretch[cuda]', or --backend cpu"
        if device == "cpu":
            if triton.knobs.runtime.interpret:
                return None
            return "the cuda backend has no --device cpu; leave --backend out for the CPU"
        if not torch.cuda.is_available():
            return "the cuda backend needs an NVIDIA GPU and a torch built for CUDA, and here is none: leave --backend out"
        places = ("cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count())))
        if device and device not in places:
            return f"the cuda backend has no device {device!r}; here are {', '.join(places)}"
        found = torch.cuda.get_device_capability(device or None)
        if found < LEAST:
            return (
                f"the cuda backend needs compute capability {LEAST[0]}.{LEAST[1]} or newer; "
                f"{torch.cuda.get_device_name(device or None)} has {found[0]}.{found[1]}: use --backend cpu"
            )
        return None

    @classmethod
    def lacks(cls, model: Model) -> str | None:
        """Experts that are not quantized, in one line; every operation has its kernels."""
        for program in (model.main, model.head):
            for op in program.ops if program else ():
                if isinstance(op.attrs, Experts) and not all(model.weights[name].bits for name in op.weights):
                    return f"the cuda backend reads experts in packed groups only; {op.weights[0]} is not quantized"
        return None

    def plan(self, model: Model, limits: Limits) -> MemoryPlan:
        """Memory from headers alone: weights as stored, KV in two bytes, states and two windows' inputs in four.

        What launches work in is not in the plan's figures; it is taken off what is free.
        """
        extra = sum(2 * ROWS * sizes.saved_width(slot, model.main) * 4 for slot in model.main.slots)
        state = sum(slot.elements for slot in model.main.slots if slot.per == "stream") * 4
        return planning.plan(
            model,
            limits,
            available=sizes.available(limits) - sizes.work_bytes(model, limits.streams or planning.MOST_STREAMS, _piece(limits)),
            weight_bytes=lambda spec: spec.stored_bytes,
            kv_element=2,
            state_copies=1 + -(-extra // state) if state else 1,
        )

    def load(self, model: Model, checkpoint: Checkpoint, limits: Limits) -> None:
        """Weights to the device in the kernels' layout, buffers, and the first launches, which compile the kernels."""
        # Kernels are imported here: without Triton a machine can still plan, and be told what is missing.
        from homestretch.engine.backends.cuda.costs import measure
        from homestretch.engine.backends.cuda.heads import Head
        from homestretch.engine.backends.cuda.loading import Loaded
        from homestretch.engine.backends.cuda.runs import WindowRun

        self._device = torch.device(limits.device or "cuda")
        if limits.device in ("", "cuda"):
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._here()
        compute = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        plan = self.plan(model, limits)
        self._model = model
        slots = (*model.main.slots, *(model.head.slots if model.head else ()))
        element = torch.finfo(compute).bits // 8
        self._page_bytes = sum(slot.elements for slot in slots if slot.per == "token") * QUANTUM * element
        self._state_bytes = sum(slot.elements for slot in slots if slot.per == "stream") * 4
        # Half of the prompt cache for the marks' recurrent states, where a model has them: both are device memory.
        share = limits.prompt_cache_bytes // 2 if self._state_bytes else limits.prompt_cache_bytes
        self._cache_pages = share // self._page_bytes if self._page_bytes else 0
        self._cache_states = share // self._state_bytes if self._state_bytes else None
        pages = plan.streams * -(-limits.window // QUANTUM) + self._cache_pages
        self._store = Store(slots, pages=pages, streams=plan.streams, window=limits.window, compute=compute, device=self._device)
        loaded = Loaded(model, checkpoint, self._store, compute)
        piece = _piece(limits)
        self._rows = loaded.rows("main", model.main, plan.streams * ROWS)
        self._tiles = loaded.tiles("main", model.main, piece)
        self._run = WindowRun(self._rows, model.vocab)
        self._results = Results(self._device)
        hidden = torch.zeros((plan.streams, ROWS + 1, model.hidden), device=self._device)
        self._hidden = hidden
        self._head = Head(loaded, model, hidden, piece) if model.head else None
        self._places = list(range(plan.streams - 1, -1, -1))
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            self._costs = measure(self)

    def _here(self) -> None:
        """Triton launches on the thread's current device; the thread that calls need not be the one that loaded."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def open(self, mark: Mark | None) -> StreamId:
        """A new stream, empty or standing at `mark`."""
        self._here()
        kept = self._marks[mark.key] if mark else None
        if not self._places:
            raise ValueError(f"{self._store.streams} streams are open, and no more fit")
        self._made += 1
        stream = Stream(place=self._places.pop(), table=Table(pages=self._store.pages))
        self._streams[StreamId(self._made)] = stream
        self._store.restore(stream.place, kept.states if kept else None)
        self._store.firsts["head"][stream.place] = stream.head_first
        if kept:
            self._store.pages.hold(kept.pages)
            stream.table.ids += kept.pages
            send(self._store.tables[stream.place], kept.pages)
            stream.lengths.committed = stream.head = kept.position
            stream.started = True
            self._hidden[stream.place, 0] = kept.last_hidden
        return StreamId(self._made)

    def reserve(self, stream: StreamId, upto: int) -> bool:
        """Pages for positions below `upto`; False: no room now."""
        self._here()
        return self._streams[stream].cover(upto, self._store)

    def read(self, piece: PromptPiece) -> Ticket:
        """A prompt piece, up to 2,048 rows a launch; the last row's logits come from the window path."""
        self._here()
        stream = self._streams[piece.stream]
        stream.need(piece.start + len(piece.tokens))
        stream.lengths.read(piece.start, len(piece.tokens))
        for at in range(0, len(piece.tokens), self._tiles.capacity):
            tokens = piece.tokens[at : at + self._tiles.capacity]
            self._tile(stream, tokens, piece.start + at)
        if piece.draw is None:
            return self._results.add([], [])
        last = (len(piece.tokens) - 1) % self._tiles.capacity
        drawn = self._run.last_row(self._tiles.hidden()[last : last + 1], piece.draw)
        return self._results.add([drawn], [[stream]])

    def _tile(self, stream: Stream, tokens: Sequence[int], start: int) -> None:
        count = len(tokens)
        send(self._tiles.tokens, tokens)
        self._tiles.at(stream.place, start, count, 0)
        self._tiles.launch(count)
        hidden = self._tiles.hidden()
        if self._head:
            self._head.absorb_tile(stream, self._tiles.tokens[:count], hidden, start, count)
        self._hidden[stream.place, 0] = hidden[count - 1]
        stream.started = True

    def step(self, windows: Sequence[Window]) -> Ticket:
        """Commit, then all rows of all windows in one replayed graph, draws included."""
        self._here()
        streams = [self._streams[window.stream] for window in windows]
        for stream, window in zip(streams, windows, strict=True):
            if len(window.draws) != len(window.tokens):
                raise ValueError(f"{len(window.tokens)} rows need as many draws, not {len(window.draws)}")
            stream.need(window.start + len(window.tokens))
            stream.lengths.commit(window.kept)
            stream.lengths.window(window.start, len(window.tokens))
            if window.kept:
                self._hidden[stream.place, 0] = self._hidden[stream.place, window.kept]
        drawn = self._run.windows(windows, streams, self._results)
        first = 0
        for stream, window in zip(streams, windows, strict=True):
            count = len(window.tokens)
            self._hidden[stream.place, 1 : 1 + count] = self._rows.hidden[first : first + count]
            if self._head:
                self._head.window(stream, self._rows.tokens[first : first + count])
            stream.phase = 1 - stream.phase
            first += count
        return self._results.add(drawn, [[stream] for stream in streams])

    def draft(self, stream: StreamId, kept: int, draws: Sequence[Draw], limit: int) -> Ticket:
        """MTP: absorb kept rows, then a chain of links that feed each other on the device."""
        if self._head is None:
            raise ValueError(f"{self._model.name} has no MTP head")
        self._here()
        drawn = self._head.draft(self._streams[stream], kept, draws, limit)
        return self._results.add([drawn], [])

    def wait(self, ticket: Ticket) -> tuple[tuple[RowOut, ...], ...]:
        """Results of a call, once."""
        return self._results.wait(ticket)

    def mark(self, stream: StreamId) -> Mark | None:
        """Keep the stream's state; None when the prompt cache has no room for it or for its new pages."""
        source = self._streams[stream]
        position = source.lengths.committed
        if position == 0 or position % QUANTUM or not source.lengths.pure:
            raise ValueError(
                f"position {position} cannot be marked: marks stand at multiples of {QUANTUM}, made by prompt tiles alone"
            )
        pages = tuple(source.table.ids[: position // QUANTUM])
        new = sum(page not in self._marked for page in pages)
        full = self._cache_states is not None and len(self._marks) >= self._cache_states
        if full or len(self._marked) + new > self._cache_pages:
            return None
        self._here()
        self._made += 1
        self._store.pages.hold(pages)
        for page in pages:
            self._marked[page] = self._marked.get(page, 0) + 1
        self._marks[self._made] = Kept(
            pages=pages,
            states=self._store.states(source.place),
            last_hidden=self._hidden[source.place, 0].clone(),
            position=position,
        )
        return Mark(position=position, key=self._made, bytes=new * self._page_bytes + self._state_bytes)

    def drop(self, mark: Mark) -> None:
        """Forget a mark; streams opened from it hold its pages themselves."""
        kept = self._marks.pop(mark.key)
        self._store.pages.release(kept.pages)
        for page in kept.pages:
            self._marked[page] -= 1
            if not self._marked[page]:
                del self._marked[page]

    def close(self, stream: StreamId) -> None:
        """Forget a stream. Its place is used again only by later launches, which the device runs later."""
        gone = self._streams.pop(stream)
        gone.table.clear()
        self._places.append(gone.place)

    def free_bytes(self) -> int:
        """Bytes of the pages that no stream and no mark holds."""
        return self._store.pages.free * self._page_bytes

    def costs(self) -> WindowCosts:
        """Seconds measured at load on the device."""
        return self._costs


def _piece(limits: Limits) -> int:
    """Prompt rows of a launch at most."""
    return min(PIECE, -(-limits.window // QUANTUM) * QUANTUM)
