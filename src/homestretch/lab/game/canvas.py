"""The painter's canvas: the exact rules of every command, as the hidden cases' expected outputs are made by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cells = list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What differs from season to season. first: number of the first column and row; up: rows count from the bottom."""

    blank: str
    first: int
    up: bool
    wraps: bool
    corners: bool
    idle_counts: bool

    @staticmethod
    def of(data: Mapping[str, Any]) -> Rules:
        return Rules(**data)


@dataclass(slots=True)
class Canvas:
    """cells[row][column], row 0 at the top, columns and rows from 0."""

    rules: Rules
    cells: Cells

    @staticmethod
    def empty(rules: Rules, width: int, height: int) -> Canvas:
        return Canvas(rules, [[rules.blank] * width for _ in range(height)])

    @property
    def width(self) -> int:
        return len(self.cells[0])

    @property
    def height(self) -> int:
        return len(self.cells)

    def spot(self, x: int, y: int) -> tuple[int, int] | None:
        """(row, column) of a point as commands name it; None for one that the edge rule leaves out."""
        column, row = x - self.rules.first, y - self.rules.first
        if self.rules.up:
            row = self.height - 1 - row
        if self.rules.wraps:
            return row % self.height, column % self.width
        return (row, column) if 0 <= row < self.height and 0 <= column < self.width else None

    def dot(self, x: int, y: int, colour: str) -> None:
        at = self.spot(x, y)
        if at is not None:
            self.cells[at[0]][at[1]] = colour

    def line(self, x1: int, y1: int, x2: int, y2: int, colour: str) -> None:
        """Both ends included; horizontal, vertical or exactly diagonal."""
        steps = max(abs(x2 - x1), abs(y2 - y1))
        over, down = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        for step in range(steps + 1):
            self.dot(x1 + step * over, y1 + step * down, colour)

    def rect(self, x1: int, y1: int, x2: int, y2: int, colour: str) -> None:
        """The border of the rectangle with two opposite corners."""
        for a, b, c, d in ((x1, y1, x2, y1), (x1, y2, x2, y2), (x1, y1, x1, y2), (x2, y1, x2, y2)):
            self.line(a, b, c, d, colour)

    def fill(self, x: int, y: int, colour: str) -> None:
        """The connected area of the cell's colour; it ends at the edge of the canvas also where points wrap."""
        at = self.spot(x, y)
        if at is None:
            return
        old = self.cells[at[0]][at[1]]
        if old == colour:
            return
        ways = [(0, 1), (1, 0), (0, -1), (-1, 0)]
        if self.rules.corners:
            ways += [(1, 1), (1, -1), (-1, 1), (-1, -1)]
        todo = [at]
        while todo:
            row, column = todo.pop()
            if 0 <= row < self.height and 0 <= column < self.width and self.cells[row][column] == old:
                self.cells[row][column] = colour
                todo += [(row + down, column + over) for down, over in ways]

    def swap(self, a: str, b: str) -> None:
        trade = {a: b, b: a}
        self.cells = [[trade.get(cell, cell) for cell in row] for row in self.cells]

    def mirror(self) -> None:
        self.cells = [row[::-1] for row in self.cells]

    def turn(self) -> None:
        self.cells = [row[::-1] for row in self.cells[::-1]]

    def shift(self, right: int, down: int) -> None:
        """Every row moves right and the whole down; what leaves one side comes in at the other."""
        self.cells = [
            [self.cells[(row - down) % self.height][(column - right) % self.width] for column in range(self.width)]
            for row in range(self.height)
        ]


def act(canvas: Canvas, word: str, rest: Sequence[str]) -> None:
    """One command other than UNDO."""
    match word, rest:
        case "DOT", (x, y, colour):
            canvas.dot(int(x), int(y), colour)
        case "LINE", (x1, y1, x2, y2, colour):
            canvas.line(int(x1), int(y1), int(x2), int(y2), colour)
        case "RECT", (x1, y1, x2, y2, colour):
            canvas.rect(int(x1), int(y1), int(x2), int(y2), colour)
        case "FILL", (x, y, colour):
            canvas.fill(int(x), int(y), colour)
        case "SWAP", (a, b):
            canvas.swap(a, b)
        case "SHIFT", (right, down):
            canvas.shift(int(right), int(down))
        case "MIRROR", ():
            canvas.mirror()
        case "TURN", ():
            canvas.turn()
        case _:
            raise ValueError(f"no such command: {word} {' '.join(rest)}")


def paint(rules: Rules, width: int, height: int, commands: Sequence[str]) -> list[str]:
    """The rows of the canvas after all commands."""
    canvas = Canvas.empty(rules, width, height)
    before: list[Cells] = []
    for command in commands:
        word, *rest = command.split()
        if word == "UNDO":
            if before:
                canvas.cells = before.pop()
            continue
        old = [row[:] for row in canvas.cells]
        act(canvas, word, rest)
        if rules.idle_counts or canvas.cells != old:
            before.append(old)
    return ["".join(row) for row in canvas.cells]
