"""HotpotQA's distractor questions as rows for long texts; both layouts of its documents are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homestretch.lab.data import tables
from homestretch.lab.data.draws import fixed
from homestretch.lab.data.longtext import QuestionRow
from homestretch.lab.data.world import Document


def read(path: Path, count: int) -> list[QuestionRow]:
    """The `count` rows chosen by hash of their id. Documents named by supporting facts come first, the others after."""
    found = tables.rows(path)
    tables.need(found, ("question", "answer", "context", "supporting_facts"), path)
    by_id = {str(row.get("id") or row.get("_id")): row for row in found}
    return [_row(name, by_id[name]) for name in fixed(list(by_id), count, "hotpot")]


def _row(name: str, row: dict[str, Any]) -> QuestionRow:
    context, facts = row["context"], row["supporting_facts"]
    pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
    documents = [Document(title=str(title), text=" ".join("".join(sentences).split())) for title, sentences in pairs]
    named = set(facts["title"]) if isinstance(facts, dict) else {fact[0] for fact in facts}
    return QuestionRow(
        id=name,
        question=str(row["question"]),
        answers=(str(row["answer"]),),
        needed=tuple(document for document in documents if document.title in named),
        others=tuple(document for document in documents if document.title not in named),
    )
