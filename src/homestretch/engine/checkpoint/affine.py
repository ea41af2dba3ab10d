"""Affine integers in groups, in MLX's layout: bit streams of 2 to 8 bits, dequantized to fp32 and quantized from it."""

from __future__ import annotations

import torch

from homestretch.engine.checkpoint import Affine

WIDTHS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
_ROWS_AT_ONCE = 1 << 22  # values unpacked in one go: bounds the int64 scratch to tens of MB


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """(..., n*bits/32) uint32 -> (..., n) uint8: value i is bits [i*bits, (i+1)*bits) of the little-endian stream of its row."""
    if 8 % bits == 0:  # whole values in a byte: no need for wide words
        packed = words.contiguous().view(torch.uint8)
        parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
        return torch.stack(parts, dim=-1).flatten(-2)
    rows = words.reshape(-1, words.shape[-1]).view(torch.int32)
    count = words.shape[-1] * 32 // bits
    starts = torch.arange(count) * bits
    word, shift = starts // 32, starts % 32
    spill = shift + bits > 32
    after = torch.where(spill, word + 1, word)
    out = torch.empty((rows.shape[0], count), dtype=torch.uint8)
    step = max(1, _ROWS_AT_ONCE // count)
    for first in range(0, rows.shape[0], step):
        wide = rows[first : first + step].to(torch.int64) & 0xFFFFFFFF
        value = wide[:, word] >> shift
        if bool(spill.any()):
            value = value | torch.where(spill, wide[:, after] << (32 - shift), torch.zeros((), dtype=torch.int64))
        out[first : first + step] = (value & ((1 << bits) - 1)).to(torch.uint8)
    return out.reshape(*words.shape[:-1], count)


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """(..., n) integers below 2^bits -> (..., n*bits/32) uint32; n*bits must be a multiple of 32. The inverse of `unpack`."""
    count = values.shape[-1]
    if count * bits % 32:
        raise ValueError(f"{count} values of {bits} bits do not fill whole 32-bit words")
    rows = values.reshape(-1, count).to(torch.int64)
    starts = torch.arange(count) * bits
    word, shift = starts // 32, starts % 32
    out = torch.zeros((rows.shape[0], count * bits // 32), dtype=torch.int64)
    out.index_add_(1, word, (rows << shift) & 0xFFFFFFFF)
    spill = shift + bits > 32
    if bool(spill.any()):
        out.index_add_(1, word[spill] + 1, rows[:, spill] >> (32 - shift[spill]))
    signed = torch.where(out >= 1 << 31, out - (1 << 32), out).to(torch.int32)
    return signed.view(torch.uint32).reshape(*values.shape[:-1], -1)


def dequantize(weight: Affine) -> torch.Tensor:
    """fp32 (..., out, in): scale * q + bias, rounded after the product and after the sum."""
    q = unpack(weight.words, weight.bits).to(torch.float32)
    grouped = q.reshape(*weight.scales.shape, weight.group)
    value = grouped * weight.scales.to(torch.float32)[..., None] + weight.biases.to(torch.float32)[..., None]
    return value.reshape(q.shape)


def quantize(matrix: torch.Tensor, *, bits: int = 4, group: int = 64, dtype: torch.dtype = torch.bfloat16) -> Affine:
    """(..., out, in) floats -> affine integers; in must be a multiple of the group.

    The end of a group's range that lies farther from zero is met exactly (before rounding to `dtype`), and zero is on the grid:
    hence a scale is negative where the largest value is the farther one.
    """
    if matrix.shape[-1] % group:
        raise ValueError(f"{matrix.shape[-1]} inputs are no multiple of the group of {group}")
    steps = float((1 << bits) - 1)
    grouped = matrix.to(torch.float32).reshape(*matrix.shape[:-1], -1, group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    from_low = low.abs() > high.abs()
    scale = ((high - low) / steps).clamp_min(1e-7)
    scale = torch.where(from_low, scale, -scale)
    edge = torch.where(from_low, low, high)
    zero = torch.round(edge / scale)
    scale = torch.where(zero != 0, edge / zero, scale)
    bias = torch.where(zero != 0, edge, torch.zeros(()))
    q = torch.round((grouped - bias[..., None]) / scale[..., None]).clamp(0, steps)
    return Affine(
        words=pack(q.to(torch.uint8).reshape(matrix.shape), bits),
        scales=scale.to(dtype),
        biases=bias.to(dtype),
        bits=bits,
        group=group,
    )
