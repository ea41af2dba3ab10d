"""Thinking on: 30 fixed GPQA questions, with the tokens and seconds that an answer takes."""

from __future__ import annotations

from collections.abc import Sequence

from homestretch.lab.asking import counts, numbers_of
from homestretch.lab.graders import letters as reading
from homestretch.lab.lettering import LetterPart
from homestretch.lab.parts import NumberSpec
from homestretch.lab.stats import median
from homestretch.lab.types import Answer, Contract, Number


class Think(LetterPart):
    name = "think"
    asks = "What does thinking bring, and what does it cost?"
    numbers = numbers_of(
        "think", NumberSpec(name="think.median_s", unit="s", digits=1, meaning="median time of an answer, several at once")
    )
    set_name = "gpqa"
    grader = reading.VERSION
    limit = 16_384
    house_limit = 2048
    asked = 30
    house_asked = 8
    science = True
    thinking = True

    def numbers_from(self, answers: Sequence[Answer], source: str) -> dict[str, Number]:
        found = counts(self.name, answers, source)
        seconds = [answer.seconds for answer in answers if answer.seconds is not None]
        if seconds:
            found["think.median_s"] = Number(value=median(seconds), unit="s", n=len(seconds), source=source)
        return found

    def notes_from(self, answers: Sequence[Answer], contract: Contract) -> list[str]:
        lines = super().notes_from(answers, contract)
        field = contract.settings.get("thinking.field")
        if field is None or not field.value:
            lines.append("No switch for thinking is known for this model, so these questions were sent like the others.")
        return lines


PART = Think()
