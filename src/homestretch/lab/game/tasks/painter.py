"""Painter: a program that paints by commands; five groups of hidden cases, each with a rule more than the group before."""

from __future__ import annotations

from typing import Any

from homestretch.lab.game.answers import program
from homestretch.lab.game.canvas import Rules, paint
from homestretch.lab.game.draws import Draws
from homestretch.lab.game.tasks import Kind, Made, Run, Shot, missed

CASES = 3
INK = "ABCDEFGHKMNPRSTUVWXZ"

# per target: what it is about, commands that are drawn, how many a case, whether points may lie outside
GROUPS: tuple[tuple[str, tuple[str, ...], int, bool], ...] = (
    ("dots and lines", ("DOT", "LINE", "LINE"), 6, False),
    ("rectangles over the edge", ("DOT", "LINE", "RECT", "RECT"), 8, True),
    ("fills", ("LINE", "RECT", "FILL", "FILL", "DOT"), 14, True),
    ("the whole canvas moves", ("LINE", "RECT", "FILL", "SWAP", "MIRROR", "TURN", "SHIFT"), 16, True),
    ("undo", ("DOT", "LINE", "RECT", "FILL", "FILL", "SWAP", "MIRROR", "SHIFT", "UNDO", "UNDO", "UNDO"), 30, True),
)


def drawn_rules(season: int) -> dict[str, Any]:
    draws = Draws(season, "painter", "rules")
    return {
        "blank": draws.pick(".-_:"),
        "first": draws.below(2),
        "up": bool(draws.below(2)),
        "wraps": bool(draws.below(2)),
        "corners": bool(draws.below(2)),
        "idle_counts": bool(draws.below(2)),
    }


