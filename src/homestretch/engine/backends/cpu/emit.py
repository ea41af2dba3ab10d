"""Gives every value its columns and writes the steps of a lowered program into the engine."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass

from homestretch.engine.backends.cpu import native
from homestretch.engine.backends.cpu.lowering import LANES, Form, Lowered, Lowering, Node
from homestretch.engine.backends.cpu.weights import Weights
from homestretch.engine.errors import SetupError
from homestretch.engine.program import (
    Attention,
    Conv,
    Experts,
    GatedNorm,
    Op,
    Program,
    RmsNorm,
    Rotary,
    Router,
    Ssm,
    WeightSpec,
)

MOST_EXPERTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Where each value begins in a row of the workspace, and how long a row is (floats)."""

    at: Mapping[int, int]
    total: int


def assign(lowered: Lowered, kept: set[int], inputs: int) -> Columns:
    """Columns by first fit; a value's are free again after the last step that reads it. Views lie in their value."""

    def root(value: int) -> tuple[int, int]:
        offset = 0
        while value in lowered.views:
            value, more = lowered.views[value]
            offset += more
        return value, offset

    last: dict[int, int] = {}
    for index, node in enumerate(lowered.nodes):
        for value in (*node.ins, *node.outs):
            last[root(value)[0]] = index
    for value in kept:
        last[root(value)[0]] = len(lowered.nodes)
    at: dict[int, int] = {}
    taken: list[tuple[int, int, int]] = []  # start, end, value
    total = 0

    def place(value: int) -> None:
        nonlocal total
        if value in at:
            return
        width = -(-lowered.widths[value] // LANES) * LANES
        start = 0
        for begin, end, _ in sorted(taken):
            if begin - start >= width:
                break
            start = max(start, end)
        at[value] = start
        taken.append((start, start + width, value))
        total = max(total, start + width)

    for value in range(1, inputs):
        place(value)
        last.setdefault(value, 0)
    for index, node in enumerate(lowered.nodes):
        for value in node.outs:
            place(root(value)[0])
        taken = [entry for entry in taken if last[entry[2]] > index]
    for value in lowered.views:
        base, offset = root(value)
        at[value] = at[base] + offset
    # An odd number of cache lines: rows that lie multiples of 4 KiB apart would evict each other.
    lines = -(-total // LANES) + 1
    return Columns(at=at, total=(lines | 1) * LANES)


class Emitter:
    """Writes programs of one model into one engine. page_at, state_at: where each slot lies, as memory.py lays them out."""

    def __init__(
        self,
        library: ctypes.CDLL,
        engine: int,
        specs: Mapping[str, WeightSpec],
        weights: Weights,
        page_at: Mapping[str, int],
        state_at: Mapping[str, tuple[int, int]],
    ) -> None:
        self.library, self.engine, self.specs = library, engine, specs
        self.weights, self.page_at, self.state_at = weights, page_at, state_at
        self._turns: dict[tuple[int, float, str], int] = {}

    def program(self, program: Program, hidden: int, vocab: int) -> int:
        """The engine's number of the compiled program."""
        lowered = Lowering(program, self.specs, hidden).run()
        columns = assign(lowered, set(program.outputs.values()), len(program.inputs))
        self.columns, self.placed, self.widths = columns, dict[tuple[int, float, str], int](), lowered.widths
        at = columns.at
        hidden_in = at[1] if len(program.inputs) > 1 else -1
        self.number = int(
            self.library.hs_program(self.engine, columns.total, hidden_in, at[program.outputs["hidden"]], hidden, vocab)
        )
        steps = (native.Step * len(lowered.nodes))()
        for step, node in zip(steps, lowered.nodes, strict=True):
            self._step(step, node)
        self.library.hs_program_steps(self.engine, self.number, steps, len(steps))
        return self.number

    def _step(self, step: native.Step, node: Node) -> None:
        at = self.columns.at
        step.kind, step.vector = node.kind, -1
        if node.outs:
            step.out = at[node.outs[0]]
        if node.form is not None:
            self._form(step, node.form)
        if node.kind == native.EMBED and node.op is not None:
            step.p[0] = self.weights.matrix(node.op.weights[0])
            step.width = self.specs[node.op.weights[0]].shape[1]
        elif node.parts:
            self._parts(step, node)
        elif node.kind == native.ATTEND and node.op is not None:
            self._attend(step, node, node.op)
        elif node.op is not None and node.kind != native.MAP:
            self._rest(step, node, node.op)

    def _rest(self, step: native.Step, node: Node, op: Op) -> None:
        """Steps that take their inputs as they are."""
        at, a = self.columns.at, op.attrs
        step.a = at[node.ins[0]]
        step.b = at[node.ins[1]] if len(node.ins) > 1 else step.a
        if isinstance(a, Rotary):
            step.p[0:4] = [a.heads, a.head_dim, self._turn(op), int(a.interleaved)]
        elif isinstance(a, Conv) and op.slot is not None:
            taps = self.weights.dense(op.weights[0]).reshape(a.channels, a.kernel).t()
            step.vector = self.weights.made(op.weights[0], taps)
            bias = self.weights.vector(op.weights[1]) if len(op.weights) > 1 else -1
            step.p[0:5] = [a.channels, a.kernel, bias, *self.state_at[op.slot]]
        elif isinstance(a, Ssm) and op.slot is not None:
            rate = self.weights.made(op.weights[0], -self.weights.dense(op.weights[0]).exp())
            skip, bias = self.weights.vector(op.weights[1]), self.weights.vector(op.weights[2])
            step.p[0:9] = [a.heads, a.head_dim, a.groups, a.state, *self.state_at[op.slot], rate, skip, bias]
            step.f[0], step.f[1] = a.dt_min, a.dt_max
        elif isinstance(a, Router):
            if a.experts > MOST_EXPERTS:
                raise SetupError(f"the cpu backend routes to at most {MOST_EXPERTS} experts, not {a.experts}")
            gate = self.weights.matrix(op.weights[0], wide=True)
            step.vector = self.weights.vector(op.weights[1])
            step.p[0:7] = [a.experts, a.top, a.groups, a.top_groups, int(a.normalise), gate, at[node.outs[1]]]
            step.f[0] = a.scale
        elif isinstance(a, Experts):
            first, second = (self.weights.matrix(name) for name in op.weights)
            step.p[0:4] = [first, second, at[node.ins[2]], self.widths[node.ins[1]]]
            step.width = max(self.specs[name].shape[-1] for name in op.weights)

    def _form(self, step: native.Step, form: Form) -> None:
        at, op = self.columns.at, form.op
        step.form, step.width = form.kind, form.width
        step.a = at[form.ins[0]]
        step.b = at[form.ins[1]] if len(form.ins) > 1 else step.a
        if len(form.ins) > 2:
            raise SetupError("the cpu backend concatenates two values, not more; use --backend reference")
        if op is not None and isinstance(op.attrs, RmsNorm | GatedNorm):
            step.vector, step.f[0] = self.weights.vector(op.weights[0]), op.attrs.eps
            step.groups = op.attrs.groups if isinstance(op.attrs, GatedNorm) else 1
        if form.kind == native.CONCAT and op is not None:
            step.wide_b = self.widths[form.ins[1]]

    def _parts(self, step: native.Step, node: Node) -> None:
        at = self.columns.at
        step.segments = len(node.parts)
        for index, part in enumerate(node.parts):
            segment = step.segment[index]
            segment.weight = self.weights.matrix(part.weight)
            segment.second = -1 if part.second is None else self.weights.matrix(part.second)
            segment.bias = -1 if part.bias is None else self.weights.vector(part.bias)
            segment.act = part.act
            segment.out = 0 if part.out < 0 else at[part.out]
            segment.residual = -1 if part.residual is None else at[part.residual]
        step.p[1] = max(self.specs[part.weight].group for part in node.parts)

    def _attend(self, step: native.Step, node: Node, op: Op) -> None:
        at, a = self.columns.at, op.attrs
        if not isinstance(a, Attention) or op.slot is None:
            raise SetupError("attention without a KV slot cannot be run")
        step.a, step.b, step.p[0] = at[node.ins[0]], at[node.ins[1]], at[node.ins[2]]
        for index, turn in enumerate(node.turned):
            step.p[1 + index] = -1 if turn is None else self._turn(turn)
            step.p[3 + index] = int(turn is not None and isinstance(turn.attrs, Rotary) and turn.attrs.interleaved)
        step.slot = self.library.hs_program_kv(
            self.engine, self.number, a.heads, a.kv_heads, a.head_dim, a.scale, self.page_at[op.slot]
        )

    def _turn(self, op: Op) -> int:
        """The program's number of a rotary form; angles of equal forms are worked out once."""
        a = op.attrs
        if not isinstance(a, Rotary):
            raise TypeError(f"{a} is no Rotary")
        key = (a.dims, a.base, op.weights[0] if op.weights else "")
        if key not in self._turns:
            factors = self.weights.dense(op.weights[0]).tolist() if op.weights else [1.0] * (a.dims // 2)
            speed = [math.pow(a.base, -2 * i / a.dims) / factor for i, factor in enumerate(factors)]
            self._turns[key] = self.library.hs_turn(self.engine, a.dims, (ctypes.c_double * len(speed))(*speed))
        if key not in self.placed:
            self.placed[key] = self.library.hs_program_turn(self.engine, self.number, self._turns[key])
        return self.placed[key]
