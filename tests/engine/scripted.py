"""A backend without a model: logits are a hash of everything a stream has read and how it was read. It refuses any misuse."""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from homestretch.engine import draws
from homestretch.engine.checkpoint import Checkpoint
from homestretch.engine.core import Core, Options
from homestretch.engine.program import QUANTUM, Model
from homestretch.engine.types import (
    Draw,
    Event,
    Limits,
    Mark,
    MemoryPlan,
    Numerics,
    PromptPiece,
    Request,
    RowOut,
    Sampling,
    StreamId,
    Summary,
    Ticket,
    Window,
    WindowCosts,
)

VOCAB = 64
PAGE_BYTES = 1000


class Misuse(AssertionError):
    """The core broke the protocol."""


def demand(holds: bool, what: str) -> None:
    if not holds:
        raise Misuse(what)


@dataclass
class State:
    """A stream: a digest of all it has read; rows of the last window wait for their commit."""

    digest: bytes = b""
    length: int = 0
    prompt_only: bool = True
    room: int = 0
    window: list[tuple[bytes, int]] = field(default_factory=list)  # digest after each row, and its token
    drawn: list[int] = field(default_factory=list)
    pending: int = -1
    texts: list[int] = field(default_factory=list)


Script = Callable[[Sequence[int], bytes], np.ndarray]


def scramble(texts: Sequence[int], digest: bytes, vocab: int = VOCAB) -> np.ndarray:
    """Logits that depend on every token and on how it was read, yet with some structure: a few likely tokens."""
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    return (rng.standard_normal(vocab) * 2.0).astype(np.float32)


def repeats(period: int) -> Script:
    """Logits of a model that says its text again: the token `period` places before is nearly certain."""

    def script(texts: Sequence[int], digest: bytes) -> np.ndarray:
        logits = scramble(texts, digest)
        if len(texts) >= period:
            logits[texts[len(texts) - period]] += 40.0
        return logits

    return script


