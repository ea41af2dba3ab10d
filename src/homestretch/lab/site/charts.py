"""Charts as inline SVG: lines over a doubling axis, and points with margins. Coloured by the page's own CSS variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 440, 256
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 26, 44


@dataclass(frozen=True, kw_only=True)
class Series:
    """A named line: (x, y) with x > 0; printed are the digits shown beside each point and in the table."""

    name: str
    points: Sequence[tuple[float, float]]
    printed: Sequence[str]
    doubted: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart ready for a template: the SVG and the table of the same values."""

    title: str
    svg: Markup
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A point with a vertical margin, a label and a link."""

    x: float
    y: float
    margin: float
    label: str
    href: str
    printed: tuple[str, str]


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that cover low..high: steps of 1, 2, 2.5 or 5 times a power of ten."""
    span = max(high - low, 1e-9)
    raw = span / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.floor(low / step)
    return [round((first + index) * step, 10) for index in range(math.ceil((high - first * step) / step - 1e-9) + 1)]


def shortened(text: str, most: int = 40) -> str:
    """A label of at most `most` characters, cut at a word."""
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0].rstrip(",") + " …"


def short(value: float) -> str:
    """A tick's text: 8000 -> 8,000, 0.5 -> 0.5."""
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def alternative(title: str, series: Sequence[Series], labels: Sequence[str], unit: str) -> str:
    """One sentence a reader without the picture gets: each line's first and last value."""
    parts = [
        f"{line.name}: {line.printed[0]} {unit} at {labels[0]} to {line.printed[-1]} {unit} at {labels[-1]}" for line in series
    ]
    return f"{title}. {'; '.join(parts)}."


def lines(
    title: str, series: Sequence[Series], labels: Sequence[str], unit: str, axis: str, *, ident: str, axis_title: str
) -> Chart | None:
    """A line chart over positions that double; None when there is nothing to draw.

    labels: the text under each x, the same x in every series. unit: of y. ident: unique on the page.
    """
    series = [line for line in series if line.points]
    if not series:
        return None
    xs = sorted({x for line in series for x, _ in line.points})
    top = max(y for line in series for _, y in line.points)
    marks = ticks(0.0, top * 1.02)
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    low, high = math.log2(xs[0]), math.log2(xs[-1])

    def px(x: float) -> float:
        return LEFT + (inner_w * (math.log2(x) - low) / (high - low) if high > low else inner_w / 2)

    def py(y: float) -> float:
        return TOP + inner_h * (1 - y / marks[-1])

    out = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" class="chart" role="img" aria-labelledby="{escape(ident)}-t {escape(ident)}-d">',
        f'<title id="{escape(ident)}-t">{escape(title)}</title>',
        f'<desc id="{escape(ident)}-d">{escape(alternative(title, series, labels, unit))}</desc>',
    ]
    for mark in marks:
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py(mark):.1f}" y2="{py(mark):.1f}"/>')
        out.append(f'<text class="tick" x="{LEFT - 7}" y="{py(mark) + 3.5:.1f}" text-anchor="end">{short(mark)}</text>')
    for x, label in zip(xs, labels, strict=True):
        out.append(f'<text class="tick" x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{escape(label)}</text>')
    out.append(f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(axis_title)}</text>')
    out.append(f'<text class="axis" x="{LEFT - 40}" y="10">{escape(unit)}</text>')
    for index, line in enumerate(series, 1):
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in line.points)
        out.append(f'<polyline class="line s{index}" points="{path}"/>')
        for (x, y), text in zip(line.points, line.printed, strict=True):
            out.append(
                f'<circle class="dot s{index}" cx="{px(x):.1f}" cy="{py(y):.1f}" r="3.6">'
                f"<title>{escape(line.name)}: {escape(text)} {escape(unit)}</title></circle>"
            )
    out += value_labels(series, px, py)
    out.append("</svg>")
    if len(series) > 1:
        keys = "".join(f'<span class="key s{index}">{escape(line.name)}</span>' for index, line in enumerate(series, 1))
        out.append(f'<p class="legend" aria-hidden="true">{keys}</p>')
    return Chart(
        title=title,
        svg=Markup("".join(out)),
        columns=[axis, *(f"{line.name} ({unit})" for line in series)],
        rows=[[label, *(value_at(line, x) for line in series)] for x, label in zip(xs, labels, strict=True)],
    )


