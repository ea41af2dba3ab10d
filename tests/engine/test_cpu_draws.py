"""Draws inside the kernels are those of engine/draws.py, token for token: a program whose logits are a row of a table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cpu_worlds import MemoryCheckpoint, loaded_model, step

from homestretch.engine import draws
from homestretch.engine.backends import Backend
from homestretch.engine.program import Builder, Embed, Head, Model
from homestretch.engine.types import Draw

VOCAB = 2500  # two whole sum blocks and a part


def table() -> torch.Tensor:
    """Rows of logits: wide, flat, peaked, full of ties, all equal, negative zeros."""
    made = torch.Generator().manual_seed(3)
    rows = torch.zeros(VOCAB, VOCAB)
    for row, scale in enumerate((3.0, 0.3, 12.0, 1.0)):
        rows[row] = torch.randn(VOCAB, generator=made) * scale
    rows[4] = torch.randint(0, 4, (VOCAB,), generator=made).float()
    rows[6] = torch.where(torch.rand(VOCAB, generator=made) < 0.5, -0.0, 0.0)
    rows[7] = torch.randn(VOCAB, generator=made) * 2 - 40
    rows[7, 1234] = 30.0
    return rows


@pytest.fixture(scope="module", params=[1, 3], ids=["1 thread", "3 threads"])
def backend(request: pytest.FixtureRequest) -> Backend:
    build = Builder()
    x = build.one(Embed(), [0], weights=["table"])
    program = build.build(hidden=x, logits=build.one(Head(), [x], weights=["one"]))
    checkpoint = MemoryCheckpoint(config={}, weights={"table": table(), "one": torch.eye(VOCAB)})
    model = Model(
        name="table", family="", vocab=VOCAB, hidden=VOCAB, window=1024, main=program, head=None, weights=checkpoint.specs
    )
    return loaded_model("cpu", model, checkpoint, threads=request.param)


def settings() -> list[dict[str, float]]:
    grid = itertools.product((0.0, 0.3, 1.0, 1.7), (0, 1, 20, VOCAB - 1), (1.0, 0.95, 0.3), (0.0, 0.05))
    return [{"temperature": t, "top_k": k, "top_p": p, "min_p": m} for t, k, p, m in grid]


@pytest.mark.parametrize("row", range(8))
def test_tokens_are_those_of_the_reference_draw(backend: Backend, row: int) -> None:
    logits = table()[row]
    allowed = np.packbits(np.arange(VOCAB) % 3 != 1, bitorder="little").tobytes()
    wishes = []
    for number, setting in enumerate(settings()):
        extra: dict[str, object] = {}
        if number % 4 == 1:
            extra["bias"] = ((5, 8.0), (VOCAB - 1, -3.0), (5, 1.5))
        if number % 5 == 2:
            extra["mask"] = allowed
        wishes.append(Draw(seed=2**63 + 977 * number, position=7 * number + 1, logprobs=number % 3, **setting, **extra))  # type: ignore[arg-type]
    for first in range(0, len(wishes), 16):
        some = wishes[first : first + 16]
        stream = backend.open(None)
        got = step(backend, stream, 0, [row] * len(some), some, 0)
        backend.close(stream)
        for wish, made in zip(some, got, strict=True):
            wanted = draws.draw(logits, wish)
            assert made.token == wanted.token, wish
            assert [i for i, _ in made.top] == [i for i, _ in wanted.top]
            assert made.logprob == pytest.approx(wanted.logprob, abs=1e-12)


def test_nothing_to_draw_is_an_error(backend: Backend) -> None:
    stream = backend.open(None)
    nothing = Draw(seed=0, position=1, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, mask=b"\0")
    with pytest.raises(FloatingPointError, match="no token to draw"):
        step(backend, stream, 0, [1], [nothing], 0)
    with pytest.raises(ValueError, match="vocabulary"):
        step(backend, backend.open(None), 0, [VOCAB], [nothing], 0)
    beyond = Draw(seed=0, position=1, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, bias=((VOCAB, 1.0),))
    with pytest.raises(ValueError, match="bias"):
        step(backend, backend.open(None), 0, [1], [beyond], 0)
