"""The cpu backend: a Program compiled into a flat list of steps, run in one C++ call per step by threads that stay alive."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import psutil

from homestretch.engine.backends import planning
from homestretch.engine.backends.cpu import build, heads, lowering, native
from homestretch.engine.backends.cpu.calls import F32, Caller, Rows
from homestretch.engine.backends.cpu.emit import Emitter
from homestretch.engine.backends.cpu.memory import Kept, Pool, Stream, page_layout, state_layout
from homestretch.engine.backends.cpu.weights import Weights, packed_bytes
from homestretch.engine.checkpoint import Checkpoint
from homestretch.engine.program import QUANTUM, Model
from homestretch.engine.state import Table
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

ROWS = 16
MEASURED = (1, 2, 4, 8, 16)
"""Window widths that are timed at load; those between are interpolated."""
BUSY = 1.25
"""Elapsed over own time of the timing at load from which the machine is said to be busy."""
PIECE = 512
"""Prompt rows in one call: enough to share a dequantized panel, few enough to stay in cache. Changes no bit."""


class Backend:
    """Computes each call when it is made; `wait` only hands out results."""

    name: ClassVar[str] = "cpu"

    def __init__(self, *, head_bits: int | None = None, activations: str = "int16") -> None:
        """head_bits 4 requantizes the output matrix; activations: "int16", or "int8" for speed at an error of 4e-3."""
        self._head_bits, self._fine = head_bits, activations != "int8"
        self._streams: dict[StreamId, Stream] = {}
        self._marks: dict[int, Kept] = {}
        self._marked: Counter[int] = Counter()
        self._results: dict[Ticket, tuple[tuple[RowOut, ...], ...]] = {}
        self._made = 0
        self._costs = WindowCosts(rows=(0.0,) * ROWS, draft=0.0)

    @cached_property
    def _library(self) -> ctypes.CDLL:
        """The kernels, compiled when they are first needed: a plan needs none."""
        return native.load(build.library())

    @cached_property
    def numerics(self) -> Numerics:
        """Instruction set, precision of rows and of prompts."""
        return Numerics(
            backend=f"cpu {self._library.hs_form().decode()}",
            quantum=QUANTUM,
            attention_chunk=QUANTUM,
            activations="int16" if self._fine else "int8",
            prompt=self._library.hs_prompt_form().decode() + (f", head {self._head_bits} bits" if self._head_bits else ""),
        )

    @classmethod
    def refusal(cls, device: str = "") -> str | None:
        """Why this backend cannot work here: a device that is none, or no compiler and nothing compiled before."""
        if device not in ("", "cpu"):
            return f"the cpu backend runs on the CPU, not on {device!r}; leave --device out"
        if build.compiler() is None:
            return (
                f"no C++ compiler ({', '.join(build.COMPILERS)}) to build the kernels once; install g++, or use --backend reference"
            )
        return None

    @classmethod
    def lacks(cls, model: Model) -> str | None:
        """Operations that no kernel here computes, in one line; None if there are none."""
        programs = [program for program in (model.main, model.head) if program]
        missing = sorted({op.kind.__name__ for program in programs for op in program.ops if op.kind not in lowering.KINDS})
        return f"the cpu backend does not compute {', '.join(missing)}; use --backend reference" if missing else None

    def plan(self, model: Model, limits: Limits) -> MemoryPlan:
        """Memory from headers alone."""
        available = limits.memory_bytes if limits.memory_bytes is not None else int(psutil.virtual_memory().available)
        return planning.plan(model, limits, available=available, weight_bytes=packed_bytes, kv_element=2)

    def load(self, model: Model, checkpoint: Checkpoint, limits: Limits) -> None:
        """Repack every weight; SetupError for an operation that this backend does not compute."""
        plan = self.plan(model, limits)
        self._model = model
        engine = int(self._library.hs_new(limits.threads or threads(), int(self._fine)))
        self._engine = engine
        page_at, page_bytes = page_layout(model)
        state_at, self._state_floats, replay = state_layout(model)
        self._library.hs_state(engine, self._state_floats, replay)
        weights = Weights(self._library, engine, model, checkpoint, self._head_bits)
        emitter = Emitter(self._library, engine, model.weights, weights, page_at, state_at)
        self._main = emitter.program(model.main, model.hidden, model.vocab)
        self._head = emitter.program(model.head, model.hidden, model.vocab) if model.head else -1
        self._caller = Caller(self._library, engine, model.vocab, model.hidden)
        self._cache_pages = limits.prompt_cache_bytes // page_bytes if page_bytes else 0
        self._pool = Pool(plan.streams * -(-limits.window // QUANTUM) + self._cache_pages, page_bytes)
        getattr(checkpoint, "release", lambda: None)()  # a mapped file need not stay in memory beside the packed weights
        self._library.hs_trim()
        self._costs = self._measure()

    def open(self, mark: Mark | None) -> StreamId:
        """A new stream, empty or standing at `mark`."""
        self._made += 1
        made = Stream(handle=int(self._library.hs_stream(self._engine)), table=Table(self._pool.pages))
        if mark is not None:
            kept = self._marks[mark.key]
            self._pool.pages.hold(kept.pages)
            made.table.ids += kept.pages
            made.lengths.committed = made.head = kept.position
            made.last_hidden = kept.last_hidden
            ctypes.memmove(self._library.hs_stream_state(made.handle), kept.state, len(kept.state))
            self._point(made)
        self._streams[StreamId(self._made)] = made
        return StreamId(self._made)

    def reserve(self, stream: StreamId, upto: int) -> bool:
        """Pages for positions below `upto`; False: no room now."""
        target = self._streams[stream]
        new = target.table.cover(upto)
        if new:
            self._point(target)
        return new is not None

    def read(self, piece: PromptPiece) -> Ticket:
        """Prompt rows, up to PIECE in one call."""
        stream = self._streams[piece.stream]
        stream.lengths.read(piece.start, len(piece.tokens))
        drawn: list[RowOut] = []
        for offset in range(0, len(piece.tokens), PIECE):
            tokens = piece.tokens[offset : offset + PIECE]
            last = offset + len(tokens) == len(piece.tokens)
            draws = [(len(tokens) - 1, piece.draw)] if piece.draw and last else []
            rows = [Rows(stream=stream.handle, start=piece.start + offset, tokens=tokens)]
            drawn, hidden = self._caller.run(self._main, rows, draws, prompt=True, want_hidden=self._head >= 0)
            if hidden is not None:
                heads.absorb_prompt(self._caller, self._head, stream, piece.start + offset, tokens, hidden)
                stream.last_hidden = hidden[-1]
        stream.drawn = drawn
        return self._ticket((tuple(drawn),) if piece.draw else ())

    def step(self, windows: Sequence[Window]) -> Ticket:
        """All rows of all windows in one call."""
        rows: list[Rows] = []
        draws: list[Draw] = []
        for window in windows:
            stream, count = self._streams[window.stream], len(window.tokens)
            if len(window.draws) != count:
                raise ValueError(f"{count} rows need as many draws, not {len(window.draws)}")
            tokens = [self._resolve(token) for token in window.tokens]
            stream.commit(window.kept)
            stream.lengths.window(window.start, count)
            stream.tokens = tokens
            rows.append(Rows(stream=stream.handle, start=window.start, tokens=tokens, kept=window.kept))
            draws += window.draws
        drawn, hidden = self._caller.run(self._main, rows, list(enumerate(draws)), want_hidden=self._head >= 0)
        result: list[tuple[RowOut, ...]] = []
        first = 0
        for window in windows:
            stream, last = self._streams[window.stream], first + len(window.tokens)
            stream.drawn = drawn[first:last]
            stream.hiddens = None if hidden is None else hidden[first:last]
            result.append(tuple(stream.drawn))
            first = last
        return self._ticket(tuple(result))

    def draft(self, stream: StreamId, kept: int, draws: Sequence[Draw], limit: int) -> Ticket:
        """MTP: absorb kept rows, then a chain; see `heads.draft`."""
        if self._head < 0:
            raise ValueError(f"{self._model.name} has no MTP head")
        return self._ticket((heads.draft(self._caller, self._head, self._streams[stream], kept, draws, limit),))

    def wait(self, ticket: Ticket) -> tuple[tuple[RowOut, ...], ...]:
        """Results of a call, once."""
        return self._results.pop(ticket)

    def mark(self, stream: StreamId) -> Mark | None:
        """Keep the stream's state; None when the prompt cache has no room for the pages that no other mark holds."""
        source = self._streams[stream]
        position = source.lengths.committed
        if position == 0 or position % QUANTUM or not source.lengths.pure:
            raise ValueError(
                f"position {position} cannot be marked: marks stand at multiples of {QUANTUM}, made by prompt tiles alone"
            )
        pages = tuple(source.table.ids[: position // QUANTUM])
        new = sum(page not in self._marked for page in pages)
        if len(self._marked) + new > self._cache_pages:
            return None
        self._made += 1
        self._pool.pages.hold(pages)
        self._marked.update(pages)
        state = ctypes.string_at(self._library.hs_stream_state(source.handle), self._state_floats * 4)
        self._marks[self._made] = Kept(pages=pages, state=state, last_hidden=source.last_hidden, position=position)
        return Mark(position=position, key=self._made, bytes=new * self._pool.page_bytes + len(state))

    def drop(self, mark: Mark) -> None:
        """Forget a mark; streams opened from it hold its pages themselves."""
        kept = self._marks.pop(mark.key)
        self._pool.pages.release(kept.pages)
        self._marked.subtract(kept.pages)
        self._marked = +self._marked

    def close(self, stream: StreamId) -> None:
        """Forget a stream; results that nobody waited for stay until they are."""
        gone = self._streams.pop(stream)
        gone.table.clear()
        self._library.hs_stream_free(gone.handle)

    def free_bytes(self) -> int:
        """Bytes of the pages that no stream and no mark holds."""
        return self._pool.pages.free * self._pool.page_bytes

    def costs(self) -> WindowCosts:
        """Seconds of windows of 1 to 16 rows at the start of a text and of a draft, timed at load."""
        return self._costs

    def _point(self, stream: Stream) -> None:
        """Tell the engine where the stream's pages lie."""
        addresses = (ctypes.c_void_p * len(stream.table.ids))(*(self._pool.address(page) for page in stream.table.ids))
        self._library.hs_stream_pages(stream.handle, addresses, len(addresses))

    def _resolve(self, token: int | FromTicket) -> int:
        if isinstance(token, FromTicket):
            token = self._results[token.ticket][token.window][token.row].token
        if not 0 <= token < self._model.vocab:
            raise ValueError(f"token {token} is not in the vocabulary of {self._model.vocab}")
        return token

    def _ticket(self, result: tuple[tuple[RowOut, ...], ...]) -> Ticket:
        self._made += 1
        self._results[Ticket(self._made)] = result
        return Ticket(self._made)

    def _measure(self) -> WindowCosts:
        """Times windows of MEASURED rows and a draft, the best of three each, on tokens spread over the vocabulary."""
        stream = self.open(None)
        if not self.reserve(stream, QUANTUM):
            self.close(stream)
            return self._costs
        handle, wall, own = self._streams[stream].handle, 0.0, 0.0
        draw = Draw(seed=0, position=0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)

        def best(program: int, count: int, hidden: F32 | None) -> float:
            nonlocal wall, own
            tokens = [(7919 * (row + 1)) % self._model.vocab for row in range(count)]
            rows, draws, taken = [Rows(stream=handle, start=0, tokens=tokens)], [(row, draw) for row in range(count)], []
            for _ in range(3):
                started, busy = time.perf_counter(), time.thread_time()
                with contextlib.suppress(FloatingPointError):
                    self._caller.run(program, rows, draws, hidden=hidden, want_hidden=self._head >= 0)
                taken.append(time.perf_counter() - started)
                wall, own = wall + taken[-1], own + time.thread_time() - busy
            return min(taken)

        seconds = {count: best(self._main, count, None) for count in MEASURED}
        draft = best(self._head, 1, np.ones((1, self._model.hidden), dtype=np.float32)) if self._head >= 0 else 0.0
        self.close(stream)
        if wall > BUSY * own:
            sys.stderr.write(
                f"This machine is busy: the engine had to wait for a core {100 * (1 - own / wall):.0f} % of the time it was timed "
                "at the start; replies will be slower than they could be\n"
            )
        return WindowCosts(rows=tuple(_between(seconds, count) for count in range(1, ROWS + 1)), draft=draft)


def _between(seconds: dict[int, float], count: int) -> float:
    low = max(known for known in seconds if known <= count)
    high = min(known for known in seconds if known >= count)
    share = (count - low) / (high - low) if high > low else 0.0
    return seconds[low] + share * (seconds[high] - seconds[low])


def threads() -> int:
    """Threads that this process may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
