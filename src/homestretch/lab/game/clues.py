"""Clues of the bench puzzles: each kind as a sentence and as a test of an order; a clue is plain JSON (kind and arguments)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from homestretch.lab.game.draws import Draws

Clue = list[Any]
Seats = Mapping[str, int]
"""Seat of each person, 1 at the left end."""


def _gap(seats: Seats, a: str, b: str) -> int:
    return abs(seats[a] - seats[b]) - 1


TESTS: dict[str, Callable[..., bool]] = {
    "left": lambda s, a, b: s[a] < s[b],
    "beside": lambda s, a, b: _gap(s, a, b) == 0,
    "apart": lambda s, a, b: _gap(s, a, b) > 0,
    "gap": lambda s, a, b, k: _gap(s, a, b) == k,
    "middle": lambda s, a, b, c: min(s[b], s[c]) < s[a] < max(s[b], s[c]),
    "nearer": lambda s, a, b, c: _gap(s, a, b) < _gap(s, a, c),
    "odd": lambda s, a: s[a] % 2 == 1,
    "even": lambda s, a: s[a] % 2 == 0,
    "inner": lambda s, a: 1 < s[a] < len(s),
    "one": lambda s, p, q: holds(p, s) != holds(q, s),
}

WORDS: dict[str, str] = {
    "left": "{0} sits somewhere to the left of {1}",
    "beside": "{0} and {1} sit side by side",
    "apart": "{0} and {1} do not sit side by side",
    "gap": "exactly {2} {people} between {0} and {1}",
    "middle": "{0} sits somewhere between {1} and {2}",
    "nearer": "fewer people sit between {0} and {1} than between {0} and {2}",
    "odd": "{0}'s seat has an odd number",
    "even": "{0}'s seat has an even number",
    "inner": "{0} does not sit at an end of the bench",
}


def holds(clue: Clue, seats: Seats) -> bool:
    """Whether an order fulfils a clue."""
    return TESTS[clue[0]](seats, *clue[1:])


def sentence(clue: Clue) -> str:
    """A clue in words, with a full stop."""
    if clue[0] == "one":
        return f"Exactly one of these two statements is true: (i) {said(clue[1])}; (ii) {said(clue[2])}."
    text = said(clue)
    return f"{text[0].upper()}{text[1:]}."


def said(clue: Clue) -> str:
    people = "person sits" if clue[0] == "gap" and clue[3] == 1 else "people sit"
    return WORDS[clue[0]].format(*clue[1:], people=people)


def plain(draws: Draws, names: Sequence[str], seats: Seats) -> Clue:
    """A drawn clue of a simple kind, true or false."""
    kind = draws.pick(("left", "left", "beside", "apart", "gap", "gap", "middle", "nearer", "nearer", "odd", "even", "inner"))
    some = draws.some(names, 3)
    if kind == "gap":
        return ["gap", some[0], some[1], draws.between(1, len(names) - 3)]
    return [kind, *some[: {"middle": 3, "nearer": 3, "odd": 1, "even": 1, "inner": 1}.get(kind, 2)]]


def true_clue(draws: Draws, names: Sequence[str], seats: Seats, *, doubles_pct: int) -> Clue:
    """A drawn clue that holds for `seats`; in `doubles_pct` of the cases one of two statements, a true and a false one."""
    if draws.below(100) < doubles_pct:
        good, bad = _drawn(draws, names, seats, True), _drawn(draws, names, seats, False)
        return ["one", good, bad] if draws.below(2) else ["one", bad, good]
    return _drawn(draws, names, seats, True)


def _drawn(draws: Draws, names: Sequence[str], seats: Seats, wanted: bool) -> Clue:
    while True:
        clue = plain(draws, names, seats)
        if holds(clue, seats) == wanted:
            return clue
