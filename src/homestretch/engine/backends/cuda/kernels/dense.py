"""Products with dense matrices (router gates, unquantized layers): one fixed split over K, 16 rows at a time, float32 sums."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def dense_rows(
    x_ptr, w_ptr, bias_ptr, y_ptr, rows, N, K, x_stride, y_stride,
    BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """y[r, n] = sum_k x[r, k] * w[n, k] (+ bias[n]); w (N, K); grid (blocks of BN, blocks of 16 rows). Products in w's type."""
    out = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * 16 + tl.arange(0, 16)
    live = m < rows
    acc = tl.zeros((16, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + m[:, None] * x_stride + k[None, :], mask=live[:, None] & (k < K)[None, :], other=0.0)
        w = tl.load(w_ptr + out[:, None].to(tl.int64) * K + k[None, :], mask=(out < N)[:, None] & (k < K)[None, :], other=0.0)
        acc += tl.dot(x.to(w.dtype), tl.trans(w), input_precision="ieee")
    if BIAS:
        acc += tl.load(bias_ptr + out, mask=out < N, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + m[:, None] * y_stride + out[None, :], acc, mask=live[:, None] & (out < N)[None, :])


@triton.jit
def dense_embed(tokens_ptr, table_ptr, y_ptr, K, BK: tl.constexpr):
    """y[r] = table[tokens[r]], float32; grid (rows, blocks of BK)."""
    r = tl.program_id(0)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    token = tl.load(tokens_ptr + r).to(tl.int64)
    tl.store(y_ptr + r * K + k, tl.load(table_ptr + token * K + k, mask=k < K, other=0.0).to(tl.float32), mask=k < K)
