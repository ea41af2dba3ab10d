"""Questions with lettered options: MMLU-Pro's layout, GPQA's CSV, and GPQA's open mirror."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homestretch.lab.data import tables
from homestretch.lab.data.draws import Draws
from homestretch.lab.errors import LabError
from homestretch.lab.graders.letters import LETTERS

TASK = "Answer the question below. Reply with the letter of the right option only, without any explanation."
SCIENCE = ("biology", "chemistry", "physics")


@dataclass(frozen=True, kw_only=True)
class LetterQuestion:
    """text: the whole user message. key: the letter of the right option; options: how many letters the row has."""

    row: str
    text: str
    options: int
    key: str
    category: str = ""


def lettered(question: str, options: list[str]) -> str:
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"{TASK}\n\n{question.strip()}\n\n{listed}"


def read(path: Path) -> list[LetterQuestion]:
    """Questions of a file in any of the three layouts, told apart by their columns."""
    found = tables.rows(path)
    tables.need(found, (), path)
    if "Correct Answer" in found[0]:
        tables.need(found, ("Question", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"), path)
        questions = [_gpqa_csv(row, number) for number, row in enumerate(found)]
    elif "options" in found[0]:
        tables.need(found, ("question_id", "question", "answer_index"), path)
        questions = [_mmlu_pro(row, path) for row in found]
    else:
        tables.need(found, ("question", "answer"), path)
        questions = [_gpqa_mirror(row, number, path) for number, row in enumerate(found)]
    tables.unique((question.row for question in questions), path)
    return questions


def _mmlu_pro(row: dict[str, Any], path: Path) -> LetterQuestion:
    """Options are stripped (a leading blank gives the key away upstream) and "N/A" fillers dropped; the key follows by index."""
    kept = [(number, str(option).strip()) for number, option in enumerate(row["options"]) if str(option).strip() != "N/A"]
    places = [place for place, (number, _) in enumerate(kept) if number == row["answer_index"]]
    if len(places) != 1 or not 3 <= len(kept) <= len(LETTERS):
        has = f"{len(kept)} options and key index {row['answer_index']}"
        raise LabError(f"{path}: row {row['question_id']} has {has}; 3 to 10 options with one key are needed")
    text = lettered(str(row["question"]), [option for _, option in kept])
    return LetterQuestion(
        row=str(row["question_id"]), text=text, options=len(kept), key=LETTERS[places[0]], category=str(row.get("category", ""))
    )


def _gpqa_csv(row: dict[str, Any], number: int) -> LetterQuestion:
    """Options shuffled by hash of the row id. The key is found by index: two rows hold two equal options once stripped."""
    name = str(row.get("Record ID") or number)
    options = [str(row[column]).strip() for column in ("Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3)))]
    order = Draws(f"gpqa/{name}").shuffled(range(4))
    text = lettered(str(row["Question"]), [options[place] for place in order])
    return LetterQuestion(
        row=name, text=text, options=4, key=LETTERS[order.index(0)], category=str(row.get("High-level domain", ""))
    )


def _gpqa_mirror(row: dict[str, Any], number: int, path: Path) -> LetterQuestion:
    """The mirror's question holds its options already, and its answer is their letter: nothing is shuffled."""
    key = str(row["answer"]).strip().upper()
    if key not in LETTERS[:4] or len(key) != 1:
        raise LabError(f"{path}: row {number} names the letter {key[:20]!r}; A to D are possible")
    return LetterQuestion(row=str(number), text=f"{TASK}\n\n{str(row['question']).strip()}", options=4, key=key)
