"""What a model is made of: named operations, the weights they read, and what a stream must remember for them.

A family file builds a `Model` from a checkpoint's config; a backend runs it. Nothing here computes. Every value is a
matrix of `rows x width` float32 unless an operation says otherwise; a row is one token of one stream. Values are numbered in
order of creation; the program's inputs come first.

Each operation has two lowerings in a backend, *tiles* of a prompt and *rows* of a window, which must agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

QUANTUM = 128
"""Tokens in a prompt tile and in a KV page: the unit of prompt arithmetic and of what may be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """`tokens -> x`: row `token` of weights[0] (vocab, width)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm:
    """`x -> x / sqrt(mean(x^2) + eps) * weights[0]` (width,)."""

    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`x -> x @ weights[0].T (+ weights[1])`; weights[0] is (out, in), weights[1] an optional bias (out,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """`x -> logits`: a Linear over the vocabulary. A backend computes it only for rows whose logits are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """`a, b -> a + b`: the residual connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """`x -> x[:, :s0], x[:, s0:s0+s1], ...`; the sizes add up to the width of x."""

    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concat:
    """`a, b -> [a | b]` along the width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiluMul:
    """`gate, up -> silu(gate) * up`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relu2:
    """`x -> max(x, 0)^2`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """`x (rows, heads*head_dim) -> x` rotated by the row's absolute position.

    Angle i of a head is `position * base^(-2i/dims) / factor_i`; factor_i is weights[0] (dims/2,) if given, else 1.
    Pairs are (2i, 2i+1) when interleaved, else (i, i + dims/2); elements past `dims` pass unchanged.
    """

    heads: int
    head_dim: int
    dims: int
    base: float
    interleaved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """`q, k, v -> o`: causal softmax attention over the stream's KV slot, which takes k and v of the row first.

    q (rows, heads*head_dim), k and v (rows, kv_heads*head_dim); query head h reads KV head h // (heads // kv_heads).
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """`x (rows, channels) -> silu(causal depthwise conv + bias)`; weights (channels, kernel), bias (channels,).

    Slot: the last kernel-1 inputs of the stream (zeros at its start).
    """

    channels: int
    kernel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssm:
    """`xbc, dt -> y`: the Mamba-2 recurrence over the stream's SSM slot (heads, head_dim, state), fp32.

    xbc = [x heads*head_dim | B groups*state | C groups*state], dt (rows, heads); weights A_log, D, dt_bias (heads,).
    d = clamp(softplus(dt + dt_bias), dt_min, dt_max); S <- exp(-exp(A_log) d) S + d x B^T; y = S C + D x.
    Head h reads group h // (heads // groups). Formula: Dao and Gu 2024 (arXiv 2405.21060), section 6.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    dt_min: float
    dt_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedNorm:
    """`y, z -> rms_norm(y * silu(z)) * weights[0]`, the mean taken over each of `groups` equal parts of the width."""

    groups: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """`x -> expert ids (rows, top) int32, shares (rows, top)`; weights: gate (experts, width) fp32, correction bias (experts,).

    s = sigmoid(gate x). Selection by s + bias (ties to the lower id), restricted to the `top_groups` best of `groups` equal
    groups by the sum of each group's two largest; shares are the unbiased s of the chosen, divided by their sum (+1e-20)
    if `normalise`, times `scale`. Ids come in ascending order, so that experts are added up in one order.
    """

    experts: int
    top: int
    groups: int
    top_groups: int
    normalise: bool
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """`x, ids, shares -> sum over chosen e of share_e * (weights[1][e] @ relu(weights[0][e] @ x)^2)`.

    weights[0] (experts, inner, width), weights[1] (experts, width, inner); summed in id order.
    """


Attrs = (
    Embed
    | RmsNorm
    | Linear
    | Head
    | Add
    | Split
    | Concat
    | SiluMul
    | Relu2
    | Rotary
    | Attention
    | Conv
    | Ssm
    | GatedNorm
    | Router
    | Experts
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation: its attributes name its kind; ins and outs are value numbers, weights are names, slot a slot's name."""

    attrs: Attrs
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    weights: tuple[str, ...] = ()
    slot: str | None = None

    @property
    def kind(self) -> type[Attrs]:
        return type(self.attrs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What a stream remembers for one operation.

    kv: shape (2, kv_heads, head_dim) a token; conv: (kernel-1, channels) a stream; ssm: (heads, head_dim, state) a stream.
    """

    name: str
    kind: Literal["kv", "conv", "ssm"]
    shape: tuple[int, ...]

    @property
    def per(self) -> Literal["token", "stream"]:
        return "token" if self.kind == "kv" else "stream"

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpec:
    """Shape and storage of one weight, known before it is read.

    bits 0 = dense in `dtype`; else affine integers of that width in groups of `group` along the last axis.
    shared_with: the name of the weight whose bytes this one uses (tied embeddings).
    values: a small vector that the family computed from the config (rotary factors) and that no file holds; float32.
    """

    shape: tuple[int, ...]
    bits: int = 0
    group: int = 0
    dtype: Literal["float32", "float16", "bfloat16"] = "bfloat16"
    shared_with: str | None = None
    values: tuple[float, ...] | None = None

    @property
    def stored_bytes(self) -> int:
        """Bytes in memory as stored, scales and biases (16 bits each) included; 0 when shared."""
        if self.shared_with is not None:
            return 0
        count = 1
        for size in self.shape:
            count *= size
        if self.bits:
            return count * self.bits // 8 + count // self.group * 4
        return count * (4 if self.dtype == "float32" else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A flat list of operations. `inputs` are values 0.. ("tokens", or "tokens" and "hidden"); outputs name values.

    outputs: "hidden" (after the final norm) and "logits".
    """

    inputs: tuple[str, ...]
    ops: tuple[Op, ...]
    slots: tuple[Slot, ...]
    outputs: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A family's answer to a config: the main program, the MTP program if there is one, and every weight they read.

    The MTP program ("tokens", "hidden") reads token i+1 and the main hidden of position i, and its logits predict token i+2.
    """

    name: str
    family: str
    vocab: int
    hidden: int
    window: int
    main: Program
    head: Program | None
    weights: Mapping[str, WeightSpec]


@dataclass(slots=True)
class Builder:
    """Writes a Program op by op; a family file calls it in reading order."""

    inputs: tuple[str, ...] = ("tokens",)
    ops: list[Op] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    _next: int = 0

    def __post_init__(self) -> None:
        self._next = len(self.inputs)

    def op(
        self, attrs: Attrs, ins: Sequence[int], *, weights: Sequence[str] = (), slot: Slot | None = None, outs: int = 1
    ) -> tuple[int, ...]:
        """Append an operation and return the numbers of its outputs."""
        made = tuple(range(self._next, self._next + outs))
        self._next += outs
        if slot is not None:
            self.slots.append(slot)
        self.ops.append(Op(attrs=attrs, ins=tuple(ins), outs=made, weights=tuple(weights), slot=slot.name if slot else None))
        return made

    def one(self, attrs: Attrs, ins: Sequence[int], *, weights: Sequence[str] = (), slot: Slot | None = None) -> int:
        """Append an operation with a single output and return its number."""
        return self.op(attrs, ins, weights=weights, slot=slot)[0]

    def build(self, **outputs: int) -> Program:
        return Program(inputs=self.inputs, ops=tuple(self.ops), slots=tuple(self.slots), outputs=outputs)
