"""Snake: a program that steers; five groups of hidden boards, from open fields to boards where the shortest way is a trap."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from homestretch.lab.game.answers import program
from homestretch.lab.game.draws import Draws
from homestretch.lab.game.tasks import Kind, Made, Run, Shot, missed
from homestretch.lab.game.walk import WAYS, Game, careful, careless, fault

BOARDS = 2
TIES = ("UDLR", "URDL", "LDRU")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Boards of one target. slack_pct: moves allowed above those of the careful player; trap: the shortest way must lose."""

    about: str
    side: tuple[int, int]
    wraps: bool
    walls_pct: int
    grow: int
    length: int
    foods: int
    slack_pct: int
    trap: bool


SHAPES = (
    Shape(about="an open field", side=(7, 9), wraps=False, walls_pct=0, grow=1, length=3, foods=4, slack_pct=100, trap=False),
    Shape(about="walls", side=(9, 11), wraps=False, walls_pct=18, grow=1, length=3, foods=7, slack_pct=40, trap=False),
    Shape(about="edges that wrap", side=(9, 12), wraps=True, walls_pct=20, grow=2, length=4, foods=9, slack_pct=25, trap=False),
    Shape(about="a long snake", side=(8, 9), wraps=False, walls_pct=8, grow=3, length=8, foods=9, slack_pct=40, trap=True),
    Shape(about="hardly any room", side=(7, 8), wraps=False, walls_pct=0, grow=1, length=6, foods=26, slack_pct=40, trap=True),
)


