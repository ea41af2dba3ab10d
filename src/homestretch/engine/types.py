"""Nouns that cross the engine's borders. All frozen; the mutable state lives in `core` and in the backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NewType, Protocol

StreamId = NewType("StreamId", int)
Ticket = NewType("Ticket", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromTicket:
    """A token that a running step will draw: row `row` of window `window` of `ticket`."""

    ticket: Ticket
    window: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a reply is drawn. temperature 0 is argmax; top_k 0, top_p 1 and min_p 0 switch a rule off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How one row's token is drawn. `position` is the absolute position of the token to be drawn (the row's own + 1).

    bias: logit bias and penalties resolved for the text before the row, as (id, addend) pairs; mask: allowed ids as a bitmap,
    lowest bit first, or None; logprobs: how many top log probabilities to return (0 = none, the drawn token's own excluded).
    """

    seed: int
    position: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    bias: tuple[tuple[int, float], ...] = ()
    mask: bytes | None = None
    logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """1 to 16 rows of one stream in one step: the pending token and its drafts.

    start: absolute position of tokens[0]. kept: how many rows of the stream's previous window stand; the backend commits
    those before it runs this one (0 after a prompt). draws[i] draws the token that follows tokens[i].
    """

    stream: StreamId
    start: int
    tokens: tuple[int | FromTicket, ...]
    draws: tuple[Draw, ...]
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPiece:
    """Consecutive prompt tokens of one stream. start is a multiple of QUANTUM; only a prompt's last piece may end off one.

    draw: how to draw the first reply token, on the last piece; else None. The program reads the tokens in tiles of QUANTUM.
    """

    stream: StreamId
    start: int
    tokens: tuple[int, ...]
    draw: Draw | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOut:
    """The token that a row drew, its log probability (of the unmodified distribution; 0.0 unless asked), and the top list."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A kept prompt state, made by prompt arithmetic only. `position` is a multiple of QUANTUM; `key` names it in the backend."""

    position: int
    key: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a backend may use. window: tokens a stream; streams 0 = auto (up to 8); memory_bytes None = what the machine has."""

    window: int
    streams: int = 0
    threads: int = 0
    memory_bytes: int | None = None
    prompt_cache_bytes: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes a model needs, from headers alone."""

    model_bytes: int
    head_bytes: int
    kv_bytes_per_token: int
    head_kv_bytes_per_token: int
    state_bytes_per_stream: int
    stream_bytes: int
    streams: int
    left_bytes: int
    prompt_cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What a backend's bits depend on; part of every contract. Equality holds within one of these."""

    backend: str
    quantum: int
    attention_chunk: int
    activations: str
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCosts:
    """Measured seconds: rows[i] of one stream's window of i+1 rows; draft of one MTP draft (0.0 without a head)."""

    rows: tuple[float, ...]
    draft: float


FinishReason = Literal["stop", "length", "cancelled", "error"]


class Watch(Protocol):
    """Looks at the reply as it grows, token by token; lives above the core, which sees only yes or no."""

    def push(self, token: int) -> bool:
        """Take the next token; True when a stop string is complete with it."""


class Grammar(Protocol):
    """Which tokens may come next after a path of tokens; lives above the core."""

    def mask(self, path: tuple[int, ...]) -> bytes:
        """Allowed ids after `path` (tokens of the reply so far), as a bitmap."""

    def allows(self, path: tuple[int, ...], token: int) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One reply to make. Ids only: text and JSON stay in the server.

    seed None: a hash of the prompt ids. marks: prompt positions worth keeping (end of the system block, before the last user
    message). emit is called on the engine thread with each Event and must not block. priority: lower numbers are served first.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    seed: int | None
    ends: frozenset[int]
    emit: Callable[[Event], None]
    watch: Watch | None = None
    grammar: Grammar | None = None
    logprobs: int = 0
    draft: bool = True
    cache: bool = True
    marks: tuple[int, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """Drafting of one reply: rounds (target steps), tokens drafted, drafts that stood, and by whom."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_copies: int = 0
    accepted_mtp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The end of a reply. Times in seconds; token_sha is SHA-256 over the reply's ids as little-endian uint32."""

    finish: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prompt_s: float
    decode_s: float
    drafts: DraftCounts
    token_sha: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """New tokens of a reply, in order; `summary` on the last one. rows[i] belongs to tokens[i] when logprobs were asked."""

    tokens: tuple[int, ...]
    rows: tuple[RowOut, ...] = ()
    summary: Summary | None = None
