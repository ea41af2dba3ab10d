"""Attention over paged keys and values: rows of a window in fixed 512-key chunks merged in order, tiles of a prompt from key 0.

A page holds PAGE tokens as [2][KV][PAGE][D] in the compute type; table[slot, i] is the page of positions i*PAGE and after.
Chunks and key blocks stand at absolute positions, so a row adds up its past in one order, whoever shares the call.
"""

import triton
import triton.language as tl


@triton.jit
def store_kv(
    k_ptr, v_ptr, pool_ptr, table_ptr, slots_ptr, positions_ptr, k_stride, v_stride, table_stride,
    KV: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Write row r's keys and values to its stream's page; grid (rows, KV). Rows of slot < 0 are padding."""
    r = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slots_ptr + r)
    if slot < 0:
        return
    position = tl.load(positions_ptr + r)
    page = tl.load(table_ptr + slot * table_stride + position // PAGE).to(tl.int64)
    d = tl.arange(0, BD)
    to = pool_ptr + page * (2 * KV * PAGE * D) + (head * PAGE + position % PAGE) * D + d
    k = tl.load(k_ptr + r * k_stride + head * D + d, mask=d < D)
    v = tl.load(v_ptr + r * v_stride + head * D + d, mask=d < D)
    tl.store(to, k.to(pool_ptr.dtype.element_ty), mask=d < D)
    tl.store(to + KV * PAGE * D, v.to(pool_ptr.dtype.element_ty), mask=d < D)


@triton.jit(do_not_specialize=["CHUNKS"], do_not_specialize_on_alignment=["slots_ptr", "positions_ptr"])
def attend_rows(
    q_ptr, pool_ptr, table_ptr, slots_ptr, positions_ptr, firsts_ptr, part_ptr, stats_ptr, scale, q_stride, table_stride, CHUNKS,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr,
    PAGE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One chunk of keys for the query heads of one KV head; grid (rows, KV, CHUNKS).

    Keys below firsts[slot] are not seen. part (rows, KV, CHUNKS, BH, D): unnormalised sums; stats (rows, KV, CHUNKS, 2, BH): running maximum and mass.
    """
    r = tl.program_id(0)
    head = tl.program_id(1)
    chunk = tl.program_id(2)
    PER: tl.constexpr = HEADS // KV
    slot = tl.load(slots_ptr + r)
    position = tl.load(positions_ptr + r)
    if slot < 0:
        return
    low = tl.load(firsts_ptr + slot)
    if (chunk * CHUNK > position) | (chunk * CHUNK + CHUNK <= low):
        return
    h = tl.arange(0, BH)
    d = tl.arange(0, BD)
    j = tl.arange(0, BLOCK)
    q = tl.load(
        q_ptr + r * q_stride + (head * PER + h)[:, None] * D + d[None, :], mask=(h < PER)[:, None] & (d < D)[None, :], other=0.0
    )
    q = (q * scale).to(pool_ptr.dtype.element_ty)
    peak = tl.full((BH,), float("-inf"), dtype=tl.float32)
    mass = tl.zeros((BH,), dtype=tl.float32)
    acc = tl.zeros((BH, BD), dtype=tl.float32)
    last = tl.minimum(position, chunk * CHUNK + CHUNK - 1)
    begin = tl.maximum(chunk * CHUNK, low // BLOCK * BLOCK)
    for start in range(begin, last + 1, BLOCK):
        page = tl.load(table_ptr + slot * table_stride + start // PAGE).to(tl.int64)
        keys = pool_ptr + page * (2 * KV * PAGE * D) + (head * PAGE + start % PAGE + j)[:, None] * D + d[None, :]
        seen = (start + j <= position) & (start + j >= low)
        k = tl.load(keys, mask=seen[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(keys + KV * PAGE * D, mask=seen[:, None] & (d < D)[None, :], other=0.0)
        score = tl.where(seen[None, :], tl.dot(q, tl.trans(k), input_precision="ieee"), float("-inf"))
        new = tl.maximum(peak, tl.max(score, axis=1))
        ground = tl.where(new == float("-inf"), 0.0, new)
        shrink = tl.exp(peak - ground)
        weight = tl.exp(score - ground[:, None])
        mass = mass * shrink + tl.sum(weight, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        peak = new
    at = (r * KV + head) * CHUNKS + chunk
    tl.store(part_ptr + at.to(tl.int64) * (BH * D) + h[:, None] * D + d[None, :], acc, mask=(d < D)[None, :] & (h >= 0)[:, None])
    tl.store(stats_ptr + at * (2 * BH) + h, peak)
    tl.store(stats_ptr + at * (2 * BH) + BH + h, mass)


@triton.jit(do_not_specialize=["CHUNKS"], do_not_specialize_on_alignment=["slots_ptr", "positions_ptr"])
def merge_rows(
    part_ptr, stats_ptr, slots_ptr, positions_ptr, firsts_ptr, y_ptr, CHUNKS,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Merge a row's chunks in order of position; grid (rows, KV). y (rows, HEADS*D) float32."""
    r = tl.program_id(0)
    head = tl.program_id(1)
    PER: tl.constexpr = HEADS // KV
    h = tl.arange(0, BH)
    d = tl.arange(0, BD)
    peak = tl.full((BH,), float("-inf"), dtype=tl.float32)
    mass = tl.zeros((BH,), dtype=tl.float32)
    acc = tl.zeros((BH, BD), dtype=tl.float32)
    slot = tl.load(slots_ptr + r)
    used = tl.load(positions_ptr + r) // CHUNK + 1
    if slot < 0:
        used = 0
    begin = tl.load(firsts_ptr + slot, mask=slot >= 0, other=0) // CHUNK
    for chunk in range(begin, used):
        at = (r * KV + head) * CHUNKS + chunk
        other = tl.load(stats_ptr + at * (2 * BH) + h)
        part = tl.load(
            part_ptr + at.to(tl.int64) * (BH * D) + h[:, None] * D + d[None, :],
            mask=(d < D)[None, :] & (h >= 0)[:, None],
            other=0.0,
        )
        new = tl.maximum(peak, other)
        ground = tl.where(new == float("-inf"), 0.0, new)
        mine = tl.exp(peak - ground)
        theirs = tl.exp(other - ground)
        acc = acc * mine[:, None] + part * theirs[:, None]
        mass = mass * mine + tl.load(stats_ptr + at * (2 * BH) + BH + h) * theirs
        peak = new
    y = acc / tl.where(mass > 0, mass, 1.0)[:, None]
    tl.store(y_ptr + r * (HEADS * D) + (head * PER + h)[:, None] * D + d[None, :], y, mask=(h < PER)[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=["start", "rows", "low"], do_not_specialize_on_alignment=["table_ptr"])
def attend_tiles(
    q_ptr, pool_ptr, table_ptr, y_ptr, scale, start, rows, low, q_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    PAGE: tl.constexpr, BQ: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A prompt piece of one stream: query rows start .. start+rows over keys from `low` up to their own; grid (blocks of BQ rows, HEADS)."""
    first = tl.program_id(0) * BQ
    head = tl.program_id(1)
    kv = head // (HEADS // KV)
    i = first + tl.arange(0, BQ)
    d = tl.arange(0, BD)
    j = tl.arange(0, BLOCK)
    live = i < rows
    q = tl.load(q_ptr + i[:, None] * q_stride + head * D + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
    q = (q * scale).to(pool_ptr.dtype.element_ty)
    peak = tl.full((BQ,), float("-inf"), dtype=tl.float32)
    mass = tl.zeros((BQ,), dtype=tl.float32)
    acc = tl.zeros((BQ, BD), dtype=tl.float32)
    last = start + tl.minimum(first + BQ, rows) - 1
    for at in range(low // BLOCK * BLOCK, last + 1, BLOCK):
        page = tl.load(table_ptr + at // PAGE).to(tl.int64)
        keys = pool_ptr + page * (2 * KV * PAGE * D) + (kv * PAGE + at % PAGE + j)[:, None] * D + d[None, :]
        held = (at + j <= last) & (at + j >= low)
        k = tl.load(keys, mask=held[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(keys + KV * PAGE * D, mask=held[:, None] & (d < D)[None, :], other=0.0)
        seen = ((at + j)[None, :] <= (start + i)[:, None]) & held[None, :]
        score = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee"), float("-inf"))
        new = tl.maximum(peak, tl.max(score, axis=1))
        ground = tl.where(new == float("-inf"), 0.0, new)
        shrink = tl.exp(peak - ground)
        weight = tl.exp(score - ground[:, None])
        mass = mass * shrink + tl.sum(weight, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        peak = new
    y = acc / tl.where(mass > 0, mass, 1.0)[:, None]
    tl.store(y_ptr + i[:, None] * (HEADS * D) + head * D + d[None, :], y, mask=live[:, None] & (d < D)[None, :])