def command(draws: Draws, rules: Rules, words: tuple[str, ...], width: int, height: int, outside: bool) -> str:
    """One drawn command; lines are horizontal, vertical or diagonal."""
    word, first, margin = draws.pick(words), rules.first, 3 if outside else 0
    x, y = draws.between(first, first + width - 1), draws.between(first, first + height - 1)
    ink = draws.pick(INK[:4])
    if word == "DOT":
        return f"DOT {x} {y} {ink}"
    if word == "FILL":
        return f"FILL {x} {y} {ink}"
    if word in ("LINE", "RECT"):
        if word == "RECT":
            over, down = draws.between(-width // 2, width // 2), draws.between(-height // 2, height // 2)
        else:
            way = draws.pick(((1, 0), (0, 1), (1, 1), (1, -1), (-1, 0), (0, -1), (-1, -1), (-1, 1)))
            length = draws.between(1, min(width, height))
            over, down = way[0] * length, way[1] * length
        x2, y2 = x + over, y + down
        low, high_x, high_y = first - margin, first + width - 1 + margin, first + height - 1 + margin
        if not (low <= x2 <= high_x and low <= y2 <= high_y):
            x2, y2 = x, y
        return f"{word} {x} {y} {x2} {y2} {ink}"
    if word == "SWAP":
        a, b = draws.some([*INK[:4], rules.blank], 2)
        return f"SWAP {a} {b}"
    if word == "SHIFT":
        return f"SHIFT {draws.between(-4, 4)} {draws.between(-3, 3)}"
    return word


def case(draws: Draws, rules: Rules, group: int) -> dict[str, Any]:
    """One case: input and expected rows. The first commands lay shapes, so that fills and moves have something to act on."""
    _, words, count, outside = GROUPS[group]
    width, height = draws.between(7, 13), draws.between(6, 9)
    shapes = tuple(word for word in words if word in ("LINE", "RECT")) or words
    lines = [command(draws, rules, shapes, width, height, outside) for _ in range(min(4, count // 2))]
    while len(lines) < count:
        lines.append(command(draws, rules, words, width, height, outside))
    stdin = f"{width} {height}\n{len(lines)}\n" + "".join(f"{line}\n" for line in lines)
    return {"stdin": stdin, "rows": paint(rules, width, height, lines)}


def telling(cases: list[dict[str, Any]], rules: Rules, group: int) -> bool:
    """Whether the cases would catch a program that reads the group's own rule the other way round."""
    wrong = {1: "wraps", 2: "corners", 4: "idle_counts"}.get(group)
    others = [wrong] if wrong else ["up"] if group == 0 else []
    for name in others:
        data = {field: getattr(rules, field) for field in Rules.__slots__}
        other = Rules.of({**data, name: not data[name]})
        if all(again(one, other) == one["rows"] for one in cases):
            return False
    return all(len({cell for row in one["rows"] for cell in row}) > 1 for one in cases)


def again(one: dict[str, Any], rules: Rules) -> list[str]:
    size, _, *lines = one["stdin"].splitlines()
    width, height = (int(text) for text in size.split())
    return paint(rules, width, height, lines)


def draw(season: int, rules: Rules, group: int) -> dict[str, Any]:
    """Cases of a target, drawn again until they tell the rule of the group from its opposite."""
    draws = Draws(season, "painter", group)
    while True:
        cases = [case(draws, rules, group) for _ in range(CASES)]
        if telling(cases, rules, group):
            return {"about": GROUPS[group][0], "cases": cases}


def statement(season: int, rules: Rules) -> str:
    draws = Draws(season, "painter", "example")
    sample = case(draws, rules, 3)
    first, b = rules.first, rules.blank
    rows = "bottom" if rules.up else "top"
    edge = (
        "wrap around:\na column right of the last one is the first column again and so on, in all four directions, any distance"
        if rules.wraps
        else "are skipped:\nthat point is not painted, the other points of the same command are"
    )
    ways = "eight neighbours (also diagonally)" if rules.corners else "four neighbours (not diagonally)"
    idle = "also when it changed nothing" if rules.idle_counts else "except one that changed no cell: it is passed over"
    return f"""Painter

Write a Python 3 program (standard library only) that reads painting commands from standard input and prints the painted canvas.

Input
The first line holds the width W and the height H of the canvas, the second the number of commands N, then N lines follow with one
command each. All words and numbers are separated by single spaces; numbers may be negative. A colour is one capital letter.

Canvas
All cells start as "{b}". A point is "x y": x is the column, y the row. Columns are numbered from {first} at the left, rows
from {first} at the {rows}. Points outside the canvas {edge}.

Commands
DOT x y c             paints the point in colour c
LINE x1 y1 x2 y2 c    paints all points from (x1, y1) to (x2, y2), both included; it is always horizontal, vertical or exactly
                      diagonal, and may be a single point
RECT x1 y1 x2 y2 c    paints the border (not the inside) of the rectangle with these two opposite corners, given in any order
FILL x y c            paints the point and every cell connected to it that has the same colour as the point had; cells are
                      connected through their {ways}. A fill never goes over the edge of the canvas.
                      The point always lies inside.
SWAP a b              every cell of colour a becomes b and every cell of colour b becomes a; one of them may be "{b}"
MIRROR                mirrors the canvas left to right
TURN                  turns the canvas by 180 degrees
SHIFT dx dy           moves the whole picture dx columns to the right and dy rows DOWN on the printed page (negative: left, up);
                      what leaves at one side comes in at the opposite side
UNDO                  takes back the last command that has not been taken back yet; UNDO itself is never taken back. Every other
                      command can be taken back, {idle}.
                      With nothing to take back, UNDO does nothing.

Output
H lines of W characters, the top row of the canvas first.

Example input
{sample["stdin"]}
Example output
{chr(10).join(sample["rows"])}

Five targets
Your program runs on five groups of {CASES} hidden cases: (1) DOT and LINE inside the canvas; (2) also RECT and points outside;
(3) also FILL; (4) also SWAP, MIRROR, TURN, SHIFT; (5) all commands with UNDO. A target is hit when the output of all cases of its
group is right. A program has 10 seconds a case.

Answer
End your reply with the whole program in one fenced block marked python.
"""


class Painter:
    name = "painter"
    title = "Painter"
    kind: Kind = "code"

    def make(self, season: int) -> Made:
        rules = Rules.of(drawn_rules(season))
        targets = tuple(draw(season, rules, group) for group in range(len(GROUPS)))
        return Made(statement=statement(season, rules), targets=targets)

    def judge(self, made: Made, reply: str, run: Run) -> tuple[Shot, ...]:
        source = program(reply)
        if not source.strip():
            return missed("no program")
        return tuple(self._group(target["cases"], source, run) for target in made.targets)

    def _group(self, cases: list[dict[str, Any]], source: str, run: Run) -> Shot:
        for number, one in enumerate(cases, 1):
            done = run(source, one["stdin"])
            if done.fault:
                return Shot(hit=False, reason=f"case {number}: {done.fault}")
            if [line.rstrip() for line in done.stdout.rstrip().splitlines()] != one["rows"]:
                return Shot(hit=False, reason=f"case {number}: another picture")
        return Shot(hit=True)


TASK = Painter()
