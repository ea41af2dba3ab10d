"""The reference backend: every operation in plain torch, fp32, one decode row at a time. Slow, and the truth."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from textwrap import shorten
from typing import ClassVar

import psutil
import torch

from homestretch.engine import draws as drawing
from homestretch.engine.backends import planning
from homestretch.engine.backends.reference import dense, hybrid, machine, mtp
from homestretch.engine.backends.reference.memory import Memory, Store
from homestretch.engine.backends.reference.stream import Kept, Stream
from homestretch.engine.checkpoint import Affine, Checkpoint, Weight
from homestretch.engine.checkpoint.affine import dequantize
from homestretch.engine.checkpoint.shelf import read_weight
from homestretch.engine.program import QUANTUM, Model, WeightSpec
from homestretch.engine.state import Lengths, pieces
from homestretch.engine.types import (
    Draw,
    FromTicket,
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

# dense and hybrid are imported for the lowerings that they register.
__all__ = ["Backend", "dense", "hybrid"]

ROWS = 16
"""The most rows of a window."""
MOST_CACHE_PAGES = 1 << 16
CORES = torch.get_num_threads()
"""What torch would use: the cores this process may run on, or OMP_NUM_THREADS."""


class Backend:
    """Computes each call when it is made; `wait` only hands out results."""

    name: ClassVar[str] = "reference"
    numerics = Numerics(backend="reference", quantum=QUANTUM, attention_chunk=0, activations="float32", prompt="float32")

    def __init__(self) -> None:
        self._streams: dict[StreamId, Stream] = {}
        self._marks: dict[int, Kept] = {}
        self._marked: Counter[int] = Counter()
        self._results: dict[Ticket, tuple[tuple[RowOut, ...], ...]] = {}
        self._made = 0
        self._costs = WindowCosts(rows=(0.0,) * ROWS, draft=0.0)

    @classmethod
    def refusal(cls, device: str = "") -> str | None:
        """Why this backend cannot work here: a device that torch does not have, or one without fp64 (angles are fp64)."""
        try:
            torch.ones(1, device=device or "cpu", dtype=torch.float64).cpu()
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            return f"torch has no device {device!r} here ({shorten(str(error), 100)}); leave --device out for the CPU"
        return None

    @classmethod
    def lacks(cls, model: Model) -> str | None:
        """Operations without a lowering here, in one line; None if there are none."""
        return machine.missing(model.main) or (machine.missing(model.head) if model.head else None)

    def plan(self, model: Model, limits: Limits) -> MemoryPlan:
        """Memory from headers alone: everything is held in fp32, and a recurrent state for each row of a window."""
        return planning.plan(
            model,
            limits,
            available=_available(limits),
            weight_bytes=_weight_bytes,
            kv_element=4,
            state_copies=ROWS + 1,
        )

    def load(self, model: Model, checkpoint: Checkpoint, limits: Limits) -> None:
        """Read and widen every weight; SetupError for an operation that this backend does not compute."""
        for program in (model.main, model.head):
            if program:
                machine.refuse_unknown(program)
        # All but one core: OpenMP threads wait spinning, and a row takes twenty times as long where they must share a core.
        torch.set_num_threads(limits.threads or max(1, CORES - 1))
        device = torch.device(limits.device or "cpu")
        plan = self.plan(model, limits)
        weights = {
            name: _widen(read_weight(checkpoint, name, spec), device)
            for name, spec in model.weights.items()
            if spec.shared_with is None
        }
        shared = {name: weights[spec.shared_with] for name, spec in model.weights.items() if spec.shared_with}
        self._machine = machine.Machine(weights | shared, device)
        self._model = model
        slots = (*model.main.slots, *(model.head.slots if model.head else ()))
        self._page_bytes = sum(slot.elements for slot in slots if slot.per == "token") * QUANTUM * 4
        self._state_bytes = sum(slot.elements for slot in slots if slot.per == "stream") * 4
        self._cache_bytes = limits.prompt_cache_bytes
        cache_pages = min(MOST_CACHE_PAGES, self._cache_bytes // max(1, self._page_bytes))
        self._store = Store(slots, plan.streams * -(-limits.window // QUANTUM) + cache_pages, device)
        self._costs = self._measure()

    def open(self, mark: Mark | None) -> StreamId:
        """A new stream, empty or standing at `mark`."""
        self._made += 1
        stream = StreamId(self._made)
        if mark is None:
            self._streams[stream] = Stream(memory=Memory(self._store))
        else:
            kept = self._marks[mark.key]
            memory = Memory(self._store, kept.states)
            self._store.pages.hold(kept.pages)
            memory.table.ids += kept.pages
            self._streams[stream] = Stream(
                memory=memory, lengths=Lengths(kept.position), last_hidden=kept.last_hidden, head=kept.position
            )
        return stream

    def reserve(self, stream: StreamId, upto: int) -> bool:
        """Pages for positions below `upto`; False: no room now."""
        return self._streams[stream].memory.cover(upto)

    def read(self, piece: PromptPiece) -> Ticket:
        """Prompt tiles, each padded to QUANTUM rows at its absolute boundary."""
        stream, main = self._streams[piece.stream], self._model.main
        end = piece.start + len(piece.tokens)
        stream.memory.need(end)
        stream.lengths.read(piece.start, len(piece.tokens))
        drawn: tuple[tuple[RowOut, ...], ...] = ()
        for start, tokens in pieces(piece.tokens, piece.start):
            last = len(tokens) - 1
            asked = (last,) if piece.draw and start + last == end - 1 else ()
            outputs = self._machine.tile(main, tokens, stream.memory, start, asked=asked)
            if self._model.head:
                mtp.absorb_tile(self._machine, self._model.head, stream, start, tokens, outputs.hidden)
            stream.last_hidden = outputs.hidden[last : last + 1].clone()
            if piece.draw and asked:
                drawn = ((drawing.draw(outputs.logits[0], piece.draw),),)
                stream.drawn = [*drawn[0]]
        return self._ticket(drawn)

    def step(self, windows: Sequence[Window]) -> Ticket:
        """Commit, then run every row of every window by itself, operation by operation."""
        calls = [call for window in windows for call in self._calls(window)]
        outputs = iter(machine.run(self._model.main, calls))
        return self._ticket(tuple(self._draw(window, [next(outputs) for _ in window.tokens]) for window in windows))

    def draft(self, stream: StreamId, kept: int, draws: Sequence[Draw], limit: int) -> Ticket:
        """MTP: absorb kept rows, then a chain; see `mtp.draft`."""
        if self._model.head is None:
            raise ValueError(f"{self._model.name} has no MTP head")
        rows = mtp.draft(self._machine, self._model.head, self._streams[stream], kept, draws, limit)
        return self._ticket((rows,))

    def wait(self, ticket: Ticket) -> tuple[tuple[RowOut, ...], ...]:
        """Results of a call, once."""
        return self._results.pop(ticket)

    def mark(self, stream: StreamId) -> Mark | None:
        """Keep the stream's state; None when the prompt cache has no room for its states and new pages."""
        source = self._streams[stream]
        position = source.lengths.committed
        if position == 0 or position % QUANTUM or not source.lengths.pure:
            raise ValueError(
                f"position {position} cannot be marked: marks stand at multiples of {QUANTUM}, made by prompt tiles alone"
            )
        pages = tuple(source.memory.table.ids[: position // QUANTUM])
        new = sum(page not in self._marked for page in pages)
        taken = len(self._marked) * self._page_bytes + len(self._marks) * self._state_bytes
        if taken + new * self._page_bytes + self._state_bytes > self._cache_bytes:
            return None
        self._made += 1
        self._store.pages.hold(pages)
        self._marked.update(pages)
        self._marks[self._made] = Kept(
            pages=pages, states=source.memory.states(), last_hidden=source.last_hidden, position=position
        )
        return Mark(position=position, key=self._made, bytes=new * self._page_bytes + self._state_bytes)

    def drop(self, mark: Mark) -> None:
        """Forget a mark; streams opened from it hold its pages themselves."""
        kept = self._marks.pop(mark.key)
        self._store.pages.release(kept.pages)
        self._marked.subtract(kept.pages)
        self._marked = +self._marked

    def close(self, stream: StreamId) -> None:
        """Forget a stream; results that nobody waited for stay until they are."""
        self._streams.pop(stream).memory.table.clear()

    def free_bytes(self) -> int:
        """Bytes of the pages that no stream and no mark holds."""
        return self._store.pages.free * self._page_bytes

    def costs(self) -> WindowCosts:
        """Rows run one after the other, so a window of n rows costs n times one row, measured at load."""
        return self._costs

    def _calls(self, window: Window) -> list[machine.Call]:
        stream, count = self._streams[window.stream], len(window.tokens)
        if len(window.draws) != count:
            raise ValueError(f"{count} rows need as many draws, not {len(window.draws)}")
        stream.memory.need(window.start + count)
        tokens = [self._resolve(token) for token in window.tokens]
        stream.commit(window.kept)
        stream.lengths.window(window.start, count)
        stream.tokens = tokens
        return [self._machine.call(token, stream.memory, window.start + row, row) for row, token in enumerate(tokens)]

    def _draw(self, window: Window, outputs: Sequence[machine.Outputs]) -> tuple[RowOut, ...]:
        stream = self._streams[window.stream]
        stream.hiddens = [output.hidden for output in outputs]
        stream.drawn = [drawing.draw(output.logits[0], draw) for output, draw in zip(outputs, window.draws, strict=True)]
        return tuple(stream.drawn)

    def _resolve(self, token: int | FromTicket) -> int:
        if isinstance(token, FromTicket):
            return self._results[token.ticket][token.window][token.row].token
        return token

    def _ticket(self, result: tuple[tuple[RowOut, ...], ...]) -> Ticket:
        self._made += 1
        self._results[Ticket(self._made)] = result
        return Ticket(self._made)

    def _measure(self) -> WindowCosts:
        """Seconds of one row and of one draft, after a warm-up row each."""
        memory = Memory(self._store)
        seconds = {"main": 0.0, "head": 0.0}
        if not memory.cover(3):
            return self._costs
        for name, program in (("main", self._model.main), ("head", self._model.head)):
            if program is None:
                continue
            hidden = torch.zeros((1, self._model.hidden), device=self._machine.device) if name == "head" else None
            for position in range(3):
                started = time.perf_counter()
                self._machine.row(program, 0, memory, position, position, hidden=hidden).logits.cpu()
                seconds[name] = time.perf_counter() - started
        memory.table.clear()
        return WindowCosts(rows=tuple(seconds["main"] * (n + 1) for n in range(ROWS)), draft=seconds["head"])


def _weight_bytes(spec: WeightSpec) -> int:
    count = 4
    for size in spec.shape:
        count *= size
    return count


def _widen(weight: Weight, device: torch.device) -> torch.Tensor:
    wide = dequantize(weight) if isinstance(weight, Affine) else weight.to(torch.float32)
    return wide.to(device)


def _available(limits: Limits) -> int:
    """Bytes that may be used: what the person said, else what the device has free."""
    if limits.memory_bytes is not None:
        return limits.memory_bytes
    device = torch.device(limits.device or "cpu")
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
