"""Parts whose answer is one letter: how such a question is put and how its reply is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from homestretch.lab.asking import Question, QuestionPart
from homestretch.lab.data import letters
from homestretch.lab.data.draws import fixed
from homestretch.lab.data.fetch import HOUSE, SetFile, bring
from homestretch.lab.graders import letters as reading
from homestretch.lab.parts import Example, FakeAnswer
from homestretch.lab.types import RequestRecord


class LetterPart(QuestionPart):
    """asked: how many rows of the public set; house_asked: of our own. science: only the science questions of our own set."""

    grader = reading.VERSION
    asked: ClassVar[int]
    house_asked: ClassVar[int]
    science: ClassVar[bool] = False

    def questions(self, file: SetFile) -> list[Question]:
        found = letters.read(file.path)
        house = file.name == HOUSE
        if house and self.science:
            found = [question for question in found if question.category in letters.SCIENCE]
        rows = fixed([question.row for question in found], self.house_asked if house else self.asked, self.name)
        by_row = {question.row: question for question in found}
        return [self._question(by_row[row]) for row in rows]

    def _question(self, question: letters.LetterQuestion) -> Question:
        return Question(
            row=question.row,
            messages=({"role": "user", "content": question.text},),
            detail={"key": question.key, "options": question.options},
        )

    def grade(self, text: str, record: RequestRecord) -> tuple[str, str, str, dict[str, Any]]:
        found = reading.read_letter(text, int(record.detail["options"]))
        if found.letter is None:
            return "unparsed", found.how, "", {}
        right = found.letter == record.detail["key"]
        return ("right" if right else "wrong"), "" if right else "another letter", found.letter, {}

    def example(self) -> Example:
        """On the house set against a server that always says B: the counts follow from the keys."""
        file = bring(self.set_name, Path(HOUSE))
        keys = [question.detail["key"] for question in self.questions(file)]
        right = keys.count("B")
        return Example(
            options={"parts": (self.name,), "data": Path(HOUSE)},
            answers=(FakeAnswer(match="", text="**B**"),),
            numbers={
                f"{self.name}.right": right,
                f"{self.name}.asked": len(keys),
                f"{self.name}.cut_off": 0,
                f"{self.name}.unparsed": 0,
                f"{self.name}.right_pct": 100.0 * right / len(keys),
            },
        )
