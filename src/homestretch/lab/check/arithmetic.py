"""The recount's own arithmetic: middle values, spreads, Wilson margins, printed digits. Written from the published formulas."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from math import fsum, isfinite, sqrt

NORMAL_975 = 1.959964


def middle(values: Iterable[float]) -> float | None:
    """The middle value, or the mean of the two middle ones; None for none."""
    row = sorted(values)
    if not row:
        return None
    half = len(row) // 2
    return float(row[half]) if len(row) % 2 else (row[half - 1] + row[half]) / 2


def average(values: Iterable[float]) -> float | None:
    row = list(values)
    return fsum(row) / len(row) if row else None


def variation_pct(values: Iterable[float]) -> float | None:
    """Sample standard deviation over the mean, percent: 132.4 and 399.2 give 71.0. None for fewer than two values."""
    row = list(values)
    if len(row) < 2:
        return None
    mean = fsum(row) / len(row)
    return 100 * sqrt(fsum((value - mean) ** 2 for value in row) / (len(row) - 1)) / mean if mean else None


def wilson(right: int, asked: int) -> tuple[float, float, float]:
    """Half width in points and both ends in percent of the Wilson interval at 95 %: 175 of 400 gives 4.8."""
    z2 = NORMAL_975**2
    scale = 100 / (asked + z2)
    centre = (right + z2 / 2) * scale
    half = NORMAL_975 * sqrt(right * (asked - right) / asked + z2 / 4) * scale
    return half, max(0.0, centre - half), min(100.0, centre + half)


def same(one: float | int | None, other: float | int | None) -> bool:
    """Equal but for the last bits of a double, which the order of a sum may move."""
    if one is None or other is None:
        return one is None and other is None
    return abs(one - other) <= 1e-9 * max(1.0, abs(one), abs(other))


def places(name: str) -> int:
    """Digits that a page prints for a number of that name."""
    if name.endswith("_gib"):
        return 2
    one = ("_per_s", "_pct", "_s", "_pts", "mean_accepted_length")
    return 1 if name.endswith(one) else 0


def printed(name: str, value: float | int | None) -> str:
    """The digits that must stand on a page."""
    if value is None or not isfinite(value):
        return ""
    step = Decimal(1).scaleb(-places(name))
    return (
        f"{Decimal(value).quantize(step, rounding=ROUND_HALF_EVEN):,f}"
        if places(name) == 0
        else str(Decimal(value).quantize(step, ROUND_HALF_EVEN))
    )


def prints_as(name: str, text: str, value: float | int | None) -> bool:
    """Whether `text` is how a page prints the value; at an exact tie both neighbours will do."""
    if value is None:
        return text in ("", "—")
    near = {printed(name, value), printed(name, value * (1 + 1e-9)), printed(name, value * (1 - 1e-9))}
    return text in near
