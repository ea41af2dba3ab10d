"""Keyed draws, reference form: the noise of a token depends on (seed, position, id) alone, so a draft can be checked by drawing.

Order of a draw (Rule 5 of docs/engine.md): fp32 logits plus bias; mask; temperature 0 is argmax (ties to the lower id); else
candidates in order (logit descending, id ascending) -> divide by temperature -> top-k -> softmax -> top-p (the smallest prefix
whose mass reaches p) -> min-p (probability >= min_p * the largest) -> argmax of logit/temperature + Gumbel noise.
"""

from __future__ import annotations

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
STRIDE = 0xD1342543DE82EF95


def mix64(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64-bit integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def key(seed: int, position: int) -> int:
    """The 64-bit key of one position of one stream."""
    return mix64((seed + GOLDEN * (position + 1)) & MASK64)


def uniform_bits(seed: int, position: int, token: int) -> int:
    """23 uniform bits of a token; u = (bits + 0.5) / 2^23 is exact in float32 and never 0 or 1."""
    return mix64(key(seed, position) ^ ((token * STRIDE) & MASK64)) >> 41