class Scripted:
    """See the module. head: share of the chain's drafts that agree with the main model's own draw, or None for no head."""

    name = "scripted"
    numerics = Numerics(backend="scripted", quantum=QUANTUM, attention_chunk=QUANTUM, activations="none", prompt="none")

    def __init__(
        self,
        *,
        script: Script = scramble,
        head: float | None = None,
        pages: int = 10_000,
        costs: WindowCosts | None = None,
        vocab: int = VOCAB,
    ) -> None:
        self.script, self.head, self.pages, self.vocab = script, head, pages, vocab
        self._costs = costs or WindowCosts(rows=(1.0,) * 16, draft=0.0)
        self.streams: dict[StreamId, State] = {}
        self.marks: dict[int, State] = {}
        self.results: dict[Ticket, tuple[tuple[RowOut, ...], ...]] = {}
        self.spoiled = range(0)  # positions whose computation fails
        self.token_s = 0.0  # how long reading a prompt token takes
        self.stumbles: set[int] = set()  # steps with these numbers fail, whoever is in them
        self.steps = 0
        self.absorbs = 0
        self.opened = 0
        self.gate = threading.Event()  # reading waits for it
        self.gate.set()
        self.widths: list[int] = []
        self.at_once: list[int] = []
        self.pieces: list[tuple[StreamId, int, int]] = []
        self.thread: int | None = None
        self._next = 0

    def _number(self) -> int:
        self.thread = self.thread or threading.get_ident()
        demand(self.thread == threading.get_ident(), "calls come from one thread")
        self._next += 1
        return self._next

    @classmethod
    def refusal(cls, device: str = "") -> str | None:
        return None

    @classmethod
    def lacks(cls, model: Model) -> str | None:
        return None

    def plan(self, model: Model, limits: Limits) -> MemoryPlan:
        raise NotImplementedError

    def load(self, model: Model, checkpoint: Checkpoint, limits: Limits) -> None:
        raise NotImplementedError

    def used(self) -> int:
        return sum(-(-s.room // QUANTUM) for s in self.streams.values()) + sum(-(-s.length // QUANTUM) for s in self.marks.values())

    def free_bytes(self) -> int:
        return (self.pages - self.used()) * PAGE_BYTES

    def open(self, mark: Mark | None) -> StreamId:
        stream = StreamId(self._number())
        self.opened += 1
        state = State()
        if mark is not None:
            kept = self.marks[mark.key]
            state = State(digest=kept.digest, length=kept.length, room=kept.length, texts=list(kept.texts))
        self.streams[stream] = state
        return stream

    def reserve(self, stream: StreamId, upto: int) -> bool:
        state = self.streams[stream]
        if upto <= state.room:
            return True
        if self.used() - (-(-state.room // QUANTUM)) + -(-upto // QUANTUM) > self.pages:
            return False
        state.room = upto
        return True

    def read(self, piece: PromptPiece) -> Ticket:
        state = self.streams[piece.stream]
        demand(piece.start % QUANTUM == 0 and piece.start == state.length, "pieces start on a tile, where the last one ended")
        demand(state.prompt_only and 0 < len(piece.tokens) <= 2048, "prompts come first, in pieces")
        demand(piece.draw is not None or len(piece.tokens) % QUANTUM == 0, "only the last piece may end off a tile")
        demand(piece.start + len(piece.tokens) <= state.room, "memory is reserved before it is used")
        self.gate.wait(10)
        if piece.start + len(piece.tokens) - 1 in self.spoiled:
            raise RuntimeError("spoiled prompt")
        time.sleep(self.token_s * len(piece.tokens))
        for start in range(0, len(piece.tokens), QUANTUM):
            tile = piece.tokens[start : start + QUANTUM]
            state.digest = hashlib.sha256(b"tile" + state.digest + array("I", tile).tobytes()).digest()
        state.texts.extend(piece.tokens)
        state.length += len(piece.tokens)
        self.pieces.append((piece.stream, piece.start, state.length))
        outs: tuple[tuple[RowOut, ...], ...] = ()
        if piece.draw is not None:
            demand(piece.draw.position == state.length, "a row draws the next position")
            row = draws.draw(torch.from_numpy(self.script(state.texts, state.digest)), piece.draw)
            state.pending = row.token
            outs = ((row,),)
        return self._ticket(outs)

    def _ticket(self, outs: tuple[tuple[RowOut, ...], ...]) -> Ticket:
        ticket = Ticket(self._number())
        self.results[ticket] = outs
        return ticket

    def _commit(self, state: State, kept: int) -> None:
        demand(0 <= kept <= len(state.window), "only rows of the last window can stand")
        demand(kept > 0 or not state.window, "at least the pending row of a window stands")
        if kept:
            state.digest = state.window[kept - 1][0]
            state.length += kept
            state.texts.extend(token for _, token in state.window[:kept])
            state.pending = state.drawn[kept - 1]
        state.window, state.drawn = [], []

    def step(self, windows: Sequence[Window]) -> Ticket:
        demand(len({w.stream for w in windows}) == len(windows), "one window a stream")
        self.steps += 1
        if self.steps in self.stumbles:
            raise RuntimeError("the step stumbled")
        for window in windows:
            if window.start + len(window.tokens) - 1 in self.spoiled:
                raise RuntimeError("spoiled window")
        self.at_once.append(len(windows))
        outs = []
        for window in windows:
            state = self.streams[window.stream]
            self._commit(state, window.kept)
            demand(window.start == state.length, f"the window starts at {window.start}, the stream stands at {state.length}")
            demand(window.tokens[0] == state.pending, "the first row is the pending token")
            demand(1 <= len(window.tokens) <= 16 and len(window.draws) == len(window.tokens), "1 to 16 rows, a draw each")
            demand(window.start + len(window.tokens) <= state.room, "memory is reserved before it is used")
            state.prompt_only = False
            self.widths.append(len(window.tokens))
            digest, texts, rows = state.digest, list(state.texts), []
            for i, (token, draw) in enumerate(zip(window.tokens, window.draws, strict=True)):
                demand(isinstance(token, int), "tokens are known here")
                demand(draw.position == window.start + i + 1, "a row draws the next position")
                digest = hashlib.sha256(b"row" + digest + int(token).to_bytes(4, "little")).digest()
                texts.append(int(token))
                rows.append(draws.draw(torch.from_numpy(self.script(texts, digest)), draw))
                state.window.append((digest, int(token)))
                state.drawn.append(rows[-1].token)
            outs.append(tuple(rows))
        return self._ticket(tuple(outs))

    def draft(self, stream: StreamId, kept: int, draws_: Sequence[Draw], limit: int) -> Ticket:
        """The chain knows the main model's future and says it with probability `head`, else something else."""
        demand(self.head is not None, "there is no head")
        state = self.streams[stream]
        self.absorbs += 1
        demand(kept == 0 if not state.window else 0 < kept <= len(state.window), "rows of the last window")
        demand(len(draws_) >= limit, "a draw for each draft")
        digest = state.window[kept - 1][0] if kept else state.digest
        texts = [*state.texts, *(token for _, token in state.window[:kept])]
        token = state.drawn[kept - 1] if kept else state.pending
        rows = []
        for i in range(limit):
            demand(draws_[i].position == state.length + kept + 1 + i, "the position that the draft will have")
            digest = hashlib.sha256(b"row" + digest + token.to_bytes(4, "little")).digest()
            texts.append(token)
            token = draws.draw(torch.from_numpy(self.script(texts, digest)), draws_[i]).token
            if (digest[9] / 256) >= (self.head or 0.0):
                token = (token + 1 + digest[10] % (self.vocab - 1)) % self.vocab
            rows.append(RowOut(token=token))
        return self._ticket((tuple(rows),))

    def wait(self, ticket: Ticket) -> tuple[tuple[RowOut, ...], ...]:
        return self.results.pop(ticket)

    def mark(self, stream: StreamId) -> Mark | None:
        state = self.streams[stream]
        demand(state.prompt_only and state.length % QUANTUM == 0 and state.length > 0, "only prompt states, on a tile")
        if self.used() + state.length // QUANTUM > self.pages:
            return None
        key = self._number()
        self.marks[key] = State(digest=state.digest, length=state.length, texts=list(state.texts))
        return Mark(position=state.length, key=key, bytes=state.length // QUANTUM * PAGE_BYTES)

    def drop(self, mark: Mark) -> None:
        del self.marks[mark.key]

    def close(self, stream: StreamId) -> None:
        del self.streams[stream]

    def costs(self) -> WindowCosts:
        return self._costs


class Listener:
    """Collects the events of one request."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.rows: list[RowOut] = []
        self.events: list[Event] = []
        self.summary: Summary | None = None
        self.done = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.tokens.extend(event.tokens)
        self.rows.extend(event.rows)
        if event.summary is not None:
            demand(self.summary is None, "one summary a request")
            self.summary = event.summary
            self.done.set()

    def wait(self, seconds: float = 30.0) -> Summary:
        demand(self.done.wait(seconds), "the reply ends in time")
        demand(self.summary is not None, "the reply has a summary")
        return self.summary  # type: ignore[return-value]


_numbers = iter(range(1, 1 << 60))


def request(prompt: Sequence[int], emit: Listener, **changes: object) -> Request:
    values: dict[str, object] = {"max_tokens": 32, "sampling": Sampling(), "seed": 1, "ends": frozenset(), **changes}
    return Request(id=f"r{next(_numbers)}", prompt=tuple(prompt), emit=emit, **values)  # type: ignore[arg-type]


def running(backend: Scripted, **changes: object) -> Core:
    """A started core on the backend."""
    clock = changes.pop("clock", None) or (lambda: 0.0)  # time stands still, so that costs stay what the backend says
    values: dict[str, object] = {"window": 8192, "streams": 8, "piece_s": 0.001, "clock": clock, **changes}
    core = Core(lambda: (backend, Options(**values), backend.head is not None))  # type: ignore[arg-type,return-value]
    core.start()
    return core


def say(core: Core, prompt: Sequence[int], **changes: object) -> Listener:
    """One reply from beginning to end."""
    listener = Listener()
    core.submit(request(prompt, listener, **changes))
    listener.wait()
    return listener
