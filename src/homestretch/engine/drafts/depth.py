"""How many drafts each stream gets in a round: measured costs of wider steps against what drafts of that depth brought so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST = 15
"""Drafts in a window: 16 rows, one of them the pending token."""

FADE = 0.97
"""How much an observation counts after the next one; about thirty rounds of memory."""


class Acceptance:
    """Running rate at which the draft at each depth stands, given that all before it stood. Starts at, and drifts to, `prior`."""

    def __init__(self, prior: float, weight: float = 2.0) -> None:
        self._prior, self._weight = prior, weight
        self._tried = [0.0] * MOST
        self._stood = [0.0] * MOST
        self._rests = 0

    def observe(self, drafted: int, accepted: int) -> None:
        """A round proposed `drafted` tokens, the first `accepted` of which stood."""
        self._wake()
        for depth in range(min(accepted + 1, drafted, MOST)):
            self._tried[depth] = self._tried[depth] * FADE + 1.0
            self._stood[depth] = self._stood[depth] * FADE + (1.0 if depth < accepted else 0.0)

    def rest(self) -> None:
        """A round without drafts of this kind: what is known fades, so that they are tried again some time."""
        self._rests += 1

    def _wake(self) -> None:
        if self._rests:
            fade = FADE**self._rests
            self._tried = [value * fade for value in self._tried]
            self._stood = [value * fade for value in self._stood]
            self._rests = 0

    def rates(self, limit: int) -> list[float]:
        """Chance that draft 0, 1, ... stands together with all before it. A depth never tried borrows from the one before it."""
        self._wake()
        chance, rates, before, weight = 1.0, [], self._prior, self._weight
        for tried, stood in zip(self._tried[: max(0, limit)], self._stood, strict=False):
            before = (stood + weight * before) / (tried + weight)
            chance *= before
            rates.append(chance)
        return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a stream could draft: chances by depth (see `Acceptance.rates`), and the seconds that making one draft takes."""

    chances: Sequence[float]
    draft_s: float = 0.0


def depths(step_s: Callable[[int], float], offers: Sequence[Offer]) -> tuple[int, ...]:
    """Drafts for each stream so that the expected tokens per second of the whole step are highest.

    step_s: seconds of a step by rows. Rows are offered in order of their chance; the best prefix of that order wins. A step's
    seconds are those of its rows plus those of making the drafts.
    """
    queue = sorted((-chance, depth, stream) for stream, offer in enumerate(offers) for depth, chance in enumerate(offer.chances))
    chosen = [0] * len(offers)
    if not queue:
        return tuple(chosen)
    rows, tokens, making = len(offers), float(len(offers)), 0.0
    best_rate, best = tokens / step_s(rows), 0
    for count, (chance, _, stream) in enumerate(queue, start=1):
        tokens, making = tokens - chance, making + offers[stream].draft_s
        rate = tokens / (step_s(rows + count) + making)
        if rate > best_rate:
            best_rate, best = rate, count
    for _, _, stream in queue[:best]:
        chosen[stream] += 1
    return tuple(chosen)