def value_labels(series: Sequence[Series], px, py) -> list[str]:  # type: ignore[no-untyped-def]
    """The printed value above each point of a single line; with two lines only at the ends, where they do not collide."""
    out = []
    for index, line in enumerate(series, 1):
        last = len(line.points) - 1
        for place, ((x, y), text) in enumerate(zip(line.points, line.printed, strict=True)):
            others = [dict(other.points).get(x) for other in series if other is not line]
            near = any(other is not None and abs(py(other) - py(y)) < 26 and other >= y for other in others)
            below = near
            offset = 17 if below else -8
            anchor = "start" if place == 0 and last else "end" if place == last and last else "middle"
            out.append(
                f'<text class="value s{index}" x="{px(x):.1f}" y="{py(y) + offset:.1f}" text-anchor="{anchor}">'
                f"{escape(text)}</text>"
            )
    return out


def value_at(line: Series, x: float) -> str:
    """The printed value of a line at x, or a dash."""
    return next((text for (at, _), text in zip(line.points, line.printed, strict=True) if at == x), "—")


def spots(title: str, points: Sequence[Spot], *, ident: str, x_title: str, y_title: str, columns: list[str]) -> Chart | None:
    """Speed against quality: x on a doubling axis, y from 0 to 100 with whiskers of ± margin; each point is a link."""
    points = [point for point in points if point.x > 0]
    if not points:
        return None
    width, height = 880, 400
    inner_w, inner_h = width - LEFT - 24, height - TOP - BOTTOM
    low = math.floor(math.log2(min(point.x for point in points)) - 0.15)
    high = math.ceil(math.log2(max(point.x for point in points)) + 0.15)

    def px(x: float) -> float:
        return LEFT + inner_w * (math.log2(x) - low) / (high - low)

    def py(y: float) -> float:
        return TOP + inner_h * (1 - y / 100)

    out = [
        f'<svg viewBox="0 0 {width} {height}" class="chart wide" role="group" aria-labelledby="{escape(ident)}-t">',
        f'<title id="{escape(ident)}-t">{escape(title)}. {len(points)} setups; every point is in the table below.</title>',
    ]
    for mark in (0, 25, 50, 75, 100):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{width - 24}" y1="{py(mark):.1f}" y2="{py(mark):.1f}"/>')
        out.append(f'<text class="tick" x="{LEFT - 7}" y="{py(mark) + 3.5:.1f}" text-anchor="end">{mark}</text>')
    for power in range(low, high + 1):
        out.append(
            f'<text class="tick" x="{px(2.0**power):.1f}" y="{height - BOTTOM + 17}" text-anchor="middle">'
            f"{short(2.0**power)}</text>"
        )
    out.append(f'<text class="axis" x="{width - 24}" y="{height - 6}" text-anchor="end">{escape(x_title)}</text>')
    out.append(f'<text class="axis" x="{LEFT + 6}" y="{TOP - 5}">{escape(y_title)}</text>')
    for point in points:
        x, y = px(point.x), py(point.y)
        y0, y1 = py(min(100.0, point.y + point.margin)), py(max(0.0, point.y - point.margin))
        text = f"{point.label}: {point.printed[0]}, {point.printed[1]}"
        out.append(
            f'<a href="{escape(point.href)}" aria-label="{escape(text)}">'
            f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{y0:.1f}" '
            f'y2="{y1:.1f}"/><circle class="dot s1" cx="{x:.1f}" cy="{y:.1f}" r="5.5"><title>{escape(text)}</title></circle></a>'
        )
    if len(points) <= 12:
        for point in points:
            end = px(point.x) > width * 0.7
            out.append(
                f'<text class="value" x="{px(point.x) + (-10 if end else 10):.1f}" y="{py(point.y) + 4:.1f}" '
                f'text-anchor="{"end" if end else "start"}">{escape(shortened(point.label))}</text>'
            )
    out.append("</svg>")
    return Chart(title=title, svg=Markup("".join(out)), columns=columns, rows=[[p.label, *p.printed] for p in points])
