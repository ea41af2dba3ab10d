"""What windows of 1 to 16 rows and one MTP draft cost on this device, measured on varied tokens when the model is loaded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from homestretch.engine.backends.cuda.memory import ROWS
from homestretch.engine.draws import mix64
from homestretch.engine.types import Draw, PromptPiece, Window, WindowCosts

if TYPE_CHECKING:
    from homestretch.engine.backends.cuda import Backend

TRIES = 5


def measure(backend: Backend) -> WindowCosts:
    """Medians of a few windows each; zeros would collapse the routing of experts, so tokens are hashed."""
    vocab = backend._model.vocab
    stream = backend.open(None)
    if not backend.reserve(stream, 256):
        backend.close(stream)
        return WindowCosts(rows=(0.0,) * ROWS, draft=0.0)

    def tokens(start: int, count: int) -> tuple[int, ...]:
        return tuple(mix64(start + i) % vocab for i in range(count))

    def draw(position: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 0.95) -> Draw:
        return Draw(seed=1, position=position, temperature=temperature, top_k=top_k, top_p=top_p, min_p=0.0)

    backend.wait(backend.read(PromptPiece(stream=stream, start=0, tokens=tokens(0, 100), draw=draw(100))))
    # Once in every way to draw, so that none is compiled while somebody waits.
    for wish in (draw(101, temperature=0.0), draw(101, top_p=1.0), draw(101, top_k=40)):
        backend.wait(backend.step([Window(stream=stream, start=100, tokens=tokens(0, 1), draws=(wish,), kept=0)]))
    seconds = []
    for rows in range(1, ROWS + 1):
        times = []
        for attempt in range(TRIES + 2):
            window = Window(
                stream=stream,
                start=100,
                tokens=tokens(attempt * 64 + rows, rows),
                draws=tuple(draw(101 + i) for i in range(rows)),
                kept=0,
            )
            torch.cuda.synchronize()
            started = time.perf_counter()
            backend.wait(backend.step([window]))
            times.append(time.perf_counter() - started)
        seconds.append(sorted(times[2:])[TRIES // 2])
    draft = 0.0
    if backend._model.head:
        times = []
        for _ in range(TRIES + 2):
            started = time.perf_counter()
            backend.wait(backend.draft(stream, 0, [draw(101 + i) for i in range(4)], 4))
            times.append((time.perf_counter() - started) / 4)
        draft = sorted(times[2:])[TRIES // 2]
    backend.close(stream)
    return WindowCosts(rows=tuple(seconds), draft=draft)
