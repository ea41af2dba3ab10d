"""River ferry: five crossings, each with the fewest trips that a search over all states allows; any shortest plan is right."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from homestretch.lab.game.draws import Draws
from homestretch.lab.game.tasks import Kind, Made, Run, Shot, puzzles

BEASTS = (
    "badger",
    "cat",
    "crow",
    "dog",
    "duck",
    "fox",
    "goat",
    "goose",
    "hen",
    "lynx",
    "mouse",
    "otter",
    "owl",
    "pig",
    "sheep",
    "wolf",
)

# per target: things, places in the boat, pairs that quarrel, how many start on the east bank, weights?, fewest trips from … to
SHAPES = (
    (3, 1, 1, 0, False, 5, 5),
    (3, 1, 2, 0, False, 7, 7),
    (4, 2, 3, 0, False, 5, 5),
    (6, 2, 5, 0, False, 7, 9),
    (6, 2, 4, 1, True, 9, 13),
)

State = tuple[frozenset[str], bool]


def safe(bank: frozenset[str], quarrels: list[list[str]]) -> bool:
    return not any(a in bank and b in bank for a, b in quarrels)


def loads(target: dict[str, Any], here: frozenset[str]) -> Iterator[frozenset[str]]:
    """What the boat can take from a bank: up to `places` things, at most `kilograms` together where weights count."""
    for count in range(target["places"] + 1):
        for load in combinations(sorted(here), count):
            if not target["weights"] or sum(target["weights"][name] for name in load) <= target["kilograms"]:
                yield frozenset(load)


def fewest(target: dict[str, Any]) -> list[list[str]] | None:
    """A shortest plan by breadth-first search over (things on the west bank, boat is west); None if there is none."""
    everything = frozenset(target["things"])
    start: State = (frozenset(target["west"]), True)
    goal = everything - start[0]
    before: dict[State, tuple[State, list[str]] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        west, boat_west = state
        if west == goal:
            plan: list[list[str]] = []
            step = before[state]
            while step is not None:
                plan.append(step[1])
                step = before[step[0]]
            return plan[::-1]
        here = west if boat_west else everything - west
        for load in loads(target, here):
            if safe(here - load, target["quarrels"]):
                after: State = (west - load if boat_west else west | load, not boat_west)
                if after not in before:
                    before[after] = (state, sorted(load))
                    queue.append(after)
    return None


def draw(season: int, number: int) -> dict[str, Any]:
    """Target `number` (0 … 4): drawn until its fewest trips lie in range and, from the second on, the quarrels cost trips."""
    things, places, pairs, east, weighted, low, high = SHAPES[number]
    draws = Draws(season, "ferry", number)
    while True:
        names = draws.some(BEASTS, things)
        quarrels = [sorted(pair) for pair in draws.some(list(combinations(sorted(names), 2)), pairs)]
        weights = {name: draws.between(2, 9) for name in names} if weighted else {}
        from_east = draws.some(names, east)
        target: dict[str, Any] = {
            "things": names,
            "places": places,
            "quarrels": sorted(quarrels),
            "weights": weights,
            "kilograms": draws.between(11, 14) if weighted else 0,
            "west": [name for name in names if name not in from_east],
        }
        plan = fewest(target)
        free = fewest({**target, "quarrels": []})
        if plan is None or free is None or not low <= len(plan) <= high or (number and len(plan) <= len(free)):
            continue
        if any(all(name not in pair for pair in quarrels) for name in from_east):
            continue
        return {**target, "trips": len(plan), "plan": plan}


def fault(target: dict[str, Any], plan: object) -> str:
    """Why a plan is not right, "" if it is: legal at every trip, everything where it belongs, no more trips than the fewest."""
    if not isinstance(plan, list) or not all(
        isinstance(trip, list) and all(isinstance(name, str) for name in trip) for trip in plan
    ):
        return "not a list of lists of names"
    if len(plan) > target["trips"]:
        return f"{len(plan)} trips, {target['trips']} are enough"
    everything = frozenset(target["things"])
    west, boat_west = frozenset(target["west"]), True
    for number, trip in enumerate(plan, 1):
        names = [name.strip().lower() for name in trip]
        load = frozenset(names)
        here = west if boat_west else everything - west
        if len(load) != len(names) or not load <= here:
            return f"trip {number}: takes what is not on that bank"
        if len(load) > target["places"]:
            return f"trip {number}: {len(load)} in the boat"
        if target["weights"] and sum(target["weights"][name] for name in load) > target["kilograms"]:
            return f"trip {number}: too heavy"
        if not safe(here - load, target["quarrels"]):
            return f"trip {number}: a quarrel on the bank left behind"
        west = west - load if boat_west else west | load
        boat_west = not boat_west
    if west != everything - frozenset(target["west"]):
        return "not everything is where it belongs at the end"
    return ""


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def described(number: int, target: dict[str, Any]) -> str:
    """One puzzle in words."""
    east = [name for name in target["things"] if name not in target["west"]]
    places = "one animal" if target["places"] == 1 else f"up to {target['places']} animals"
    lines = [f"Puzzle {number}", f"West bank at the start: {listed(target['west'])}."]
    if east:
        lines.append(f"East bank at the start: {listed(east)}.")
    lines.append("At the end every animal must be on the bank opposite to the one where it started.")
    boat = f"The boat carries the ferryman and {places}"
    if target["weights"]:
        heavy = ", ".join(f"{name} {target['weights'][name]} kg" for name in target["things"])
        lines.append(f"{boat}, together at most {target['kilograms']} kg of animals. Weights: {heavy}.")
    else:
        lines.append(f"{boat}.")
    quarrels = "; ".join(f"{a} and {b}" for a, b in target["quarrels"])
    lines.append(f"These pairs quarrel: {quarrels}.")
    lines.append(f"It can be done in {target['trips']} trips and not in fewer. Give a plan with {target['trips']} trips.")
    return "\n".join(lines)


RULES = """River ferry

A ferryman takes animals across a river that runs from north to south. There are five separate puzzles; each counts on its own.

Rules
- The boat starts at the west bank. Trips alternate: the first goes west to east, the second east to west, the third west to east, …
- The ferryman is in the boat on every trip. He may go alone. He can only take animals that are on the bank where the boat is.
- Two animals that quarrel must never be on the same bank while the ferryman is away from it. In the boat, and on the bank where
  the ferryman lands, they behave. This also holds on the bank he has not visited yet.
- Names mean nothing: only the pairs listed in a puzzle quarrel.
"""

FORMAT = """Answer
End your reply with one fenced JSON block. Its keys are "1" to "5", one for each puzzle. Each value is the list of trips in order,
each trip the list of the animals in the boat ([] when the ferryman goes alone). The form, with an invented plan:

```json
{"1": [["cat"], [], ["dog"]], "2": [], "3": [], "4": [], "5": []}
```
"""


class Ferry:
    name = "ferry"
    title = "River ferry"
    kind: Kind = "puzzle"

    def make(self, season: int) -> Made:
        targets = tuple(draw(season, number) for number in range(len(SHAPES)))
        puzzles = "\n\n".join(described(number, target) for number, target in enumerate(targets, 1))
        return Made(statement=f"{RULES}\n{puzzles}\n\n{FORMAT}", targets=targets)

    def judge(self, made: Made, reply: str, run: Run) -> tuple[Shot, ...]:
        return puzzles(made, reply, fault, "no answer for this puzzle")


TASK = Ferry()
