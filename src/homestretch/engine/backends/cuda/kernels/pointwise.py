"""Norms, residuals, activations and rotations of single rows, each with the activation sums that affine biases need.

"Prepared" rows are a float32 value cast to the compute type, beside the float32 sums of each group of GROUP elements.
"""

import triton
import triton.language as tl


@triton.jit
def prepare_groups(value, at, valid, x_ptr, sums_ptr, r, K: tl.constexpr, GROUP: tl.constexpr, BK: tl.constexpr):
    """Store `value` (BK,), padded with zeros past K, as the prepared row r: the cast, and its groups' sums of the cast."""
    cast = value.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + r * K + at, cast, mask=valid)
    sums = tl.sum(tl.reshape(tl.where(valid, cast.to(tl.float32), 0.0), (BK // GROUP, GROUP)), axis=1)
    g = tl.arange(0, BK // GROUP)
    tl.store(sums_ptr + r * (K // GROUP) + g, sums, mask=g < K // GROUP)


@triton.jit
def add_norm(
    a_ptr, b_ptr, c_ptr, weight_ptr, sum_ptr, y_ptr, x_ptr, sums_ptr, eps,
    K: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ADD: tl.constexpr, PREPARE: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """s = a (+ b, or + (b + c): ADD 1, 2); y = s / sqrt(mean(s^2) + eps) * weight; grid (rows,). Stores s (ADD), y (PLAIN) and prepared y (PREPARE)."""
    r = tl.program_id(0)
    at = tl.arange(0, BK)
    valid = at < K
    s = tl.load(a_ptr + r * K + at, mask=valid, other=0.0)
    if ADD:
        added = tl.load(b_ptr + r * K + at, mask=valid, other=0.0)
        if ADD == 2:
            added += tl.load(c_ptr + r * K + at, mask=valid, other=0.0)
        s += added
        tl.store(sum_ptr + r * K + at, s, mask=valid)
    mean = tl.sum(s * s, axis=0) / K
    weight = tl.load(weight_ptr + at, mask=valid, other=0.0).to(tl.float32)
    y = s * (1.0 / tl.sqrt(mean + eps)) * weight
    if PLAIN:
        tl.store(y_ptr + r * K + at, y, mask=valid)
    if PREPARE:
        prepare_groups(y, at, valid, x_ptr, sums_ptr, r, K, GROUP, BK)


@triton.jit
def add(a_ptr, b_ptr, y_ptr, K, BK: tl.constexpr):
    """y = a + b; grid (rows, blocks of BK)."""
    at = tl.program_id(1) * BK + tl.arange(0, BK)
    where = tl.program_id(0) * K + at
    tl.store(y_ptr + where, tl.load(a_ptr + where, mask=at < K) + tl.load(b_ptr + where, mask=at < K), mask=at < K)


@triton.jit
def activate(
    a_ptr, b_ptr, y_ptr, x_ptr, sums_ptr, a_stride, b_stride,
    K: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, PREPARE: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """KIND 0: a; 1: silu(a) * b; 2: max(a, 0)^2; grid (rows,). Stores y (PLAIN) and prepared y (PREPARE)."""
    r = tl.program_id(0)
    at = tl.arange(0, BK)
    valid = at < K
    y = tl.load(a_ptr + r * a_stride + at, mask=valid, other=0.0)
    if KIND == 1:
        y = y / (1.0 + tl.exp(-y)) * tl.load(b_ptr + r * b_stride + at, mask=valid, other=0.0)
    if KIND == 2:
        y = tl.maximum(y, 0.0)
        y = y * y
    if PLAIN:
        tl.store(y_ptr + r * K + at, y, mask=valid)
    if PREPARE:
        prepare_groups(y, at, valid, x_ptr, sums_ptr, r, K, GROUP, BK)


@triton.jit
def gated_norm(
    a_ptr, z_ptr, weight_ptr, y_ptr, x_ptr, sums_ptr, eps, a_stride, z_stride,
    K: tl.constexpr, PARTS: tl.constexpr, BP: tl.constexpr, GROUP: tl.constexpr, PREPARE: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """v = a * silu(z); y = v / sqrt(mean over its part of v^2 + eps) * weight; grid (rows, PARTS). A part is K // PARTS wide."""
    r = tl.program_id(0)
    part = tl.program_id(1)
    WIDTH: tl.constexpr = K // PARTS
    at = tl.arange(0, BP)
    valid = at < WIDTH
    where = part * WIDTH + at
    z = tl.load(z_ptr + r * z_stride + where, mask=valid, other=0.0)
    v = tl.load(a_ptr + r * a_stride + where, mask=valid, other=0.0) * (z / (1.0 + tl.exp(-z)))
    mean = tl.sum(v * v, axis=0) / WIDTH
    y = v * (1.0 / tl.sqrt(mean + eps)) * tl.load(weight_ptr + where, mask=valid, other=0.0).to(tl.float32)
    if PLAIN:
        tl.store(y_ptr + r * K + where, y, mask=valid)
    if PREPARE:
        prepare_groups(
            y, at, valid, x_ptr + part * WIDTH + r * (K - WIDTH), sums_ptr + (part * WIDTH + r * (K - WIDTH)) // GROUP, r,
            WIDTH, GROUP, BP,
        )  # fmt: skip


@triton.jit
def rotary(
    x_ptr, positions_ptr, inverse_ptr, y_ptr, x_stride, HEADS,
    D: tl.constexpr, BD: tl.constexpr, DIMS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Rotate the first DIMS elements of every head by position * inverse[i]; grid (rows, HEADS). BD = D rounded up to a power of 2."""
    r = tl.program_id(0)
    h = tl.program_id(1)
    d = tl.arange(0, BD)
    inside = d < DIMS
    HALF: tl.constexpr = DIMS // 2
    if INTERLEAVED:
        pair = d // 2
        other = tl.where(d % 2 == 0, d + 1, d - 1)
        sign = tl.where(d % 2 == 0, -1.0, 1.0)
    else:
        pair = d % HALF
        other = tl.where(d < HALF, d + HALF, d - HALF)
        sign = tl.where(d < HALF, -1.0, 1.0)
    row = x_ptr + r * x_stride + h * D
    x = tl.load(row + d, mask=d < D, other=0.0)
    turned = tl.load(row + other, mask=inside, other=0.0)
    angle = tl.load(positions_ptr + r).to(tl.float32) * tl.load(inverse_ptr + pair, mask=inside, other=0.0)
    y = tl.where(inside, x * tl.cos(angle) + sign * turned * tl.sin(angle), x)
    tl.store(y_ptr + (r * HEADS + h) * D + d, y, mask=d < D)


@triton.jit
def combine(y_ptr, pairs_ptr, shares_ptr, K, BK: tl.constexpr, TOP: tl.constexpr):
    """y[r] = sum over t of shares[r, t] * pairs[r*TOP + t], in the order of the ids; grid (rows, blocks of BK)."""
    r = tl.program_id(0)
    at = tl.program_id(1) * BK + tl.arange(0, BK)
    valid = at < K
    total = tl.zeros((BK,), dtype=tl.float32)
    for t in range(TOP):
        share = tl.load(shares_ptr + r * TOP + t)
        total += share * tl.load(pairs_ptr + (r * TOP + t).to(tl.int64) * K + at, mask=valid, other=0.0)
    tl.store(y_ptr + r * K + at, total, mask=valid)
