"""What the core may do (Options) and what it has done so far (Counters)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from homestretch.engine.drafts import Propose
from homestretch.engine.drafts.copies import Copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """window: tokens a stream may hold; streams: how many at once. sources: who drafts before the head, by name, best first.

    head: use the model's MTP head if it has one. prompt_cache_bytes 0 keeps no prompt states. piece_s: seconds that a prompt
    piece may take while replies wait; share: seconds of replies for each second of prompt reading.
    queue: requests that may wait. clock: seconds, for everything that is measured.
    """

    window: int
    streams: int
    sources: Mapping[str, Propose] = field(default_factory=lambda: {"copies": Copies})
    head: bool = True
    prompt_cache_bytes: int = 0
    piece_s: float = 0.5
    share: float = 1.0
    queue: int = 1024
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Sums since the start, and what is there now (running, waiting, kept_*, free_bytes)."""

    running: int = 0
    waiting: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reply_tokens: int = 0
    prompt_s: float = 0.0
    steps: int = 0
    step_rows: int = 0
    step_s: float = 0.0
    rounds: int = 0
    drafted: Mapping[str, int] = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    kept_marks: int = 0
    kept_bytes: int = 0
    free_bytes: int = 0
