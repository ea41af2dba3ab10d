"""Drafts copied from the text itself: where its last 8 or more tokens stood before, what followed then is proposed again."""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 8
"""Tokens that must match."""
LOOKS = 16
"""Earlier places that are compared, the latest first."""
FAR = 64
"""A match is measured up to this length."""


class Copies:
    """An index of every run of LEAST tokens by its content. Adding a token is O(1), a proposal O(LOOKS * FAR + limit) at most."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._text: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        self._earlier: list[int] = []
        self.settled(prompt)

    def settled(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text and index the runs that they end."""
        text = self._text
        for token in tokens:
            text.append(token)
            end = len(text)
            run = tuple(text[end - LEAST : end]) if end >= LEAST else ()
            self._earlier.append(self._last.get(run, 0) if run else 0)
            if run:
                self._last[run] = end

    def propose(self, limit: int) -> tuple[int, ...]:
        """What followed the longest earlier match (of equal ones the latest), up to `limit` tokens.

        A match that overlaps the end of the text is a repetition: its continuation runs on into the proposal itself.
        """
        text, end = self._text, len(self._text)
        if limit <= 0 or end <= LEAST:
            return ()
        best, longest = 0, LEAST - 1
        place = self._earlier[end - 1]
        for _ in range(LOOKS):
            if place == 0:
                break
            length = LEAST
            while length < FAR and length < place and text[place - 1 - length] == text[end - 1 - length]:
                length += 1
            if length > longest:
                best, longest = place, length
            place = self._earlier[place - 1]
        if best == 0:
            return ()
        period = end - best
        return tuple(text[best + (i % period)] for i in range(limit))
