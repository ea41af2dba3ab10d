"""IFEval: 200 fixed prompts with checkable instructions; a prompt passes when all of its instructions hold, strictly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from homestretch.lab.asking import Question, QuestionPart, counts, notes, numbers_of
from homestretch.lab.data import instructions
from homestretch.lab.data.draws import fixed
from homestretch.lab.data.fetch import HOUSE, SetFile, bring
from homestretch.lab.graders import ifeval
from homestretch.lab.parts import Example, FakeAnswer, NumberSpec
from homestretch.lab.types import Answer, Contract, Number, RequestRecord

ASKED = 200


class IfEval(QuestionPart):
    name = "ifeval"
    asks = "Does it do exactly what it is told?"
    numbers = numbers_of(
        "ifeval",
        NumberSpec(name="ifeval.loose_right", unit="answers", digits=0, meaning="prompts that pass the loose grading"),
        NumberSpec(name="ifeval.loose_right_pct", unit="%", digits=1, meaning="the same as a share"),
        NumberSpec(name="ifeval.instructions_right_pct", unit="%", digits=1, meaning="single instructions that hold, strictly"),
    )
    set_name = "ifeval"
    grader = ifeval.VERSION
    limit = 4096
    house_limit = 1024

    def questions(self, file: SetFile) -> list[Question]:
        found = instructions.read(file.path)
        by_row = {prompt.row: prompt for prompt in found}
        rows = fixed(list(by_row), len(by_row) if file.name == HOUSE else ASKED, self.name)
        return [self._question(by_row[row]) for row in rows]

    def _question(self, prompt: instructions.InstructionPrompt) -> Question:
        return Question(
            row=prompt.row,
            messages=({"role": "user", "content": prompt.text},),
            detail={"instructions": list(prompt.instructions), "arguments": list(prompt.arguments)},
        )

    def grade(self, text: str, record: RequestRecord) -> tuple[str, str, str, dict[str, Any]]:
        names = record.detail["instructions"]
        graded = ifeval.grade(text, names, record.detail["arguments"])
        failed = [name for name, held in zip(names, graded.strict, strict=True) if not held]
        detail = {"strict": list(graded.strict), "loose": list(graded.loose), "loose_pass": graded.loose_pass}
        return ("wrong" if failed else "right"), f"failed: {', '.join(failed)}" if failed else "", "", detail

    def numbers_from(self, answers: Sequence[Answer], source: str) -> dict[str, Number]:
        found = counts(self.name, answers, source)
        if answers:
            loose = sum(bool(answer.detail.get("loose_pass")) for answer in answers)
            held = [verdict for answer in answers for verdict in answer.detail.get("strict", [])]
            found["ifeval.loose_right"] = Number(value=loose, unit="answers", n=len(answers), source=source)
            found["ifeval.loose_right_pct"] = Number(value=100.0 * loose / len(answers), unit="%", n=len(answers), source=source)
            if held:
                found["ifeval.instructions_right_pct"] = Number(
                    value=100.0 * sum(held) / len(held), unit="%", n=len(held), source=f"{source}; answers neither cut nor empty"
                )
        return found

    def notes_from(self, answers: Sequence[Answer], contract: Contract) -> list[str]:
        loose = sum(bool(answer.detail.get("loose_pass")) for answer in answers)
        return [*notes(answers), f"Graded loosely, {loose} of {len(answers)} prompts pass."]

    def example(self) -> Example:
        """One reply to all: it passes the prompts that ask only for what it happens to do."""
        text = "a quiet reply without any mark"
        prompts = instructions.read(bring(self.set_name, Path(HOUSE)).path)
        right = sum(ifeval.grade(text, prompt.instructions, prompt.arguments).strict_pass for prompt in prompts)
        return Example(
            options={"parts": ("ifeval",), "data": Path(HOUSE)},
            answers=(FakeAnswer(match="", text=text),),
            numbers={"ifeval.right": right, "ifeval.asked": len(prompts), "ifeval.cut_off": 0},
        )


PART = IfEval()