def field(draws: Draws, shape: Shape) -> dict[str, Any] | None:
    """A drawn board without limit, or None when the snake found no room."""
    width, height = draws.between(*shape.side), draws.between(*shape.side)
    cells = [(x, y) for y in range(height) for x in range(width)]
    walls = set(draws.some(cells, len(cells) * shape.walls_pct // 100))
    body = [draws.pick([cell for cell in cells if cell not in walls])]
    frame = Game(width, height, shape.wraps, shape.grow, frozenset(walls), body=deque(body), foods=[])
    while len(body) < shape.length:
        ahead = [cell for way in WAYS if (cell := frame.beside(body[-1], way)) is not None and cell not in body]
        if not ahead:
            return None
        body.append(draws.pick(sorted(set(ahead))))
    reached, todo = {body[0]}, [body[0]]
    while todo:
        cell = todo.pop()
        for way in WAYS:
            there = frame.beside(cell, way)
            if there is not None and there not in reached:
                reached.add(there)
                todo.append(there)
    open_cells = sorted(reached)
    if len(open_cells) < shape.length + shape.grow * shape.foods + 8:
        return None
    foods: list[tuple[int, int]] = []
    while len(foods) < shape.foods:
        food = draws.pick(open_cells)
        if food != (foods[-1] if foods else body[0]) and (foods or food not in body):
            foods.append(food)
    return {
        "width": width,
        "height": height,
        "wraps": shape.wraps,
        "grow": shape.grow,
        "walls": sorted([x, y] for x, y in walls),
        "snake": [[x, y] for x, y in body],
        "foods": [[x, y] for x, y in foods],
    }


def drawn_board(draws: Draws, shape: Shape) -> dict[str, Any]:
    """A board that the careful player wins; the careless one wins it too, or loses it where the shape is a trap. With its limit."""
    while True:
        board = field(draws, shape)
        if board is None or any(careless(board, order) == shape.trap for order in TIES):
            continue
        moves = careful(board)
        if moves is not None and not fault({**board, "limit": len(moves)}, moves):
            return {**board, "limit": len(moves) + len(moves) * shape.slack_pct // 100 + 4, "proof": moves}


def stdin(board: dict[str, Any]) -> str:
    """A board as the program reads it."""
    walls = {(x, y) for x, y in board["walls"]}
    rows = ["".join("#" if (x, y) in walls else "." for x in range(board["width"])) for y in range(board["height"])]
    lines = [
        f"{board['width']} {board['height']} {'WRAP' if board['wraps'] else 'EDGE'} {board['grow']} {board['limit']}",
        *rows,
        str(len(board["snake"])),
        *(f"{x} {y}" for x, y in board["snake"]),
        str(len(board["foods"])),
        *(f"{x} {y}" for x, y in board["foods"]),
    ]
    return "\n".join(lines) + "\n"


STATEMENT = """Snake

Write a Python 3 program (standard library only) that steers a snake. It reads one board from standard input and prints all its
moves. The places of all foods are known before the first move.

Input
Line 1: W H MODE G LIMIT. W and H are the board's width and height, MODE is EDGE or WRAP, G is the growth for each food, LIMIT is
the largest number of moves.
Then H lines of W characters: "#" is a wall, "." is free.
Then the length of the snake, and so many lines "x y" with its cells from the head to the tail.
Then the number of foods, and so many lines "x y" in the order in which they must be eaten.
x is the column from 0 at the left, y the row from 0 at the top.

Rules
- A move is one letter: U (y - 1), D (y + 1), L (x - 1), R (x + 1). The head goes to that cell and the body follows.
- Only the first food that has not been eaten lies on the board. When it is eaten the next one appears at once. It may appear under
  the snake's body; then it waits there and is eaten when the head enters its cell.
- A move happens in this order. (a) The head's new cell is found: with WRAP the board is closed at its edges (left of column 0 is
  column W - 1, above row 0 is row H - 1, and so on); with EDGE leaving the board is death. A wall is death. (b) If the food lies on
  the new cell it is eaten, and the snake's debt rises by G. (c) If the debt is above 0 it falls by 1 and the tail stays; otherwise
  the last cell of the tail is freed. (d) If the new cell now belongs to the body the snake dies; otherwise it is the new head. So
  the head may enter the cell that the tail leaves in the same move.
- The debt is 0 at the start.
- The board is won when all foods are eaten within LIMIT moves and the snake is alive. Moves after the last food are not looked at.

Output
One line: the moves as letters without spaces.

Example input
{example}
Example output
{moves}

Five targets
Your program runs on five groups of {boards} hidden boards: {groups}.
A target is hit when both boards of its group are won. LIMIT is what a careful player needs and {slacks} percent more
in the five groups. In groups 4 and 5 a snake that only ever takes a shortest way to the food dies sooner or later. A program has
10 seconds a board.

Answer
End your reply with the whole program in one fenced block marked python.
"""


class Snake:
    name = "snake"
    title = "Snake"
    kind: Kind = "code"

    def make(self, season: int) -> Made:
        targets = []
        for number, shape in enumerate(SHAPES):
            draws = Draws(season, "snake", number)
            targets.append({"about": shape.about, "boards": [drawn_board(draws, shape) for _ in range(BOARDS)]})
        sample = drawn_board(Draws(season, "snake", "example"), SHAPES[0])
        text = STATEMENT.format(
            example=stdin(sample),
            moves=sample["proof"],
            boards=BOARDS,
            groups="; ".join(f"({number}) {shape.about}" for number, shape in enumerate(SHAPES, 1)),
            slacks=", ".join(str(shape.slack_pct) for shape in SHAPES),
        )
        return Made(statement=text, targets=tuple(targets))

    def judge(self, made: Made, reply: str, run: Run) -> tuple[Shot, ...]:
        source = program(reply)
        if not source.strip():
            return missed("no program")
        return tuple(self._group(target["boards"], source, run) for target in made.targets)

    def _group(self, boards: list[dict[str, Any]], source: str, run: Run) -> Shot:
        for number, board in enumerate(boards, 1):
            done = run(source, stdin(board))
            reason = done.fault or fault(board, "".join(done.stdout.split()))
            if reason:
                return Shot(hit=False, reason=f"board {number}: {reason}")
        return Shot(hit=True)


TASK = Snake()
