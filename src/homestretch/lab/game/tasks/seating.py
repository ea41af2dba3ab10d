"""Bench seating: five benches, each with one order that fits all clues, proved by a search over every order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from homestretch.lab.game.clues import Clue, holds, sentence, true_clue
from homestretch.lab.game.draws import Draws
from homestretch.lab.game.tasks import Kind, Made, Run, Shot, puzzles

PEOPLE = (
    "Ada", "Ben", "Cleo", "Dirk", "Edda", "Finn", "Gus", "Hana", "Ivo", "June", "Kai", "Lena",
    "Milo", "Nora", "Otto", "Pia", "Quin", "Rosa", "Sven", "Tess", "Udo", "Vera", "Wim", "Yara",
)  # fmt: skip

# per target: people, percent of clues that are one of two statements
SHAPES = ((5, 0), (6, 20), (6, 45), (7, 45), (7, 65))


def orders(names: list[str]) -> list[dict[str, int]]:
    """Every order as name -> seat, in the fixed order of `permutations` over the sorted names."""
    return [{name: seat for seat, name in enumerate(order, 1)} for order in permutations(sorted(names))]


def fitting(clue: Clue, every: list[dict[str, int]]) -> int:
    """Which orders fulfil a clue, as a bitmap."""
    return sum(1 << number for number, seats in enumerate(every) if holds(clue, seats))


def solutions(target: dict[str, Any]) -> list[list[str]]:
    """Every order that fits all clues of a target: the proof that it is one."""
    found = []
    for order in permutations(sorted(target["people"])):
        seats = {name: seat for seat, name in enumerate(order, 1)}
        if all(holds(clue, seats) for clue in target["clues"]):
            found.append(list(order))
    return found


def draw(season: int, number: int) -> dict[str, Any]:
    """Target `number` (0 … 4): true clues of a drawn order until one order is left, then without those that say nothing new."""
    count, doubles_pct = SHAPES[number]
    draws = Draws(season, "seating", number)
    names = draws.some(PEOPLE, count)
    answer = draws.shuffled(names)
    seats = {name: seat for seat, name in enumerate(answer, 1)}
    every = orders(names)
    left = (1 << len(every)) - 1
    chosen: list[tuple[Clue, int]] = []
    while left & (left - 1):
        clue = true_clue(draws, names, seats, doubles_pct=doubles_pct)
        fits = fitting(clue, every)
        if left & ~fits:
            chosen.append((clue, fits))
            left &= fits
    for clue in [clue for clue, _ in chosen]:
        rest = [pair for pair in chosen if pair[0] != clue]
        together = (1 << len(every)) - 1
        for _, fits in rest:
            together &= fits
        if not together & (together - 1):
            chosen = rest
    return {"people": sorted(names), "clues": [clue for clue, _ in chosen], "answer": answer}


def fault(target: dict[str, Any], order: object) -> str:
    """Why an order is not right, "" if it fits every clue."""
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        return "not a list of names"
    names = [name.strip().capitalize() for name in order]
    if sorted(names) != target["people"]:
        return "not every person exactly once"
    seats = {name: seat for seat, name in enumerate(names, 1)}
    broken = [number for number, clue in enumerate(target["clues"], 1) if not holds(clue, seats)]
    return f"breaks clue {broken[0]}" if broken else ""


RULES = """Bench seating

There are five benches; each is a separate puzzle and counts on its own. On each bench the named people sit in one row, one on
each seat. Seats are numbered from 1 at the left end to the right, as you see the bench: "left" means a lower number. Two people
sit side by side when their seat numbers differ by one. For each bench exactly one order fits all clues.
"""

FORMAT = """Answer
End your reply with one fenced JSON block. Its keys are "1" to "5", one for each bench. Each value is the list of the people of that
bench from seat 1 to the right end. The form, with invented people:

```json
{"1": ["Xenia", "Zoe"], "2": [], "3": [], "4": [], "5": []}
```
"""


def described(number: int, target: dict[str, Any]) -> str:
    people = target["people"]
    lines = [f"Bench {number}: {len(people)} seats for {', '.join(people[:-1])} and {people[-1]}."]
    lines += [f"{at}. {sentence(clue)}" for at, clue in enumerate(target["clues"], 1)]
    return "\n".join(lines)


class Seating:
    name = "seating"
    title = "Bench seating"
    kind: Kind = "puzzle"

    def make(self, season: int) -> Made:
        targets = tuple(draw(season, number) for number in range(len(SHAPES)))
        benches = "\n\n".join(described(number, target) for number, target in enumerate(targets, 1))
        return Made(statement=f"{RULES}\n{benches}\n\n{FORMAT}", targets=targets)

    def judge(self, made: Made, reply: str, run: Run) -> tuple[Shot, ...]:
        return puzzles(made, reply, fault, "no answer for this bench")


TASK = Seating()
