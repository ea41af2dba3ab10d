"""Medians, spreads, intervals: the arithmetic behind every number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Z = 1.959964  # two-sided 95 %


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def spread_pct(values: Sequence[float]) -> float | None:
    """Coefficient of variation with the sample standard deviation, percent; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    return 100.0 * statistics.stdev(values) / mean if mean else None


def wilson(right: int, asked: int) -> tuple[float, float]:
    """The Wilson 95 % interval of a rate, both ends in percent. asked >= 1."""
    p, n = right / asked, asked
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = wilson_half_width(right, asked) / 100.0
    return 100.0 * max(0.0, centre - half), 100.0 * min(1.0, centre + half)


def wilson_half_width(right: int, asked: int) -> float:
    """Half of the Wilson interval in percentage points: the margin a page prints beside the raw rate."""
    p, n = right / asked, asked
    return 100.0 * Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))


def acceptance_pct(accepted: int, drafted: int) -> float | None:
    """Drafts that stood, in percent of those made; None when nothing was drafted."""
    return 100.0 * accepted / drafted if drafted else None


def mean_accepted_length(tokens: int, accepted: int) -> float | None:
    """Tokens a round: N / (N - accepted); 2,048 tokens of which 1,182 were drafted give 2.4."""
    return tokens / (tokens - accepted) if tokens > accepted else None
