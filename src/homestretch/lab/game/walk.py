"""Snake's exact rules, and two players: a careful one that sets a board's move limit, a careless one that shows its traps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

Cell = tuple[int, int]
WAYS: dict[str, Cell] = {"U": (0, -1), "R": (1, 0), "D": (0, 1), "L": (-1, 0)}


@dataclass(slots=True)
class Game:
    """A board in play. body: cells from head to tail, (column, row) from the top left; owed: moves the tail still stays for."""

    width: int
    height: int
    wraps: bool
    grow: int
    walls: frozenset[Cell]
    body: deque[Cell]
    foods: list[Cell]
    eaten: int = 0
    owed: int = 0

    @staticmethod
    def of(board: dict[str, Any]) -> Game:
        return Game(
            width=board["width"],
            height=board["height"],
            wraps=board["wraps"],
            grow=board["grow"],
            walls=frozenset((x, y) for x, y in board["walls"]),
            body=deque((x, y) for x, y in board["snake"]),
            foods=[(x, y) for x, y in board["foods"]],
        )

    def copy(self) -> Game:
        return Game(self.width, self.height, self.wraps, self.grow, self.walls, deque(self.body), self.foods, self.eaten, self.owed)

    @property
    def won(self) -> bool:
        return self.eaten == len(self.foods)

    def beside(self, cell: Cell, way: str) -> Cell | None:
        """The next cell that way; None where it is a wall or the board's edge."""
        x, y = cell[0] + WAYS[way][0], cell[1] + WAYS[way][1]
        if self.wraps:
            x, y = x % self.width, y % self.height
        elif not (0 <= x < self.width and 0 <= y < self.height):
            return None
        return None if (x, y) in self.walls else (x, y)

    def move(self, way: str) -> bool:
        """One move; False when the snake dies of it. The tail leaves before the head arrives, unless it is owed growth."""
        cell = self.beside(self.body[0], way)
        if cell is None:
            return False
        if cell == self.foods[self.eaten]:
            self.eaten += 1
            self.owed += self.grow
        if self.owed:
            self.owed -= 1
        else:
            self.body.pop()
        if cell in self.body:
            return False
        self.body.appendleft(cell)
        return True


def path(game: Game, goal: Cell) -> str | None:
    """A shortest way to `goal` that meets no body cell still there when the head comes by; None if there is none."""
    length = len(game.body)
    leaves = {cell: length - at + game.owed for at, cell in enumerate(game.body)}  # after so many moves the cell is free
    came: dict[Cell, str] = {game.body[0]: ""}
    queue = deque([game.body[0]])
    while queue:
        cell = queue.popleft()
        for way in WAYS:
            after = game.beside(cell, way)
            if after is None or after in came:
                continue
            moves = len(came[cell]) + 1
            if leaves.get(after, 0) > moves:
                continue
            if after == goal and leaves.get(after, 0) >= moves:  # the tail stays for the move that eats
                continue
            came[after] = came[cell] + way
            if after == goal:
                return came[after]
            queue.append(after)
    return None


def played(game: Game, ways: str) -> Game | None:
    """A copy after these moves; None when the snake dies of them. Moves after the last food are not made."""
    after = game.copy()
    for way in ways:
        if after.won:
            break
        if not after.move(way):
            return None
    return after


def safe_ways(game: Game) -> list[str]:
    """Moves after which the head still reaches a cell beside its tail: from there it can follow the tail for ever."""
    found = []
    for way in WAYS:
        after = game.copy()
        if after.move(way) and (after.won or _tail_in_reach(after)):
            found.append(way)
    return found


def _tail_in_reach(game: Game) -> bool:
    blocked, head, tail = set(game.body), game.body[0], game.body[-1]
    seen, todo = {head}, [head]
    while todo:
        cell = todo.pop()
        for way in WAYS:
            there = game.beside(cell, way)
            if there == tail and (cell != head or not game.owed):
                return True
            if there is not None and there not in seen and there not in blocked:
                seen.add(there)
                todo.append(there)
    return False


def careful(board: dict[str, Any], longest: int = 4_000) -> str | None:
    """Moves that eat everything: to the food when the tail stays in reach after it, else along the longest safe detour."""
    game = Game.of(board)
    moves = ""
    idle = 0
    while not game.won:
        ways = path(game, game.foods[game.eaten])
        after = played(game, ways) if ways else None
        if ways and after is not None and (after.won or safe_ways(after)):
            moves, game, idle = moves + ways, after, 0
            continue
        choices = safe_ways(game)
        if not choices or idle > 4 * game.width * game.height or len(moves) > longest:
            return None
        goal = game.foods[game.eaten]
        best = max(choices, key=lambda way: (_far(game, way, goal), way))
        game.move(best)
        moves += best
        idle += 1
    return moves


def _far(game: Game, way: str, goal: Cell) -> int:
    cell = game.beside(game.body[0], way) or game.body[0]
    return abs(cell[0] - goal[0]) + abs(cell[1] - goal[1])


def careless(board: dict[str, Any], order: str) -> bool:
    """Whether always taking the shortest way around the body as it lies now would win; `order` breaks ties between ways."""
    game = Game.of(board)
    while not game.won:
        ways = shortest(game, game.foods[game.eaten], order)
        after = played(game, ways) if ways else None
        if after is None:
            return False
        game = after
    return True


def shortest(game: Game, goal: Cell, order: str) -> str | None:
    """A shortest way around walls and the body as it lies now."""
    came: dict[Cell, str] = {game.body[0]: ""}
    queue = deque([game.body[0]])
    while queue:
        cell = queue.popleft()
        for way in order:
            after = game.beside(cell, way)
            if after is not None and after not in came and after not in game.body:
                came[after] = came[cell] + way
                if after == goal:
                    return came[after]
                queue.append(after)
    return None


def fault(board: dict[str, Any], moves: str) -> str:
    """Why moves do not win a board, "" if they do; what follows the last food does not count."""
    game = Game.of(board)
    for number, way in enumerate(moves, 1):
        if number > board["limit"]:
            return f"{game.eaten} of {len(game.foods)} foods after {board['limit']} moves"
        if way not in WAYS:
            return f"move {number} is {way!r}"
        if not game.move(way):
            return f"dead at move {number}, {game.eaten} of {len(game.foods)} foods"
        if game.won:
            return ""
    return f"stops after {len(moves)} moves, {game.eaten} of {len(game.foods)} foods"
