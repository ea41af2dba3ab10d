"""Every operation that the kernels have, each in a small program of its own, as window rows and as a prompt, against `reference`.

The list of operations is found, not written here: a kind without a case below fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from cpu_worlds import MemoryCheckpoint, affine, difference, drawn, loaded_model, read, step

from homestretch.engine.backends.cpu.lowering import KINDS
from homestretch.engine.checkpoint import Weight
from homestretch.engine.program import (
    Add,
    Attention,
    Attrs,
    Builder,
    Concat,
    Conv,
    Embed,
    Experts,
    GatedNorm,
    Head,
    Linear,
    Model,
    Relu2,
    RmsNorm,
    Rotary,
    Router,
    SiluMul,
    Slot,
    Split,
    Ssm,
)

VOCAB = 75  # no multiple of 16
ROWS, TILES = 3e-4, 2e-2


@dataclass
class World:
    """A program under construction around one operation: tokens -> embedding -> [the case] -> norm -> head."""

    width: int
    group: int
    build: Builder = field(default_factory=Builder)
    weights: dict[str, Weight] = field(default_factory=dict)

    def dense(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> str:
        name = f"w{len(self.weights)}"
        made = torch.Generator().manual_seed(len(self.weights) + 7)
        self.weights[name] = (torch.randn(*shape, generator=made) * scale).to(dtype)
        return name

    def packed(self, *shape: int, bits: int = 4) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = affine(*shape, seed=len(self.weights), bits=bits, group=self.group)
        return name

    def linear(self, x: int, out: int, width: int, *, bits: int = 4) -> int:
        return self.build.one(Linear(), [x], weights=[self.packed(out, width, bits=bits)])

    def finish(self, x: int, width: int) -> Model:
        last = self.build.one(RmsNorm(eps=1e-5), [x], weights=[self.dense(width)])
        logits = self.build.one(Head(), [last], weights=[self.dense(VOCAB, width, scale=width**-0.5)])
        program = self.build.build(hidden=last, logits=logits)
        specs = MemoryCheckpoint(config={}, weights=self.weights).specs
        return Model(name="case", family="case", vocab=VOCAB, hidden=width, window=1024, main=program, head=None, weights=specs)


Case = Callable[[World, int], tuple[int, int]]
"""Adds the operation to the world after value x (world.width wide); gives the result and its width."""


def _two(w: World, x: int) -> tuple[int, int]:
    return w.linear(x, w.width, w.width), w.linear(x, w.width, w.width, bits=8)


def _attention(w: World, x: int) -> tuple[int, int]:
    heads, kv, width = 6, 2, 20
    q, k, v = (w.linear(x, n * width, w.width) for n in (heads, kv, kv))
    slot = Slot(name="kv", kind="kv", shape=(2, kv, width))
    made = w.build.one(Attention(heads=heads, kv_heads=kv, head_dim=width, scale=width**-0.5), [q, k, v], slot=slot)
    return made, heads * width


def _rotary(w: World, x: int) -> tuple[int, int]:
    y = w.build.one(Rotary(heads=2, head_dim=w.width // 2, dims=w.width // 4, base=50.0, interleaved=True), [x])
    return w.build.one(Add(), [y, x]), w.width


def _turned_attention(w: World, x: int) -> tuple[int, int]:
    q, k, v = w.linear(x, 96, w.width), w.linear(x, 32, w.width), w.linear(x, 32, w.width)
    factors = w.dense(8, scale=0.0)
    w.weights[factors] = torch.linspace(1.0, 3.0, 8)
    q = w.build.one(Rotary(heads=6, head_dim=16, dims=16, base=100.0, interleaved=False), [q], weights=[factors])
    k = w.build.one(Rotary(heads=2, head_dim=16, dims=16, base=100.0, interleaved=True), [k], weights=[factors])
    made = w.build.one(
        Attention(heads=6, kv_heads=2, head_dim=16, scale=0.25), [q, k, v], slot=Slot(name="kv", kind="kv", shape=(2, 2, 16))
    )
    return made, 96


def _conv(w: World, x: int) -> tuple[int, int]:
    weights = [w.dense(w.width, 4, scale=0.5), w.dense(w.width, scale=0.2)]
    slot = Slot(name="conv", kind="conv", shape=(3, w.width))
    return w.build.one(Conv(channels=w.width, kernel=4), [x], weights=weights, slot=slot), w.width


def _ssm(w: World, x: int) -> tuple[int, int]:
    heads, width, groups, state = 6, 20, 2, 24
    xbc = w.linear(x, heads * width + 2 * groups * state, w.width)
    dt = w.linear(x, heads, w.width)
    scalars = [w.dense(heads, scale=0.5), w.dense(heads), w.dense(heads)]
    a = Ssm(heads=heads, head_dim=width, groups=groups, state=state, dt_min=0.01, dt_max=math.inf)
    slot = Slot(name="ssm", kind="ssm", shape=(heads, width, state))
    return w.build.one(a, [xbc, dt], weights=scalars, slot=slot), heads * width


def _gated(w: World, x: int) -> tuple[int, int]:
    y, z = _two(w, x)
    return w.build.one(GatedNorm(groups=4, eps=1e-5), [y, z], weights=[w.dense(w.width)]), w.width


def _moe(w: World, x: int, *, groups: int = 1, bits: int = 4) -> tuple[int, int]:
    a = Router(experts=12, top=3, groups=groups, top_groups=max(1, groups // 2), normalise=True, scale=2.5)
    ids, shares = w.build.op(a, [x], weights=[w.dense(12, w.width, scale=0.5), w.dense(12, scale=0.1)], outs=2)
    inner = 2 * w.group
    stacks = [w.packed(12, inner, w.width, bits=bits), w.packed(12, w.width, inner, bits=bits)]
    return w.build.one(Experts(), [x, ids, shares], weights=stacks), w.width


def _split(w: World, x: int) -> tuple[int, int]:
    a, b, c = w.build.op(Split(sizes=(w.width - 30, 7, 23)), [x], outs=3)
    return w.build.one(Concat(), [w.build.one(Concat(), [c, a]), b]), w.width


def _dense_linear(w: World, x: int, dtype: torch.dtype) -> tuple[int, int]:
    weights = [w.dense(37, w.width, scale=w.width**-0.5, dtype=dtype), w.dense(37)]
    return w.build.one(Linear(), [x], weights=weights), 37


def _gate_up(w: World, x: int) -> tuple[int, int]:
    gate, up = w.linear(x, 40, w.width), w.linear(x, 40, w.width)
    return w.build.one(SiluMul(), [gate, up]), 40


def _odd_linear(w: World, x: int, bits: int) -> tuple[int, int]:
    return w.linear(x, 37, w.width, bits=bits), 37


CASES: dict[str, tuple[type[Attrs], Case]] = {
    "embed": (Embed, lambda w, x: (x, w.width)),
    "head": (Head, lambda w, x: (x, w.width)),
    "norm": (RmsNorm, lambda w, x: (w.build.one(RmsNorm(eps=0.1), [x], weights=[w.dense(w.width)]), w.width)),
    **{f"linear {bits} bits": (Linear, lambda w, x, bits=bits: _odd_linear(w, x, bits)) for bits in (2, 3, 4, 5, 6, 8)},
    "linear bf16": (Linear, lambda w, x: _dense_linear(w, x, torch.bfloat16)),
    "linear fp32": (Linear, lambda w, x: _dense_linear(w, x, torch.float32)),
    "linear fp16": (Linear, lambda w, x: _dense_linear(w, x, torch.float16)),
    "add": (Add, lambda w, x: (w.build.one(Add(), list(_two(w, x))), w.width)),
    "split": (Split, _split),
    "concat": (Concat, _split),
    "silu of two": (SiluMul, lambda w, x: (w.build.one(SiluMul(), list(_two(w, x))), w.width)),
    "gated pair": (SiluMul, _gate_up),
    "relu2": (Relu2, lambda w, x: (w.build.one(Relu2(), [x]), w.width)),
    "relu2 of a layer": (Relu2, lambda w, x: (w.build.one(Relu2(), [w.linear(x, 50, w.width)]), 50)),
    "rotary": (Rotary, _rotary),
    "rotary in attention": (Rotary, _turned_attention),
    "attention": (Attention, _attention),
    "conv": (Conv, _conv),
    "ssm": (Ssm, _ssm),
    "gated norm": (GatedNorm, _gated),
    "router": (Router, lambda w, x: _moe(w, x, groups=4)),
    "experts": (Experts, _moe),
    "experts 8 bits": (Experts, lambda w, x: _moe(w, x, bits=8)),
}


def world(case: str, width: int, group: int) -> tuple[Model, MemoryCheckpoint]:
    w = World(width=width, group=group)
    embedded = w.build.one(Embed(), [0], weights=[w.packed(VOCAB, width, bits=8)])
    made, wide = CASES[case][1](w, embedded)
    model = w.finish(made, wide)
    return model, MemoryCheckpoint(config={}, weights=w.weights)


def test_every_operation_has_a_case() -> None:
    assert {kind for kind, _ in CASES.values()} == set(KINDS)


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("case", CASES)
def test_an_operation_agrees_with_the_reference(case: str, group: int) -> None:
    model, checkpoint = world(case, 96 if group == 32 else 128, group)
    tokens = [(29 * i + 3) % VOCAB for i in range(140)]
    made = []
    for name in ("cpu", "reference"):
        backend = loaded_model(name, model, checkpoint, threads=2)
        stream = backend.open(None)
        rows = [*read(backend, stream, tokens, drawn(1, len(tokens), VOCAB))]
        backend.close(stream)
        stream = backend.open(None)
        at = 0
        for count in (1, 5, 16):
            wishes = [drawn(1, at + 1 + i, VOCAB) for i in range(count)]
            rows += step(backend, stream, at, tokens[at : at + count], wishes, kept=min(at, {0: 0, 1: 1, 6: 5}[at]))
            at += count
        made.append(rows)
    errors = [difference(a, b) for a, b in zip(*made, strict=True)]
    assert errors[0] < TILES
    assert np.max(errors[1:]) < ROWS
