"""Turns a Program into the flat list of steps that the kernels run: what can be fused is, and every value gets its columns.

Fused: linear layers that read one value (one step, its input formed and quantized once); the norm or gate that alone feeds them
(its form); silu(gate) * up and squared ReLU (activation of the outputs); the residual sum; rotary embedding (part of attention).
Split makes views and costs nothing. Columns of the workspace are given out again after a value's last use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from homestretch.engine.backends.cpu import native
from homestretch.engine.errors import SetupError
from homestretch.engine.program import (
    Add,
    Attention,
    Concat,
    Conv,
    Embed,
    Experts,
    GatedNorm,
    Head,
    Linear,
    Op,
    Program,
    Relu2,
    RmsNorm,
    Rotary,
    Router,
    SiluMul,
    Split,
    Ssm,
    WeightSpec,
)

LANES = 16
FORMS: dict[type, int] = {
    RmsNorm: native.NORM,
    SiluMul: native.SILU_MUL,
    Relu2: native.RELU2,
    GatedNorm: native.GATED,
    Add: native.ADD,
    Concat: native.CONCAT,
}


PLAIN_KINDS: dict[type, int] = {
    Embed: native.EMBED,
    Conv: native.CONV,
    Ssm: native.SSM,
    Router: native.ROUTE,
    Experts: native.EXPERTS,
}
KINDS = frozenset({Linear, Head, Split, Attention, Rotary, *PLAIN_KINDS, *FORMS})
"""Operations that the kernels have."""


@dataclass(slots=True, kw_only=True)
class Form:
    """A row made from one or two values before a step reads it."""

    kind: int
    ins: tuple[int, ...]
    width: int
    op: Op | None = None


@dataclass(slots=True, kw_only=True)
class Part:
    """One linear layer of a step: its weight (and the up half of a gated pair), bias, what its outputs go through, and where."""

    weight: str
    out: int
    second: str | None = None
    bias: str | None = None
    act: int = native.PLAIN
    residual: int | None = None


@dataclass(slots=True, kw_only=True)
class Node:
    """A step before it has columns: kind, the values it reads and makes."""

    kind: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    op: Op | None = None
    form: Form | None = None
    parts: list[Part] = field(default_factory=list)
    turned: tuple[Op | None, Op | None] = (None, None)


@dataclass(slots=True, kw_only=True)
class Lowered:
    """The nodes in order, the width of each value, and the views: value -> (value it lies in, columns past its start)."""

    nodes: list[Node]
    widths: dict[int, int]
    views: dict[int, tuple[int, int]]


class Lowering:
    """Walks a program once. SetupError for an operation the kernels do not have."""

    def __init__(self, program: Program, specs: Mapping[str, WeightSpec], hidden: int) -> None:
        self.program, self.specs = program, specs
        self.maker = {out: op for op in program.ops for out in op.outs}
        self.users: dict[int, list[Op]] = {}
        for op in program.ops:
            for value in op.ins:
                self.users.setdefault(value, []).append(op)
        self.kept = set(program.outputs.values())
        self.widths: dict[int, int] = {0: 0, 1: hidden} if len(program.inputs) > 1 else {0: 0}
        self.views: dict[int, tuple[int, int]] = {}
        self.done: set[int] = set()  # ids of operations that another one took in
        self.nodes: list[Node] = []

    def run(self) -> Lowered:
        """Nodes of the whole program."""
        for op in self.program.ops:
            self._widths(op)
        for op in self.program.ops:
            if id(op) not in self.done:
                self._place(op)
        return Lowered(nodes=self.nodes, widths=self.widths, views=self.views)

    def _widths(self, op: Op) -> None:
        a, ins = op.attrs, op.ins
        if isinstance(a, Embed):
            made: Sequence[int] = (self.specs[op.weights[0]].shape[1],)
        elif isinstance(a, Linear | Head):
            made = (self.specs[op.weights[0]].shape[0],)
        elif isinstance(a, Split):
            made = a.sizes
        elif isinstance(a, Ssm):
            made = (a.heads * a.head_dim,)
        elif isinstance(a, Router):
            made = (a.top, a.top)
        elif isinstance(a, Experts):
            made = (self.specs[op.weights[1]].shape[1],)
        elif isinstance(a, Concat):
            made = (sum(self.widths[value] for value in ins),)
        else:
            made = (self.widths[ins[0]],)
        self.widths.update(zip(op.outs, made, strict=True))

    def _alone(self, value: int) -> Op | None:
        """The only user of a value that is no output of the program."""
        users = self.users.get(value, [])
        return users[0] if len(users) == 1 and value not in self.kept else None

    def _place(self, op: Op) -> None:
        a = op.attrs
        if isinstance(a, Split):
            offset = 0
            for out, size in zip(op.outs, a.sizes, strict=True):
                self.views[out] = (op.ins[0], offset)
                offset += size
        elif type(a) in PLAIN_KINDS:
            self._node(PLAIN_KINDS[type(a)], op)
        elif isinstance(a, Linear):
            self._linear(op)
        elif isinstance(a, Head):
            form = self._form(op.ins[0], [op])
            self._add(Node(kind=native.HEAD, ins=form.ins, outs=(), op=op, form=form, parts=[Part(weight=op.weights[0], out=-1)]))
        elif isinstance(a, Attention):
            turned = tuple(self._rotary(value) for value in op.ins[:2])
            ins = tuple(op.ins[i] if (turn := turned[i]) is None else turn.ins[0] for i in range(2))
            self._add(Node(kind=native.ATTEND, ins=(*ins, op.ins[2]), outs=op.outs, op=op, turned=(turned[0], turned[1])))
        elif isinstance(a, Rotary):
            if not self._goes_to_attention(op):
                self._node(native.TURN, op)
        elif type(a) in FORMS:
            if not self._becomes_form(op):
                form = Form(kind=FORMS[type(a)], ins=op.ins, width=self.widths[op.outs[0]], op=op)
                self._add(Node(kind=native.MAP, ins=op.ins, outs=op.outs, op=op, form=form))
        else:
            raise SetupError(f"the cpu backend does not compute {type(a).__name__}; use --backend reference")

    def _node(self, kind: int, op: Op) -> None:
        self._add(Node(kind=kind, ins=op.ins, outs=op.outs, op=op))

    def _add(self, node: Node) -> None:
        self.nodes.append(node)

    def _goes_to_attention(self, op: Op) -> bool:
        user = self._alone(op.outs[0])
        return user is not None and isinstance(user.attrs, Attention) and op.outs[0] in user.ins[:2]

    def _rotary(self, value: int) -> Op | None:
        maker = self.maker.get(value)
        return maker if maker is not None and isinstance(maker.attrs, Rotary) and self._goes_to_attention(maker) else None

    def _becomes_form(self, op: Op) -> bool:
        """True when linear layers, and nothing else, read this value: they form it for themselves."""
        if isinstance(op.attrs, Add) or op.outs[0] in self.kept:
            return False
        users = self.users.get(op.outs[0], [])
        if not users or any(not isinstance(user.attrs, Linear | Head) for user in users):
            return False
        return all(isinstance(user.attrs, Head) for user in users) or len(self._groups(users)) == 1

    def _form(self, value: int, users: Sequence[Op]) -> Form:
        maker = self.maker.get(value)
        if maker is not None and type(maker.attrs) in FORMS and id(maker) not in self.done and self._becomes_form(maker):
            return Form(kind=FORMS[type(maker.attrs)], ins=maker.ins, width=self.widths[value], op=maker)
        return Form(kind=native.PASS, ins=(value,), width=self.widths[value])

    def _groups(self, users: Sequence[Op]) -> list[list[Op]]:
        """Linear layers of one input that can share a step: equal quantization groups, at most SEGMENTS, in program order."""
        made: list[list[Op]] = []
        for op in users:
            for some in made:
                if self.specs[some[0].weights[0]].group == self.specs[op.weights[0]].group and len(some) < native.SEGMENTS:
                    some.append(op)
                    break
            else:
                made.append([op])
        return made

    def _linear(self, op: Op) -> None:
        readers = [user for user in self.users[op.ins[0]] if isinstance(user.attrs, Linear) and id(user) not in self.done]
        together = next(some for some in self._groups(readers) if op in some)
        form = self._form(op.ins[0], together)
        position = {id(each): at for at, each in enumerate(self.program.ops)}
        here, parts = position[id(op)], []
        waiting = list(together)
        self.done |= {id(each) for each in together}
        while waiting:
            parts.append(self._part(waiting.pop(0), waiting, position, here))
        ins = (*form.ins, *(part.residual for part in parts if part.residual is not None))
        self._add(Node(kind=native.LINEAR, ins=ins, outs=tuple(part.out for part in parts), form=form, parts=parts))

    def _part(self, op: Op, waiting: list[Op], position: Mapping[int, int], here: int) -> Part:
        """The layer with all that can be done to its outputs on the way out; takes the up half of a gated pair from `waiting`."""
        part = Part(weight=op.weights[0], out=op.outs[0], bias=op.weights[1] if len(op.weights) > 1 else None)
        user = self._alone(part.out)
        if user is None:
            return part
        if isinstance(user.attrs, SiluMul) and part.bias is None:
            gate, up = user.ins
            other = self.maker.get(up)
            fits = gate == part.out and other in waiting and self._alone(up) is user
            if fits and other is not None and len(other.weights) == 1 and self._same(op, other):
                waiting.remove(other)
                self.done.add(id(user))
                part.second, part.out, part.act = other.weights[0], user.outs[0], native.ACT_SILU_MUL
        elif isinstance(user.attrs, Relu2):
            self.done.add(id(user))
            part.out, part.act = user.outs[0], native.ACT_RELU2
        elif isinstance(user.attrs, Add):
            other_value = user.ins[1] if user.ins[0] == part.out else user.ins[0]
            ready = other_value != part.out and self._ready(other_value, position, here)
            if ready:
                self.done.add(id(user))
                part.out, part.residual = user.outs[0], other_value
        return part

    def _same(self, a: Op, b: Op) -> bool:
        one, two = self.specs[a.weights[0]], self.specs[b.weights[0]]
        return one.shape == two.shape and one.bits == two.bits and one.group == two.group

    def _ready(self, value: int, position: Mapping[int, int], here: int) -> bool:
        """True when the value stands in the workspace before the step at `here` runs."""
        maker = self.maker.get(value)
        if maker is None:
            return True
        made = any(value in node.outs for node in self.nodes)
        return made or (isinstance(maker.attrs, Split) and position[id(maker)] < here)
