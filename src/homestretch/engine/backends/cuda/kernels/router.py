"""Which experts a row goes to: scores in float32, selection by biased scores, shares from the unbiased ones, ids in ascending order."""

import triton
import triton.language as tl


@triton.jit
def scores(x_ptr, gate_ptr, logits_ptr, x_stride, E, K: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr):
    """logits[r, e] = sum_k x[r, k] * gate[e, k], all float32, for the few rows of windows; grid (rows, blocks of BE experts)."""
    r = tl.program_id(0)
    e = tl.program_id(1) * BE + tl.arange(0, BE)
    total = tl.zeros((BE, BK), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + r * x_stride + k, mask=k < K, other=0.0)
        total += x[None, :] * tl.load(gate_ptr + e[:, None] * K + k[None, :], mask=(e < E)[:, None] & (k < K)[None, :], other=0.0)
    tl.store(logits_ptr + r * E + e, tl.sum(total, axis=1), mask=e < E)


@triton.jit
def select(
    logits_ptr, bias_ptr, ids_ptr, shares_ptr, scale,
    E: tl.constexpr, BE: tl.constexpr, TOP: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, NORMALISE: tl.constexpr,
):  # fmt: skip
    """Router of `program.Router` for one row a program: logits (rows, E) -> ids int32 and shares float32 (rows, TOP)."""
    r = tl.program_id(0)
    e = tl.arange(0, BE)
    valid = e < E
    score = 1.0 / (1.0 + tl.exp(-tl.load(logits_ptr + r * E + e, mask=valid, other=0.0)))
    biased = tl.where(valid, score + tl.load(bias_ptr + e, mask=valid, other=0.0), float("-inf"))
    if TOP_GROUPS < GROUPS:
        SIZE: tl.constexpr = E // GROUPS
        group = e // SIZE
        worth = tl.full((BE,), float("-inf"), dtype=tl.float32)
        for g in range(GROUPS):
            inside = (group == g) & valid
            members = tl.where(inside, biased, float("-inf"))
            first = tl.max(members, axis=0)
            at = tl.min(tl.where(inside & (members == first), e, BE), axis=0)
            second = tl.max(tl.where(e == at, float("-inf"), members), axis=0)
            worth = tl.where(inside, first + second, worth)
        kept = e < 0
        for _ in range(TOP_GROUPS):
            best = tl.max(tl.where(kept, float("-inf"), worth), axis=0)
            at = tl.min(tl.where((worth == best) & (kept == 0) & valid, group, GROUPS), axis=0)
            kept = kept | (group == at)
        biased = tl.where(kept, biased, float("-inf"))
    chosen = e < 0
    for _ in range(TOP):
        left = tl.where(chosen, float("-inf"), biased)
        best = tl.max(left, axis=0)
        at = tl.min(tl.where((left == best) & (chosen == 0) & valid, e, BE), axis=0)
        chosen = chosen | (e == at)
    total = tl.sum(tl.where(chosen, score, 0.0), axis=0)
    share = score
    if NORMALISE:
        share = share / (total + 1e-20)
    rank = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(ids_ptr + r * TOP + rank, e, mask=chosen)
    tl.store(shares_ptr + r * TOP + rank, share * scale, mask=chosen)
