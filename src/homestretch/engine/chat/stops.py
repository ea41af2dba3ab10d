"""Stop strings over token and event borders: seen token by token, and cut from the text before a part of one is sent."""

from __future__ import annotations

from collections.abc import Sequence

from homestretch.engine.tokenizer import TextStream


class StopWatch:
    """Says, token by token, when a stop string is complete. Runs on the engine's thread."""

    def __init__(self, stream: TextStream, stops: Sequence[str]) -> None:
        self._stream = stream
        self._stops = tuple(stops)
        self._reach = max(len(stop) for stop in stops) - 1
        self._tail = ""

    def push(self, token: int) -> bool:
        """Take the next token; True when a stop string is complete with it."""
        self._tail += self._stream.push(token)
        if any(stop in self._tail for stop in self._stops):
            return True
        self._tail = self._tail[-self._reach :] if self._reach else ""
        return False


class StopText:
    """Text up to the first stop string. Holds back what may be the beginning of one until the next piece decides."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit: str | None = None

    def push(self, piece: str) -> str:
        """The text that may be sent now. After a stop string: nothing more."""
        if self.hit is not None:
            return ""
        self._held += piece
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.hit = min(found, key=lambda item: (item[0], -len(item[1])))
            sent, self._held = self._held[:at], ""
            return sent
        keep = overlap(self._held, self._stops)
        sent = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return sent

    def finish(self) -> str:
        """What was held back at the end of the reply."""
        sent, self._held = self._held, ""
        return sent if self.hit is None else ""


def overlap(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of one of `marks`."""
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest
