"""Products with packed affine matrices: rows of a window, (row, expert) pairs, tiles of a prompt, and table look-ups.

Packed layout, made once at load (`weights.py`): for each block of BN outputs and each group of GROUP inputs, BN runs of
WORDS = GROUP*BITS/32 words, then scales and biases as [block][group][BN]. One (block, group) is one contiguous read.

A row's sum runs over groups in order: acc += scale * (x . q) + bias * sum(x); q <= 255 is exact in bf16. The row block is always
16 rows high and counts are not specialised, so that a row's instructions do not depend on how many rows share the call.

A window's programs each walk all of K, so what they wait for is memory: STAGES turns of words, scales and biases are on their way at
once (`tl.range` says so for loads that feed no product too), which changes no bit.
"""

import triton
import triton.language as tl


@triton.jit
def unpack(words, runs, BN: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr):
    """Integers (BN, GROUP) of one group of BN outputs; runs (BN,) = where each output's words start, counted from `words`."""
    W: tl.constexpr = GROUP * BITS // 32
    if BITS == 2 or BITS == 4 or BITS == 8:
        PER: tl.constexpr = 32 // BITS
        packed = tl.load(words + runs[:, None] + tl.arange(0, W)[None, :]).to(tl.uint32, bitcast=True)
        shifts = (tl.arange(0, PER) * BITS).to(tl.uint32)
        q = (packed[:, :, None] >> shifts[None, None, :]) & ((1 << BITS) - 1)
        return tl.reshape(q, (BN, GROUP)).to(tl.int32)
    else:
        first = tl.arange(0, GROUP) * BITS
        word = first // 32
        shift = (first % 32).to(tl.uint64)
        low = tl.load(words + runs[:, None] + word[None, :]).to(tl.uint32, bitcast=True).to(tl.uint64)
        spills = (first % 32) + BITS > 32
        high = tl.load(words + runs[:, None] + word[None, :] + 1, mask=spills[None, :] & (runs[:, None] >= 0), other=0)
        both = low | (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32)
        return ((both >> shift[None, :]) & ((1 << BITS) - 1)).to(tl.int32)


@triton.jit(do_not_specialize=["rows"])
def affine_rows(
    x_ptr, sums_ptr, words_ptr, scales_ptr, biases_ptr, y_ptr, rows, N, x_stride, y_stride,
    K: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, STAGES: tl.constexpr = 3,
):  # fmt: skip
    """y[r, n] = sum_k x[r, k] * W[n, k]; grid (blocks of BN, blocks of 16 rows). x is in the compute type, y float32."""
    G: tl.constexpr = K // GROUP
    W: tl.constexpr = GROUP * BITS // 32
    block = tl.program_id(0)
    m = tl.program_id(1) * 16 + tl.arange(0, 16)
    n = tl.arange(0, BN)
    k = tl.arange(0, GROUP)
    live = m < rows
    acc = tl.zeros((16, BN), dtype=tl.float32)
    words = words_ptr + block.to(tl.int64) * (G * BN * W)
    scales = scales_ptr + block * (G * BN)
    biases = biases_ptr + block * (G * BN)
    for g in tl.range(0, G, num_stages=STAGES):
        q = unpack(words + g * (BN * W), n * W, BN, GROUP, BITS)
        x = tl.load(x_ptr + m[:, None] * x_stride + g * GROUP + k[None, :], mask=live[:, None], other=0.0)
        total = tl.load(sums_ptr + m * G + g, mask=live, other=0.0)
        scale = tl.load(scales + g * BN + n).to(tl.float32)
        bias = tl.load(biases + g * BN + n).to(tl.float32)
        dot = tl.dot(x, tl.trans(q.to(x.dtype)), input_precision="ieee")
        acc += dot * scale[None, :] + total[:, None] * bias[None, :]
    out = block * BN + n
    tl.store(y_ptr + m[:, None] * y_stride + out[None, :], acc, mask=live[:, None] & (out < N)[None, :])


@triton.jit(do_not_specialize=["pairs"])
def affine_pairs(
    x_ptr, sums_ptr, ids_ptr, words_ptr, scales_ptr, biases_ptr, y_ptr, pairs, N, x_stride, y_stride, SHARE,
    K: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr = 3,
):  # fmt: skip
    """y[p, n] = sum_k x[p // SHARE, k] * W[ids[p]][n, k]; grid (BLOCKS, pairs). One pair a program, so pairs never meet."""
    G: tl.constexpr = K // GROUP
    W: tl.constexpr = GROUP * BITS // 32
    block = tl.program_id(0)
    pair = tl.program_id(1)
    expert = tl.load(ids_ptr + pair).to(tl.int64)
    row = pair // SHARE
    n = tl.arange(0, BN)
    k = tl.arange(0, GROUP)
    top = tl.arange(0, 16) == 0
    acc = tl.zeros((16, BN), dtype=tl.float32)
    at = expert * BLOCKS + block
    words = words_ptr + at * (G * BN * W)
    scales = scales_ptr + at * (G * BN)
    biases = biases_ptr + at * (G * BN)
    for g in tl.range(0, G, num_stages=STAGES):
        q = unpack(words + g * (BN * W), n * W, BN, GROUP, BITS)
        x = tl.load(x_ptr + row * x_stride + g * GROUP + k)
        total = tl.load(sums_ptr + row * G + g)
        scale = tl.load(scales + g * BN + n).to(tl.float32)
        bias = tl.load(biases + g * BN + n).to(tl.float32)
        padded = tl.where(top[:, None], x[None, :], 0.0).to(x.dtype)
        dot = tl.dot(padded, tl.trans(q.to(x.dtype)), input_precision="ieee")
        acc += dot * scale[None, :] + tl.where(top, total, 0.0)[:, None] * bias[None, :]
    out = block * BN + n
    tl.store(y_ptr + pair * y_stride + out, tl.sum(tl.where(top[:, None], acc, 0.0), axis=0), mask=out < N)


@triton.jit(do_not_specialize=["rows"])
def affine_tiles(
    x_ptr, words_ptr, scales_ptr, biases_ptr, y_ptr, rows, N, x_stride, y_stride,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The same product for a prompt: weights dequantized to the compute type in registers; grid (row blocks, blocks of BT outputs)."""
    G: tl.constexpr = K // GROUP
    W: tl.constexpr = GROUP * BITS // 32
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    block = tl.program_id(1)
    n = tl.arange(0, BT)
    runs = (n // BN) * (G * BN) + n % BN
    k = tl.arange(0, GROUP)
    live = m < rows
    acc = tl.zeros((BM, BT), dtype=tl.float32)
    words = words_ptr + block.to(tl.int64) * (G * BT * W)
    scales = scales_ptr + block * (G * BT)
    biases = biases_ptr + block * (G * BT)
    for g in range(G):
        q = unpack(words + g * (BN * W), runs * W, BT, GROUP, BITS).to(tl.float32)
        scale = tl.load(scales + g * BN + runs).to(tl.float32)
        bias = tl.load(biases + g * BN + runs).to(tl.float32)
        x = tl.load(x_ptr + m[:, None] * x_stride + g * GROUP + k[None, :], mask=live[:, None], other=0.0)
        w = (q * scale[:, None] + bias[:, None]).to(x.dtype)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    out = block * BT + n
    tl.store(y_ptr + m[:, None] * y_stride + out[None, :], acc, mask=live[:, None] & (out < N)[None, :])


@triton.jit(do_not_specialize_on_alignment=["block_expert_ptr", "block_start_ptr", "block_count_ptr"])
def affine_grouped(
    x_ptr, order_ptr, block_expert_ptr, block_start_ptr, block_count_ptr, words_ptr, scales_ptr, biases_ptr, y_ptr,
    N, x_stride, y_stride, SHARE,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Experts of a prompt: pairs sorted by expert, cut into blocks of at most BM pairs of one expert; grid (pair blocks, blocks of BT outputs).

    order[i] = pair number; x row = pair // SHARE; y row = pair. Blocks with count 0 do nothing.
    """
    G: tl.constexpr = K // GROUP
    W: tl.constexpr = GROUP * BITS // 32
    at = tl.program_id(0)
    block = tl.program_id(1)
    count = tl.load(block_count_ptr + at)
    if count == 0:
        return
    start = tl.load(block_start_ptr + at)
    expert = tl.load(block_expert_ptr + at).to(tl.int64)
    m = tl.arange(0, BM)
    live = m < count
    pair = tl.load(order_ptr + start + m, mask=live, other=0)
    row = pair // SHARE
    n = tl.arange(0, BT)
    runs = (n // BN) * (G * BN) + n % BN
    k = tl.arange(0, GROUP)
    acc = tl.zeros((BM, BT), dtype=tl.float32)
    place = expert * BLOCKS + block * (BT // BN)
    words = words_ptr + place * (G * BN * W)
    scales = scales_ptr + place * (G * BN)
    biases = biases_ptr + place * (G * BN)
    for g in range(G):
        q = unpack(words + g * (BN * W), runs * W, BT, GROUP, BITS).to(tl.float32)
        scale = tl.load(scales + g * BN + runs).to(tl.float32)
        bias = tl.load(biases + g * BN + runs).to(tl.float32)
        x = tl.load(x_ptr + row[:, None] * x_stride + g * GROUP + k[None, :], mask=live[:, None], other=0.0)
        w = (q * scale[:, None] + bias[:, None]).to(x.dtype)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    out = block * BT + n
    tl.store(y_ptr + pair[:, None] * y_stride + out[None, :], acc, mask=live[:, None] & (out < N)[None, :])


@triton.jit
def affine_embed(
    tokens_ptr, words_ptr, scales_ptr, biases_ptr, y_ptr,
    K: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """y[r] = row tokens[r] of a packed table, float32; grid (rows, K // GROUP)."""
    G: tl.constexpr = K // GROUP
    W: tl.constexpr = GROUP * BITS // 32
    r = tl.program_id(0)
    g = tl.program_id(1)
    token = tl.load(tokens_ptr + r)
    block = (token // BN).to(tl.int64)
    inside = token % BN
    first = tl.arange(0, GROUP) * BITS
    word = first // 32
    shift = (first % 32).to(tl.uint64)
    words = words_ptr + (block * G + g) * (BN * W) + inside * W
    low = tl.load(words + word).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(words + word + 1, mask=(first % 32) + BITS > 32, other=0).to(tl.uint32, bitcast=True).to(tl.uint64)
    q = (((low | (high << 32)) >> shift) & ((1 << BITS) - 1)).to(tl.float32)
    scale = tl.load(scales_ptr + (block * G + g) * BN + inside).to(tl.float32)
    bias = tl.load(biases_ptr + (block * G + g) * BN + inside).to(tl.float32)
    tl.store(y_ptr + r * K + g * GROUP + tl.arange(0, GROUP), q * scale + bias)
