"""Who proposes tokens before they are computed. A wrong draft costs time and nothing else: a row's own draw decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Proposer(Protocol):
    """Drafts for one stream from what the core already knows (the head of a model drafts through `Backend.draft` instead)."""

    def propose(self, limit: int) -> tuple[int, ...]:
        """Up to `limit` tokens that may follow the text so far; empty when there is nothing to propose."""

    def settled(self, tokens: Sequence[int]) -> None:
        """These tokens were added to the text."""


Propose = Callable[[Sequence[int]], Proposer]
"""Makes the proposer of one stream from its prompt."""
