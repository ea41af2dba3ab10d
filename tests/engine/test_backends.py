"""Every backend found here with every family found here, on random weights of its TINY config: promises, and the reference."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from promises import Writer, prompt_of, read, sampled, serial

from homestretch.engine import backends, families
from homestretch.engine.backends import Backend
from homestretch.engine.checkpoint import TextDefaults, Weight
from homestretch.engine.checkpoint.affine import quantize
from homestretch.engine.checkpoint.shelf import Shelf
from homestretch.engine.program import QUANTUM, Model, WeightSpec
from homestretch.engine.types import Limits, RowOut, StreamId

CASES = [(backend, family) for backend in backends.names() for family in families.names()]
REPLY, GROUP = 10, 32
TOLERANCE = {"reference": 0.0}
"""Largest difference of a log probability from the reference's; 0.15 where none is named, for rows of 64 values in 8 bits round
to 0.04. A wrong operation is off by 1 and more."""


Loaded = tuple[Backend, Backend, Model]


class Wish(Shelf):
    """Takes every weight that a family asks for as given, to learn the shapes of a config."""

    shapes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012 - filled by one test at a time

    def take(self, name: str, *shape: int) -> str:
        self.shapes[name] = shape
        self._taken[name] = WeightSpec(shape=shape)
        return name

    def finish(self, **spare: Any) -> Mapping[str, WeightSpec]:
        return self._taken


class Random:
    """A checkpoint of random weights: matrices packed to 4 bits where their rows are whole groups, the rest in fp32."""

    layout, text, notes = "hf", TextDefaults(ends=frozenset()), ()

    def __init__(self, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.path, self.config = Path("random"), config
        self.specs = {name: self._spec(name, shape) for name, shape in shapes.items()}

    @staticmethod
    def _spec(name: str, shape: tuple[int, ...]) -> WeightSpec:
        packed = len(shape) > 1 and shape[-1] % GROUP == 0 and not name.endswith((".gate.weight", "conv1d.weight"))
        return WeightSpec(shape=shape, bits=4 if packed else 0, group=GROUP if packed else 0, dtype="float32")

    def read(self, name: str) -> Weight:
        spec = self.specs[name]
        drawn = torch.randn(spec.shape, generator=torch.Generator().manual_seed(sum(name.encode())))
        if len(spec.shape) > 1:
            value = drawn / math.sqrt(spec.shape[-1])
        elif name.endswith("A_log"):
            value = drawn.abs()
        else:
            value = 1 + 0.1 * drawn if "norm" in name else 0.1 * drawn
        return quantize(value, bits=4, group=GROUP, dtype=torch.float16) if spec.bits else value

    def tokenizer(self) -> Any:
        raise NotImplementedError


def checkpoint_of(family: str) -> Random:
    """Random weights for the family's TINY config, with its MTP head if it knows one."""
    module, config = families.find(family), dict(families.find(family).TINY)
    Wish.shapes = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Shelf", Wish)
        module.model(Random(config, {"mtp.": (1,)}))
    return Random(config, dict(Wish.shapes))


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[Random, Model]]:
    made = {family: checkpoint_of(family) for family in families.names()}
    return {family: (checkpoint, families.build_model(checkpoint)) for family, checkpoint in made.items()}


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def loaded(request: pytest.FixtureRequest, models: dict[str, tuple[Random, Model]]) -> Loaded:
    """A backend and the reference, both with the same weights, and the model; skipped where the backend says it cannot."""
    name, family = request.param
    checkpoint, model = models[family]
    kind = backends.find(name)
    reason = kind.refusal() or kind.lacks(model)
    if reason:
        pytest.skip(f"{name}: {reason}")
    pair = (kind(), backends.find("reference")())
    for backend in pair:
        backend.load(model, checkpoint, Limits(window=512, streams=6, prompt_cache_bytes=16 << 20))
    return (*pair, model)


def spread(ours: RowOut, theirs: RowOut) -> float:
    """The largest difference of log probabilities of the tokens that both lists hold."""
    left, right = dict(ours.top), dict(theirs.top)
    both = left.keys() & right.keys()
    assert len(both) >= 3, "the lists hold the same tokens but for near ties"
    return max(abs(left[token] - right[token]) for token in both)


