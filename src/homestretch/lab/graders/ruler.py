"""Long-text scores: the share of the references that the reply holds, and whether that is enough to count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Found:
    """share: references found, 0 to 1 (for `every=False` 1 as soon as one is found). right: what the headline counts."""

    right: bool
    share: float


def score(answer: str, references: Sequence[str], every: bool) -> Found:
    """Case-insensitive substrings, as the paper counts: every reference for retrieval, words and variables, any for questions."""
    said = answer.casefold()
    hits = sum(reference.casefold() in said for reference in references)
    share = hits / len(references) if every else float(hits > 0)
    return Found(right=share == 1.0, share=share)
