"""Keyed draws, reference form: the noise of a token depends on (seed, position, id) alone, so a draft can be checked by drawing.

Order of a draw (Rule 5 of docs/engine.md): fp32 logits plus bias; mask; temperature 0 is argmax (ties to the lower id); else
candidates in order (logit descending, id ascending) -> times 1/temperature -> top-k -> softmax -> top-p (the smallest prefix
whose mass reaches p) -> min-p (weight >= min_p * the largest) -> argmax of scaled logit + Gumbel noise (ties to the lower id).

Arithmetic is fixed so that C++ or a GPU can repeat it bit for bit: every product and sum is rounded on its own (no fused
multiply-add), polynomials are Horner's, sums follow `total`. numpy does exactly that, one operation at a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from homestretch.engine.types import Draw, RowOut

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
STRIDE = 0xD1342543DE82EF95

COLD = 1e-6
"""Temperatures below this are argmax."""

BLOCK = 1024
"""Ids per block of a sum over the vocabulary."""

LOG_POLY = tuple(
    np.float32(float.fromhex(text))
    for text in (
        "-0x1.43b246p-4",
        "0x1.02814ep-3",
        "-0x1.0a33eap-3",
        "0x1.231ce6p-3",
        "-0x1.54d03ep-3",
        "0x1.999f14p-3",
        "-0x1.0000cep-2",
        "0x1.555554p-2",
    )
)
"""Chebyshev fit of (ln(1+f) - f + f^2/2) / f^3 on [sqrt(1/2)-1, sqrt(2)-1], highest power first; `log32` errs < 1 ulp."""
LN2_HI32, LN2_LO32 = np.float32(0.693359375), np.float32(-2.12194440e-4)

EXP_POLY = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
"""Taylor coefficients 1/n!, highest power first; on |r| <= ln(2)/2 the next term is < 5e-18."""
LOG2E = 1.4426950408889634
LN2_HI64, LN2_LO64 = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")


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


def prompt_seed(ids: Sequence[int]) -> int:
    """The seed of a request that names none: the first 8 bytes (little endian) of SHA-256 over the ids as little-endian uint32."""
    return int.from_bytes(hashlib.sha256(np.asarray(ids, dtype="<u4").tobytes()).digest()[:8], "little")


def choice_seed(seed: int, choice: int) -> int:
    """The seed of choice `choice` of a request with n > 1; choice 0 keeps the request's own."""
    return seed & MASK64 if choice == 0 else mix64((seed ^ (choice * STRIDE)) & MASK64)


def log32(x: F32) -> F32:
    """Natural logarithm of positive normal fp32 values, the same bits everywhere.

    x = m * 2^e with m in [sqrt(1/2), sqrt(2)); f = m - 1; z = f*f; p = Horner(LOG_POLY, f);
    y = (f*p)*z; y = y + e*LN2_LO; y = y - 0.5*z; y = f + y; result y + e*LN2_HI.
    """
    bits = x.view(np.int32) - np.int32(0x3F3504F3)
    exponent = (bits >> 23).astype(np.float32)
    f = ((bits & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3)).view(np.float32) - np.float32(1.0)
    z = f * f
    p = np.full_like(f, LOG_POLY[0])
    for coefficient in LOG_POLY[1:]:
        p = p * f + coefficient
    y = (f * p) * z
    y = y + exponent * LN2_LO32
    y = y - np.float32(0.5) * z
    y = f + y
    result: F32 = y + exponent * LN2_HI32
    return result


def exp64(x: F64) -> F64:
    """exp of fp64 values <= 0, the same bits everywhere; 0 below -700.

    k = x*LOG2E rounded half to even; r = (x - k*LN2_HI) - k*LN2_LO; Horner(EXP_POLY, r) * 2^k.
    """
    clipped = np.maximum(x, -700.0)
    k = np.rint(clipped * LOG2E)
    r = (clipped - k * LN2_HI64) - k * LN2_LO64
    p = np.full_like(r, EXP_POLY[0])
    for coefficient in EXP_POLY[1:]:
        p = p * r + coefficient
    scale = ((k.astype(np.int64) + 1023) << 52).view(np.float64)
    return np.where(x < -700.0, 0.0, p * scale)


