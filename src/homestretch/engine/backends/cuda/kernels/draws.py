"""Keyed draws on the device, without sorting the vocabulary: radix selection of the top-k and top-p thresholds, then noise.

Same order of rules as `engine/draws.py`. Masses are integers in units of 2^-40 of the largest, so that sums are exact in any order
and atomics are harmless. Candidates are (logit descending, id ascending): a set is a threshold key and how many of its ties, in
order of id, belong to it. All kernels but the `*_row` ones have the grid (rows, blocks of BLOCK ids).
"""

import triton
import triton.language as tl

UNIT = tl.constexpr(1099511627776.0)  # 2^40


@triton.jit
def sortable(x):
    """Bits of a float32 as an unsigned integer of the same order."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000).to(tl.uint32)


@triton.jit
def log32(x):
    """Natural logarithm of positive normal float32 values; the polynomial of `engine/draws.py`."""
    bits = x.to(tl.int32, bitcast=True) - 0x3F3504F3
    exponent = (bits >> 23).to(tl.float32)
    f = ((bits & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    z = f * f
    p = f * -0.0790274366736412 + 0.12622319161891937
    p = p * f - 0.12998183071613312
    p = p * f + 0.14214496314525604
    p = p * f - 0.166412815451622
    p = p * f + 0.20001044869422913
    p = p * f - 0.25000306963920593
    p = p * f + 0.3333333134651184
    y = (f * p) * z
    y = y + exponent * -2.12194440e-4
    y = y - 0.5 * z
    return (f + y) + exponent * 0.693359375


@triton.jit
def mix64(x):
    """The finaliser of SplitMix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def gumbel(key, ids):
    """Noise of token ids under a row's 64-bit key (`draws.key`)."""
    x = mix64(key ^ (ids.to(tl.uint64) * 0xD1342543DE82EF95)) >> 41
    u = (x.to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -log32(-log32(u))


@triton.jit
def peaks(logits_ptr, values_ptr, ids_ptr, V, BLOCKS, BLOCK: tl.constexpr):
    """The largest logit of each block and its lowest id; a NaN counts as infinite, which fails the row."""
    r = tl.program_id(0)
    block = tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + r.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
    x = tl.where(x == x, x, float("inf"))
    best = tl.max(x, axis=0)
    tl.store(values_ptr + r * BLOCKS + block, best)
    tl.store(ids_ptr + r * BLOCKS + block, tl.min(tl.where((x == best) & (at < V), at, 2147483647), axis=0))


@triton.jit
def best_row(values_ptr, ids_ptr, value_ptr, token_ptr, BLOCKS, BB: tl.constexpr):
    """The best of a row's blocks, ties to the lower id; 2^31 - 1 when nothing is finite; grid (rows,)."""
    r = tl.program_id(0)
    b = tl.arange(0, BB)
    x = tl.load(values_ptr + r * BLOCKS + b, mask=b < BLOCKS, other=float("-inf"))
    ids = tl.load(ids_ptr + r * BLOCKS + b, mask=b < BLOCKS, other=2147483647)
    best = tl.max(x, axis=0)
    tl.store(value_ptr + r, best)
    found = (x == best) & (x > float("-inf")) & (x < float("inf"))
    tl.store(token_ptr + r, tl.min(tl.where(found, ids, 2147483647), axis=0).to(tl.int64))


@triton.jit
def member(key, at, threshold, ties, counts_ptr, r, block, BLOCKS, BB: tl.constexpr):
    """Which elements of a block belong to the set (threshold, ties); counts (rows, BLOCKS) = elements at the threshold."""
    b = tl.arange(0, BB)
    before = tl.sum(tl.load(counts_ptr + r * BLOCKS + b, mask=b < block, other=0), axis=0)
    equal = key == threshold
    rank = before + tl.cumsum(equal.to(tl.int32), axis=0) - 1
    return (key > threshold) | (equal & (rank < ties))


@triton.jit(do_not_specialize_on_alignment=["inverse_ptr"])
def tally(
    logits_ptr, peak_ptr, inverse_ptr, threshold_ptr, ties_ptr, counts_ptr, prefix_ptr, mass_ptr, number_ptr, V, BLOCKS,
    BLOCK: tl.constexpr, BB: tl.constexpr, LEVEL: tl.constexpr, WITHIN: tl.constexpr,
):  # fmt: skip
    """Mass and number of elements in each of 2,048 bins of the next key bits, among those that share the prefix found so far.

    LEVEL 0 reads key bits 31..21, 1 bits 20..10, 2 bits 9..0. WITHIN: only members of the set (threshold, ties).
    """
    r = tl.program_id(0)
    block = tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + r.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
    key = sortable(x)
    counted = at < V
    if WITHIN:
        counted = counted & member(
            key, at, tl.load(threshold_ptr + r).to(tl.uint32, bitcast=True), tl.load(ties_ptr + r), counts_ptr, r, block, BLOCKS, BB
        )
    prefix = tl.load(prefix_ptr + r).to(tl.uint32, bitcast=True)
    if LEVEL == 0:
        bin = (key >> 21).to(tl.int32)
    if LEVEL == 1:
        bin = ((key >> 10) & 2047).to(tl.int32)
        counted = counted & ((key >> 21) == (prefix >> 21))
    if LEVEL == 2:
        bin = (key & 1023).to(tl.int32)
        counted = counted & ((key >> 10) == (prefix >> 10))
    inverse = tl.load(inverse_ptr + r)
    weight = (tl.exp(x * inverse - tl.load(peak_ptr + r) * inverse).to(tl.float64) * UNIT).to(tl.int64)
    counted = counted & (x > float("-inf"))
    tl.atomic_add(mass_ptr + r * 2048 + bin, weight, mask=counted)
    tl.atomic_add(number_ptr + r * 2048 + bin, tl.full((BLOCK,), 1, tl.int32), mask=counted)


@triton.jit(do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr"])
def narrow_row(
    mass_ptr, number_ptr, top_k_ptr, top_p_ptr, wanted_ptr, above_ptr, prefix_ptr, threshold_ptr, ties_ptr,
    LEVEL: tl.constexpr, BY_MASS: tl.constexpr,
):  # fmt: skip
    """Choose the bin in which the wanted mass (or number) is reached, counted from the largest key down; grid (rows,).

    LEVEL 0 sets what is wanted; level 2 ends with the threshold key and the number of its ties that belong.
    """
    r = tl.program_id(0)
    b = tl.arange(0, 2048)
    mass = tl.load(mass_ptr + r * 2048 + b)
    number = tl.load(number_ptr + r * 2048 + b)
    amount = mass
    if BY_MASS == 0:
        amount = number.to(tl.int64)
    if LEVEL == 0:
        whole = tl.sum(amount, axis=0)
        above = whole * 0
        if BY_MASS:
            p = tl.load(top_p_ptr + r)
            wanted = tl.where(p < 1.0, p * whole.to(tl.float64), whole.to(tl.float64))
        else:
            k = tl.load(top_k_ptr + r).to(tl.int64)
            wanted = tl.where((k > 0) & (k < whole), k, whole).to(tl.float64)
        tl.store(wanted_ptr + r, wanted)
        prefix = whole.to(tl.int32) * 0
    else:
        wanted = tl.load(wanted_ptr + r)
        above = tl.load(above_ptr + r)
        prefix = tl.load(prefix_ptr + r)
    reached = above + tl.cumsum(amount, axis=0, reverse=True)
    bin = tl.max(tl.where((reached.to(tl.float64) >= wanted) & (number > 0), b, -1), axis=0)
    bin = tl.where(bin < 0, tl.min(tl.where(number > 0, b, 2047), axis=0), bin)
    above += tl.sum(tl.where(b > bin, amount, 0), axis=0)
    if LEVEL == 0:
        prefix = bin << 21
    if LEVEL == 1:
        prefix = prefix | (bin << 10)
    if LEVEL == 2:
        prefix = prefix | bin
        count = tl.sum(tl.where(b == bin, number, 0), axis=0)
        each = tl.sum(tl.where(b == bin, amount, 0), axis=0) // tl.maximum(count, 1)
        missing = wanted - above.to(tl.float64)
        ties = tl.ceil(missing / tl.maximum(each, 1).to(tl.float64)).to(tl.int32)
        tl.store(threshold_ptr + r, prefix)
        tl.store(ties_ptr + r, tl.minimum(tl.maximum(ties, 1), count))
    tl.store(above_ptr + r, above)
    tl.store(prefix_ptr + r, prefix)


@triton.jit
def count_ties(logits_ptr, threshold_ptr, counts_ptr, V, BLOCKS, BLOCK: tl.constexpr):
    """Elements of each block at the row's threshold key."""
    r = tl.program_id(0)
    block = tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + r.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
    equal = (sortable(x) == tl.load(threshold_ptr + r).to(tl.uint32, bitcast=True)) & (at < V)
    tl.store(counts_ptr + r * BLOCKS + block, tl.sum(equal.to(tl.int32), axis=0))


@triton.jit(do_not_specialize_on_alignment=["inverse_ptr", "min_p_ptr", "keys_ptr"])
def noisy_peaks(
    logits_ptr, peak_ptr, inverse_ptr, min_p_ptr, keys_ptr, threshold_ptr, ties_ptr, counts_ptr, values_ptr, ids_ptr, V, BLOCKS,
    BLOCK: tl.constexpr, BB: tl.constexpr, WITHIN: tl.constexpr,
):  # fmt: skip
    """The largest noisy logit of each block among the candidates; rows with inverse 0 are greedy and see no noise."""
    r = tl.program_id(0)
    block = tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + r.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
    inverse = tl.load(inverse_ptr + r)
    kept = (at < V) & (x > float("-inf"))
    if WITHIN:
        kept = kept & member(
            sortable(x),
            at,
            tl.load(threshold_ptr + r).to(tl.uint32, bitcast=True),
            tl.load(ties_ptr + r),
            counts_ptr,
            r,
            block,
            BLOCKS,
            BB,
        )
    peak = tl.load(peak_ptr + r)
    weight = tl.exp(x * inverse - peak * inverse)
    kept = kept & (weight >= tl.load(min_p_ptr + r))
    noise = gumbel(tl.load(keys_ptr + r).to(tl.uint64, bitcast=True), at)
    noisy = tl.where(inverse > 0.0, x * inverse + noise, x)
    cold = tl.where(at < V, inverse, 1.0) == 0.0
    kept = (kept | cold) & (tl.where(at < V, peak, 0.0) < float("inf"))
    noisy = tl.where(kept, noisy, float("-inf"))
    best = tl.max(noisy, axis=0)
    tl.store(values_ptr + r * BLOCKS + block, best)
    tl.store(ids_ptr + r * BLOCKS + block, tl.min(tl.where((noisy == best) & kept, at, 2147483647), axis=0))
