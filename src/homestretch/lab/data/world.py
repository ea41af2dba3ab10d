"""A made-up country: documents about people, towns and rivers that no model has read, and questions that need two of them."""

from __future__ import annotations

from dataclasses import dataclass

from homestretch.lab.data.draws import Draws

ONSETS = ("B", "Br", "D", "F", "G", "Gr", "H", "K", "L", "M", "N", "P", "R", "S", "St", "T", "Tr", "V", "W", "Z")
VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oa")
ENDS = ("l", "n", "r", "s", "t", "m", "nd", "rk", "lt", "")
TOWN_TAILS = ("burn", "ford", "haven", "mere", "stead", "wick", "holm", "dale")
CRAFTS = (
    "glass painter",
    "bell founder",
    "map maker",
    "clock maker",
    "ship builder",
    "weaver",
    "botanist",
    "organ builder",
    "printer",
    "potter",
)
GOODS = ("salt", "wool", "slate", "honey", "paper", "barley", "amber", "tin", "flax", "cider")


@dataclass(frozen=True, kw_only=True)
class Document:
    title: str
    text: str


def fictional(draws: Draws, documents: int) -> tuple[str, str, tuple[Document, ...], list[Document]]:
    """(question, answer, the two documents needed, others) of one made-up country; no answer stands in another document."""
    taken: set[str] = set()

    def name(tails: tuple[str, ...] = ENDS) -> str:
        while True:
            start, end = draws.choice(ONSETS) + draws.choice(VOWELS), draws.choice(VOWELS)[0] + draws.choice(tails)
            made = start + draws.choice("lmnrst") + end
            if made not in taken:
                taken.add(made)
                return made

    made: list[tuple[Document, Document, str, str, str]] = []
    for _ in range(documents // 2 + 1):
        year = draws.between(1000, 1899)
        town, river, person = name(TOWN_TAILS), name(), f"{name()} {name()}"
        craft, goods = draws.choice(CRAFTS), draws.choice(GOODS)
        born = draws.between(31, 89)
        about = Document(
            title=person,
            text=f"{person} is remembered as a {craft}. Born in {town} in a winter of hard frost, {person} learned the trade "
            f"from an aunt and kept a workshop for {born} years. Most of the pieces are lost; "
            "the few that remain are shown once a year.",
        )
        place = Document(
            title=town,
            text=f"{town} is a town on the river {river}. It was founded in the year {year} and grew by trade in {goods}. "
            f"The old market hall still stands, and a fair is held there after the harvest.",
        )
        made.append((about, place, person, river, str(year)))
    about, place, person, river, year_text = made[0]
    if draws.below(2):
        question = f"In which year was the town founded in which {person} was born?"
        answer = year_text
    else:
        question = f"On which river does the town lie in which {person} was born?"
        answer = river
    rest = [document for pair in made[1:] for document in pair[:2] if answer not in document.text]
    return question, answer, (about, place), draws.shuffled(rest)
