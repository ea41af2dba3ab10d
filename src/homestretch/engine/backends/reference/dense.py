"""Lowerings of the operations that every transformer has: embedding, norms, products, rotary, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch.nn import functional

from homestretch.engine.backends.reference.lowering import Rows, lowers
from homestretch.engine.program import Add, Attention, Embed, Head, Linear, Op, Relu2, RmsNorm, Rotary, SiluMul, Split

A = TypeVar("A")
Values = tuple[torch.Tensor, ...]


def attrs_of(op: Op, kind: type[A]) -> A:
    """The attributes of an operation, typed."""
    if not isinstance(op.attrs, kind):
        raise TypeError(f"{op.attrs} is no {kind.__name__}")
    return op.attrs


@lowers(Embed)
def embed(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    return (rows.weights[op.weights[0]].index_select(0, ins[0]),)


@lowers(RmsNorm)
def rms_norm(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    x = ins[0]
    mean = x.square().mean(-1, keepdim=True)
    return (x * torch.rsqrt(mean + attrs_of(op, RmsNorm).eps) * rows.weights[op.weights[0]],)


@lowers(Linear)
def linear(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    bias = rows.weights[op.weights[1]] if len(op.weights) > 1 else None
    return (functional.linear(ins[0], rows.weights[op.weights[0]], bias),)


@lowers(Head)
def head(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    """Logits of the asked rows, each in a product of its own: the same arithmetic in a tile and in a window."""
    weight = rows.weights[op.weights[0]]
    made = [functional.linear(ins[0][row : row + 1].clone(), weight) for row in rows.asked]
    return (torch.cat(made) if made else weight.new_empty((0, weight.shape[0])),)


@lowers(Add)
def add(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    return (ins[0] + ins[1],)


@lowers(Split)
def split(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    return tuple(part.contiguous() for part in torch.split(ins[0], list(attrs_of(op, Split).sizes), dim=-1))


@lowers(SiluMul)
def silu_mul(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    return (functional.silu(ins[0]) * ins[1],)


@lowers(Relu2)
def relu2(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    return (functional.relu(ins[0]).square(),)


@lowers(Rotary)
def rotary(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    """Angles in fp64, so that the last position of a long window is as exact as the first."""
    a, x = attrs_of(op, Rotary), ins[0]
    half = torch.arange(0, a.dims, 2, dtype=torch.float64, device=x.device)
    turn = a.base ** (-half / a.dims)
    if op.weights:
        turn = turn / rows.weights[op.weights[0]].double()
    position = torch.arange(rows.start, rows.start + x.shape[0], dtype=torch.float64, device=x.device)
    angle = (position[:, None] * turn)[:, None, :]
    cos, sin = angle.cos().float(), angle.sin().float()
    heads = x.reshape(x.shape[0], a.heads, a.head_dim)
    turned, rest = heads[..., : a.dims], heads[..., a.dims :]
    if a.interleaved:
        left, right = turned[..., 0::2], turned[..., 1::2]
        made = torch.stack((left * cos - right * sin, left * sin + right * cos), dim=-1).flatten(-2)
    else:
        left, right = turned[..., : a.dims // 2], turned[..., a.dims // 2 :]
        made = torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)
    return (torch.cat((made, rest), dim=-1).reshape(x.shape),)


@lowers(Attention)
def attention(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    """Softmax over the whole past, padded to pages: the sizes, and so the order of sums, follow from the position alone."""
    a = attrs_of(op, Attention)
    if op.slot is None:
        raise ValueError("attention needs a KV slot")
    count, group = ins[0].shape[0], a.heads // a.kv_heads
    rows.memory.write(op.slot, rows.start, *(x.reshape(count, a.kv_heads, a.head_dim) for x in ins[1:3]))
    k, v = rows.memory.past(op.slot, rows.start + count)
    q = ins[0].reshape(count, a.kv_heads, group, a.head_dim).permute(1, 2, 0, 3).reshape(a.kv_heads, group * count, a.head_dim)
    scores = torch.bmm(q, k.transpose(1, 2)).reshape(a.kv_heads, group, count, -1) * a.scale
    key = torch.arange(scores.shape[-1], device=scores.device)
    query = torch.arange(rows.start, rows.start + count, device=scores.device)[:, None]
    seen = (key < query) & (key >= rows.first) | (key == query)
    shares = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    mixed = torch.bmm(shares.reshape(a.kv_heads, group * count, -1), v).reshape(a.kv_heads, group, count, a.head_dim)
    return (mixed.permute(2, 0, 1, 3).reshape(count, -1),)
