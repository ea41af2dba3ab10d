"""The race as a drawing: a ski course with four ranges, their targets and penalty loops; wide for desks, tall for phones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from homestretch.lab.game.course import COURSE_MS, RANGE_MS, seconds
from homestretch.lab.site.race import RangeRow

WIDE, HIGH = 960, 318
TALL_WIDTH, TALL_STEP = 360, 172


def hill(x: float) -> float:
    """Height of the snow at x of the wide drawing."""
    return 168 + 13 * math.sin(x / 97) + 6 * math.sin(x / 41 + 1)


def snow(first: float, last: float) -> str:
    """A path along the hill."""
    points = [first + (last - first) * step / 60 for step in range(61)]
    return "M" + " L".join(f"{x:.1f} {hill(x):.1f}" for x in points)


def tree(x: float, y: float, size: float) -> str:
    half, third = size * 0.36, size * 0.22
    crown = f"l{half:.1f} {size * 0.5:.1f}h{-half / 3:.1f}l{third:.1f} {size * 0.42:.1f}h{-(half * 4 / 3 + third * 2):.1f}"
    return f'<path class="tree" d="M{x:.1f} {y - size:.1f}{crown}l{third:.1f} {-size * 0.42:.1f}h{-half / 3:.1f}z"/>'


def post(x: float, y: float, word: str) -> str:
    """A chequered flag with its word under it."""
    squares = "".join(
        f'<rect x="{x + 7 * column:.1f}" y="{y - 62 + 7 * row:.1f}" width="7" height="7"/>'
        for row in range(3)
        for column in range(4)
        if (row + column) % 2 == 0
    )
    pole = f'<path d="M{x:.1f} {y:.1f}V{y - 64:.1f}"/>'
    cloth = f'<rect class="cloth" x="{x:.1f}" y="{y - 62:.1f}" width="28" height="21"/>'
    return f'<g class="post">{pole}{cloth}{squares}</g>' + (text(x, y + 24, "word", word) if word else "")


def targets(x: float, y: float, row: RangeRow) -> str:
    """Five discs on their plate, centred on x: filled where hit, crossed where missed."""
    out = [f'<rect class="plate" x="{x - 66:.1f}" y="{y - 15:.1f}" width="132" height="30" rx="15"/>']
    for number, hit in enumerate(row.targets[:5]):
        at = x + 24 * (number - 2)
        if hit:
            out.append(f'<circle class="hit" cx="{at:.1f}" cy="{y:.1f}" r="8.5"/>')
        else:
            out.append(
                f'<circle class="open" cx="{at:.1f}" cy="{y:.1f}" r="8.5"/>'
                f'<path class="miss" d="M{at - 4.5:.1f} {y - 4.5:.1f}l9 9m0 -9l-9 9"/>'
            )
    return "".join(out)


def loops(x: float, y: float, row: RangeRow) -> str:
    """One lap a penalty loop, laid inside each other; a dashed one where there was none to run."""
    if not row.loops:
        return f'<ellipse class="noloop" cx="{x:.1f}" cy="{y:.1f}" rx="44" ry="22"/>'
    laps = min(row.loops, 5)
    return "".join(
        f'<ellipse class="loop" cx="{x:.1f}" cy="{y:.1f}" rx="{50 - 6.5 * lap:.1f}" ry="{27 - 4.4 * lap:.1f}"/>'
        for lap in range(laps)
    )


def words(row: RangeRow) -> tuple[str, str, str]:
    """What stands at a range: its thinking, its loops, its time."""
    thought = f"buzzer at {row.thinking} s" if row.buzzer else f"thinking {row.thinking} s"
    ran = f"{row.loops} loop{'' if row.loops == 1 else 's'} · {row.loops_s} s" if row.loops else "no loop"
    return thought, ran, f"{row.range_s} s"


def text(x: float, y: float, kind: str, said: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def wide(rows: Sequence[RangeRow]) -> Markup:
    """The course from left to right."""
    step = (WIDE - 80) / (len(rows) + 1)
    parts = [f'<path class="snow" d="{snow(0, WIDE)} L{WIDE} {HIGH} L0 {HIGH} z"/>']
    for gap in range(len(rows) + 1):
        for side, size in ((-9, 30), (13, 23), (4, 36)):
            x = 40 + step * (gap + 0.5) + side + 5 * math.sin(gap * 2.3 + side)
            parts.append(tree(x, hill(x) - 4, size))
    parts.append(f'<path class="ski" d="{snow(40, WIDE - 40)}"/>')
    parts += [post(40, hill(40), "start"), post(WIDE - 40, hill(WIDE - 40), "finish")]
    for number, row in enumerate(rows, 1):
        x = 40 + step * number
        y = hill(x)
        thought, ran, time = words(row)
        parts += [
            f'<path class="lane" d="M{x:.1f} {y - 6:.1f}V{y - 48:.1f}"/>',
            f'<circle class="stop" cx="{x:.1f}" cy="{y:.1f}" r="7"/>',
            text(x, y - 118, "name", f"{row.number} {row.title}"),
            text(x, y - 100, "small", f"{row.kind}, level {row.level}"),
            targets(x, y - 72, row),
            text(x, y - 36, "small on", thought),
            loops(x, y + 46, row),
            text(x, y + 97, "small", ran),
            text(x, y + 117, "time", time),
        ]
    return drawn(WIDE, HIGH, "wide", parts)


def tall(rows: Sequence[RangeRow]) -> Markup:
    """The course from top to bottom."""
    height = 84 + TALL_STEP * len(rows) + 112

    def side(y: float) -> float:
        return 92 + 9 * math.sin(y / 61)

    points = [54 + (height - 54 - 60) * step / 80 for step in range(81)]
    parts = ['<path class="ski" d="M' + " L".join(f"{side(y):.1f} {y:.1f}" for y in points) + '"/>']
    for number in range(len(rows)):
        y = 146 + TALL_STEP * number
        parts += [tree(326, y + 74, 30), tree(302, y + 84, 24), tree(22, y - 34, 26)]
    parts.append(post(side(54), 70, ""))
    parts.append(text(side(54) + 42, 40, "word", "start", "start"))
    for number, row in enumerate(rows, 1):
        y = 22 + TALL_STEP * number - 62
        x = side(y)
        thought, ran, time = words(row)
        parts += [
            f'<path class="lane" d="M{x + 6:.1f} {y:.1f}H178"/>',
            f'<circle class="stop" cx="{x:.1f}" cy="{y:.1f}" r="7"/>',
            text(178, y - 26, "name", f"{row.number} {row.title}", "start"),
            targets(246, y, row),
            text(178, y + 31, "small", f"{row.kind}, level {row.level}", "start"),
            text(178, y + 48, "small", thought, "start"),
            loops(side(y + 66), y + 66, row),
            text(178, y + 72, "small", ran, "start"),
            text(178, y + 92, "time", time, "start"),
        ]
    parts.append(post(side(height - 60), height - 56, ""))
    parts.append(text(side(height - 60) + 42, height - 86, "word", "finish", "start"))
    return drawn(TALL_WIDTH, height, "tall", parts)


def drawn(width: int, height: int, kind: str, parts: list[str]) -> Markup:
    """The picture; the table beside it says the same in words, so readers of screens pass over it."""
    return Markup(
        f'<svg class="course {kind}" viewBox="0 0 {width} {height}" aria-hidden="true" focusable="false">{"".join(parts)}</svg>'
    )


def timeline(rows: Sequence[RangeRow], longest_ms: int) -> Markup:
    """The race against the clock: skiing, shooting, thinking and loops to scale; `longest_ms` is the scale's end."""
    scale = 1000 / max(1, longest_ms)
    ski = COURSE_MS / (len(rows) + 1)
    at, parts = 0.0, ['<rect class="rest" x="0" y="4" width="1000" height="20"/>']

    def piece(kind: str, ms: float, said: str) -> None:
        nonlocal at
        if ms > 0:
            box = f'x="{at * scale:.2f}" y="4" width="{ms * scale:.2f}" height="20"'
            parts.append(f'<rect class="{kind}" {box}><title>{escape(said)}</title></rect>')
        at += ms

    for row in rows:
        piece("skied", ski, "course")
        piece("thought", row.thinking_ms, f"{row.title}: thinking {seconds(row.thinking_ms)} s")
        piece("shot", RANGE_MS, f"{row.title}: range {seconds(RANGE_MS)} s")
        piece("looped", row.loops_ms, f"{row.title}: {row.loops} loops, {seconds(row.loops_ms)} s")
    piece("skied", ski, "course")
    return Markup(
        '<svg class="clock" viewBox="0 0 1000 28" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        f"{''.join(parts)}</svg>"
    )