def test_near_the_reference(loaded: Loaded) -> None:
    """Prompt rows of several lengths and decode rows; the decoded text is the reference's, so that rows stay comparable."""
    backend, reference, _ = loaded
    for length in (1, 40, QUANTUM, 300):
        prompt = prompt_of(length, seed=length)
        truth = serial(reference, prompt, REPLY)
        stream = backend.open(None)
        rows = [read(backend, stream, prompt)]
        writer = Writer(backend, prompt, truth[0], stream)
        while len(rows) < REPLY:
            window = writer.window([row.token for row in truth[len(writer.rows) : len(writer.rows) + 2]])
            rows += backend.wait(backend.step([window]))[0]
            writer.rows, writer.kept = truth[: len(rows)], len(window.tokens)
            writer.position = length + len(rows) - 1
        backend.close(stream)
        worst = max(spread(ours, theirs) for ours, theirs in zip(rows[:REPLY], truth, strict=True))
        assert worst <= TOLERANCE.get(backend.name, 0.15), f"{worst:.4f}"


def test_drafts_and_company_change_no_bit(loaded: Loaded) -> None:
    backend, _, _ = loaded
    free = backend.free_bytes()
    prompts = [prompt_of(length, seed=length) for length in (7, 130, 257)]
    alone = [serial(backend, prompt, REPLY + 16) for prompt in prompts]
    streams = [backend.open(None) for _ in prompts]
    writers = [
        Writer(backend, prompt, read(backend, stream, prompt, cuts=[QUANTUM]), stream)
        for prompt, stream in zip(prompts, streams, strict=True)
    ]
    for turn in range(4):
        windows = []
        for at, writer in enumerate(writers):
            right = [row.token for row in alone[at][len(writer.rows) :]][: (turn + at) % 4]
            windows.append(writer.window([*right, *[(turn * 31 + at) % 320] * (at + 1)]))
        for writer, window, rows in zip(writers, windows, backend.wait(backend.step(windows)), strict=True):
            writer.settle(window, rows)
    for writer, expected in zip(writers, alone, strict=True):
        assert len(writer.rows) > 4
        assert writer.rows == expected[: len(writer.rows)]
        backend.close(writer.stream)
    assert backend.free_bytes() == free


def test_resumed_is_fresh(loaded: Loaded) -> None:
    backend, _, _ = loaded
    prompt = prompt_of(2 * QUANTUM + 33, seed=5)
    expected = serial(backend, prompt, REPLY)
    source = backend.open(None)
    read(backend, source, prompt[: 2 * QUANTUM])
    mark = backend.mark(source)
    assert mark is not None
    backend.close(source)
    stream = backend.open(mark)
    backend.drop(mark)
    writer = Writer(backend, prompt, read(backend, stream, prompt, start=2 * QUANTUM), stream)
    while len(writer.rows) < REPLY:
        window = writer.window(())
        writer.settle(window, backend.wait(backend.step([window]))[0])
    assert writer.rows == expected
    backend.close(stream)


def drafted(backend: Backend, stream: StreamId, prompt: tuple[int, ...], start: int) -> tuple[list[RowOut], list[tuple[int, ...]]]:
    """A reply whose every window holds what the MTP head drafts, and the drafts."""
    writer = Writer(backend, prompt, read(backend, stream, prompt, start=start), stream)
    chains = []
    while len(writer.rows) < REPLY:
        after = writer.position + 2  # the pending token stands at `position`, the first draft is the one after it
        assert backend.reserve(stream, writer.position + 4)
        ticket = backend.draft(stream, writer.kept, tuple(sampled(after - 1 + link) for link in range(3)), 3)
        chains.append(tuple(row.token for row in backend.wait(ticket)[0]))
        window = writer.window(chains[-1])
        writer.settle(window, backend.wait(backend.step([window]))[0])
    return writer.rows, chains


def test_a_head_changes_no_bit_and_drafts_the_same_when_resumed(loaded: Loaded) -> None:
    backend, _, model = loaded
    if model.head is None:
        with pytest.raises(ValueError, match="head"):
            backend.draft(backend.open(None), 0, (), 1)
        return
    prompt = prompt_of(QUANTUM + 20, seed=9)
    source = backend.open(None)
    read(backend, source, prompt[:QUANTUM])
    mark = backend.mark(source)
    assert mark is not None
    fresh, chains = drafted(backend, stream := backend.open(None), prompt, 0)
    assert fresh == serial(backend, prompt, len(fresh))
    assert any(chains)
    backend.close(stream)
    resumed = backend.open(mark)
    assert drafted(backend, resumed, prompt, QUANTUM) == (fresh, chains)


def test_every_backend_says_why_it_cannot_even_without_its_kernels() -> None:
    """In a process that has no Triton, as after a plain install of the engine."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from homestretch.engine import backends\n"
        "for name in backends.names():\n"
        "    reason = backends.find(name).refusal()\n"
        "    assert reason is None or '\\n' not in reason\n"
        "print(backends.find('cuda').refusal())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Triton" in done.stdout