def total(weights: F64) -> float:
    """Sum in fixed order. The vector, zero-padded to blocks of 1,024, is halved within each block: lane i takes i and i + 512,
    then i and i + 256, ... ; the block sums are added from the first to the last."""
    padded = np.zeros(-(-weights.size // BLOCK) * BLOCK, dtype=np.float64)
    padded[: weights.size] = weights
    lanes = padded.reshape(-1, BLOCK)
    width = BLOCK
    while width > 1:
        width //= 2
        lanes = lanes[:, :width] + lanes[:, width:]
    return float(np.cumsum(lanes[:, 0])[-1])


def gumbel(seed: int, position: int, ids: Ids) -> F32:
    """Gumbel noise of token ids: -ln(-ln(u)), u = (uniform_bits + 0.5) / 2^23, both logarithms by `log32`."""
    x = np.uint64(key(seed, position)) ^ (ids.astype(np.uint64) * np.uint64(STRIDE))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = (x ^ (x >> np.uint64(31))) >> np.uint64(41)
    u = (x.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    noise: F32 = -log32(-log32(u))
    return noise


def _candidates(logits: F32, least: int) -> Ids:
    """The first ids in candidate order (logit descending, id ascending): at least `least` of them, whole ties included."""
    if least >= logits.size:
        kept = np.arange(logits.size)
    else:
        threshold = np.partition(logits, logits.size - least)[logits.size - least]
        kept = np.flatnonzero(logits >= threshold)
    return kept[np.argsort(-logits[kept], kind="stable")]


def keep(logits: F32, draw: Draw) -> Ids:
    """Ids that stay candidates after top-k, top-p and min-p, ascending. logits (vocab,) with bias and mask applied."""
    scaled = logits * _inverse(draw.temperature)
    top = np.float64(scaled.max())
    if 0 < draw.top_k < logits.size:
        pool = np.sort(_candidates(logits, draw.top_k)[: draw.top_k])
    else:
        pool = np.arange(logits.size)
    weights = np.zeros(logits.size, dtype=np.float64)
    weights[pool] = exp64(scaled[pool].astype(np.float64) - top)
    if draw.top_p < 1.0:
        wanted = draw.top_p * total(weights)
        count = min(256, logits.size)
        while True:
            order = _candidates(logits, count)
            if 0 < draw.top_k < logits.size:
                order = order[: draw.top_k]
            mass = np.cumsum(weights[order])
            if mass[-1] >= wanted or order.size >= pool.size:
                break
            count = min(count * 8, logits.size)
        pool = np.sort(order[: int(np.searchsorted(mass, wanted)) + 1])
    pool = pool[weights[pool] >= draw.min_p] if draw.min_p > 0.0 else pool
    return pool[weights[pool] > 0.0]


def _inverse(temperature: float) -> np.float32:
    """1/temperature, divided in fp64 and rounded once; logits are multiplied by it."""
    return np.float32(1.0 / temperature)


def draw(logits: torch.Tensor, draw: Draw) -> RowOut:
    """Draw one row's token. logits (vocab,) fp32, unchanged by the call. FloatingPointError when no finite candidate is left."""
    raw: F32 = logits.detach().cpu().numpy()
    if np.isnan(raw).any():
        raise FloatingPointError(f"the logits of position {draw.position} hold NaN")
    shaped = raw
    if draw.bias:
        shaped = raw.copy()
        for token, addend in draw.bias:
            shaped[token] = shaped[token] + np.float32(addend)
    if draw.mask is not None:
        allowed = np.unpackbits(np.frombuffer(draw.mask, dtype=np.uint8), bitorder="little", count=raw.size)
        shaped = np.where(allowed.astype(bool), shaped, np.float32(-np.inf))
    best = int(np.argmax(shaped))
    if not np.isfinite(shaped[best]):
        raise FloatingPointError(f"position {draw.position} has no token to draw: every candidate is masked or infinite")
    if draw.temperature >= COLD:
        kept = keep(shaped, draw)
        noisy = shaped[kept] * _inverse(draw.temperature) + gumbel(draw.seed, draw.position, kept)
        best = int(kept[int(np.argmax(noisy))])
    if draw.logprobs == 0:
        return RowOut(token=best)
    return _with_logprobs(raw, best, draw.logprobs)


def _with_logprobs(raw: F32, token: int, count: int) -> RowOut:
    """Natural log probabilities of the unmodified distribution: the token's own, and the `count` largest in candidate order."""
    peak = np.float64(raw.max())
    ground = float(peak) + math.log(total(exp64(raw.astype(np.float64) - peak)))
    top = tuple((int(i), float(raw[i]) - ground) for i in _candidates(raw, min(count, raw.size))[:count])
    return RowOut(token=token, logprob=float(raw[token]) - ground, top=top)
