"""Writes replies on a backend, row by row or in windows, so that tests can compare them: the promises that every backend keeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from homestretch.engine.backends import Backend
from homestretch.engine.types import Draw, PromptPiece, RowOut, StreamId, Window

VOCAB = 320
"""Tokens of every tiny model."""


def sampled(position: int, seed: int = 7) -> Draw:
    """A hot draw that asks for log probabilities, so that equal rows mean equal logits, not only equal tokens."""
    return Draw(seed=seed, position=position, temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, logprobs=5)


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, VOCAB, length).tolist())


def read(backend: Backend, stream: StreamId, prompt: Sequence[int], start: int = 0, cuts: Sequence[int] = ()) -> RowOut:
    """Read a prompt from `start` on in pieces cut at `cuts`; the first reply token."""
    assert backend.reserve(stream, len(prompt))
    edges = [start, *(cut for cut in cuts if start < cut < len(prompt)), len(prompt)]
    rows: tuple[tuple[RowOut, ...], ...] = ()
    for low, high in pairwise(edges):
        draw = sampled(len(prompt)) if high == len(prompt) else None
        piece = PromptPiece(stream=stream, start=low, tokens=tuple(prompt[low:high]), draw=draw)
        rows = backend.wait(backend.read(piece))
        assert (len(rows) == 1) == (draw is not None)
    return rows[0][0]


class Writer:
    """Writes a reply with windows whose drafts are right for a while and then wrong."""

    def __init__(self, backend: Backend, prompt: Sequence[int], first: RowOut, stream: StreamId) -> None:
        self.backend, self.stream = backend, stream
        self.position, self.kept = len(prompt), 0
        self.rows = [first]

    def window(self, drafts: Sequence[int]) -> Window:
        tokens = (self.rows[-1].token, *drafts)
        assert self.backend.reserve(self.stream, self.position + len(tokens))
        draws = tuple(sampled(self.position + 1 + row) for row in range(len(tokens)))
        return Window(stream=self.stream, start=self.position, tokens=tokens, draws=draws, kept=self.kept)

    def settle(self, window: Window, rows: Sequence[RowOut]) -> None:
        """Keep the rows whose drafts were what the row before drew."""
        stands = 1
        while stands < len(window.tokens) and window.tokens[stands] == rows[stands - 1].token:
            stands += 1
        self.rows += rows[:stands]
        self.position, self.kept = self.position + stands, stands


def serial(backend: Backend, prompt: Sequence[int], count: int) -> list[RowOut]:
    """The reply one row at a time, alone in a fresh stream."""
    stream = backend.open(None)
    writer = Writer(backend, prompt, read(backend, stream, prompt), stream)
    while len(writer.rows) < count:
        window = writer.window(())
        writer.settle(window, backend.wait(backend.step([window]))[0])
    backend.close(stream)
    return writer.rows
