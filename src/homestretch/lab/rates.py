"""Rates of one request from its record: decode, prefill, whole reply; the definitions of docs/numbers.md, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from homestretch.lab import doubts
from homestretch.lab.stream import COUNTING
from homestretch.lab.types import Number, RequestRecord

WINDOW1_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Of one reply: N, k1, t_first and t_last in seconds since t0, and how many events count.

    most_k1: the most tokens that the first event can have carried, when k1 is only assumed: each other event has at least one.
    """

    tokens: int
    k1: int
    k1_known: bool
    t_first: float
    t_last: float
    events: int

    @property
    def most_k1(self) -> int:
        return self.k1 if self.k1_known else max(1, self.tokens - (self.events - 1))

    @property
    def decode_s(self) -> float:
        return self.t_last - self.t_first

    def decode(self) -> float | None:
        """(N - 1) / (t_last - t_first): the page's definition."""
        return (self.tokens - 1) / self.decode_s if self.decode_s > 0 else None

    def decode_k1(self) -> float | None:
        """(N - k1) / (t_last - t_first), where k1 is known."""
        return (self.tokens - self.k1) / self.decode_s if self.k1_known and self.decode_s > 0 else None

    def decode_low(self) -> float | None:
        return (self.tokens - self.most_k1) / self.decode_s if self.decode_s > 0 else None

    def few(self) -> bool:
        return self.tokens < doubts.FEWEST_TOKENS or self.events < doubts.FEWEST_EVENTS


def timing(record: RequestRecord) -> Timing | None:
    """None when the record lacks tokens or counting events."""
    counting = [event for event in record.events if event[1] in COUNTING]
    if not counting or record.usage is None or record.usage.completion_tokens is None:
        return None
    ends = [event for event in record.events if event[1] == "finish" and (event[2] or 0) >= 1]
    return Timing(
        tokens=record.usage.completion_tokens,
        k1=record.k1 or 1,
        k1_known=record.k1_source not in ("", "assumed"),
        t_first=counting[0][0],
        t_last=max([counting[-1][0], *(event[0] for event in ends)]),
        events=len(counting),
    )


def window1(record: RequestRecord) -> float | None:
    """Decode over the first 256 tokens, by the page's definition; None where tokens of events are not known or fewer came."""
    counting = [event for event in record.events if event[1] in COUNTING]
    done = 0
    for at, _, tokens in counting:
        if tokens is None:
            return None
        done += tokens
        if done >= WINDOW1_TOKENS:
            return (done - 1) / (at - counting[0][0]) if at > counting[0][0] else None
    return None


def prefill(record: RequestRecord) -> float | None:
    """(prompt tokens - cached) / (t_first - t0)."""
    counting = [event for event in record.events if event[1] in COUNTING]
    if not counting or not record.prompt_tokens or counting[0][0] <= 0:
        return None
    cached = (record.usage.cached_tokens or 0) if record.usage else 0
    return (record.prompt_tokens - cached) / counting[0][0]


def ttft_s(record: RequestRecord) -> float | None:
    counting = [event for event in record.events if event[1] in COUNTING]
    return counting[0][0] if counting else None


def number(
    values: list[float | None],
    unit: str,
    source: str,
    *,
    doubts: set[str] | frozenset[str] = frozenset(),
    low: float | None = None,
    high: float | None = None,
) -> Number:
    """The median over runs with its spread; value None when no run gave one."""
    from homestretch.lab.stats import median, spread_pct

    known = [value for value in values if value is not None]
    return Number(
        value=median(known) if known else None,
        unit=unit,
        n=len(known),
        low=low,
        high=high,
        spread_pct=spread_pct(known),
        doubts=sorted(doubts),
        source=source,
    )
