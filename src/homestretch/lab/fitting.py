"""The raw file of the memory test: one line a try of a window, with every half second's memory, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from homestretch.lab.records import append_lines, read_lines
from homestretch.lab.types import Record

FILE = "memory-fit.jsonl"
FILL_PCT = 95


class Foreign(Record, frozen=True, kw_only=True):
    """Another program whose own memory changed during the try; negative bytes: it gave memory back."""

    name: str
    pid: int
    bytes: int


class Try(Record, frozen=True, kw_only=True, omit_defaults=False):
    """One start of the server with one window. Bytes throughout; used: [seconds, largest MemTotal − MemAvailable of a half second].

    idle: stable value before the start; waited_s: how long it took to be stable. tree: the server's own memory (PSS) at its
    largest, tree_file: mapped files in it, mapped: which ones. own_only: no accelerator is known here, so that nothing but
    processes can hold what the server takes. discarded: why the try does not count though the model answered.
    """

    size: int
    attempt: int
    at: str
    outcome: Literal["answered", "failed"]
    reason: str = ""
    discarded: str = ""
    prompt_tokens: int = 0
    idle: int = 0
    waited_s: float = 0.0
    peak: int = 0
    samples: int = 0
    longest_gap_s: float = 0.0
    used: list[tuple[float, int]] = msgspec.field(default_factory=list)
    tree: int = 0
    tree_file: int = 0
    mapped: dict[str, int] = msgspec.field(default_factory=dict)
    gpu: int | None = None
    own_only: bool = False
    intruders: list[Foreign] = msgspec.field(default_factory=list)
    ready_s: float = 0.0
    notes: list[str] = msgspec.field(default_factory=list)
    log_tail: str = ""

    @property
    def rise(self) -> int:
        """Peak memory as the page prints it."""
        return self.peak - self.idle


def windows(smallest: int, largest: int) -> tuple[int, ...]:
    """Windows from `smallest`, doubling, up to `largest`; `largest` itself is the last even where doubling passes it by."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)


def prompt_size(window: int) -> int:
    """Tokens of the prompt: 95 % of the window, rounded down."""
    return window * FILL_PCT // 100


def append(folder: Path, one: Try) -> None:
    append_lines(folder / FILE, [one])


def tries(folder: Path) -> list[Try]:
    return list(read_lines(folder / FILE, Try))


def counting(every: Sequence[Try]) -> dict[int, Try]:
    """The try of each size that counts: the last one that was not discarded."""
    return {one.size: one for one in every if not one.discarded}


def expected_rise(done: Sequence[Try], size: int) -> int | None:
    """What the next window may need, by the two largest before it on a straight line; None where nothing is known yet."""
    known = sorted((one for one in done if one.outcome == "answered" and one.size < size), key=lambda one: one.size)
    if not known:
        return None
    top = known[-1]
    if len(known) == 1:
        return top.rise
    below = known[-2]
    slope = max(0.0, (top.rise - below.rise) / (top.size - below.size))
    return int(top.rise + slope * (size - top.size))


def as_told(extras: dict[str, Any], prompt_tokens: int | None, cached: int) -> tuple[float | None, float | None]:
    """(prefill tok/s, decode tok/s) as the server reports them in its timings, ours or llama.cpp's; None where it says nothing."""
    told = extras.get("timings")
    if not isinstance(told, dict):
        return None, None

    def figure(name: str) -> float | None:
        value = told.get(name)
        return float(value) if isinstance(value, int | float) and value > 0 else None

    prefill, prompt_s = figure("prompt_per_second"), figure("prompt_s")
    if prefill is None and prompt_s is not None and prompt_tokens is not None and prompt_tokens > cached:
        prefill = (prompt_tokens - cached) / prompt_s
    return prefill, figure("tokens_per_s") or figure("predicted_per_second")
