"""Keyed draws: the fixed logarithm and exponential, the order of the rules, the distribution, and values that may never change."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homestretch.engine import draws
from homestretch.engine.types import Draw


def make(seed: int = 1, position: int = 5, **changes: object) -> Draw:
    values: dict[str, object] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **changes}
    return Draw(seed=seed, position=position, **values)  # type: ignore[arg-type]


def random_logits(seed: int, vocab: int, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


def plain_keep(logits: np.ndarray, draw: Draw) -> list[int]:
    """The rules written out with Python numbers."""
    scaled = [float(v) * float(np.float32(1 / draw.temperature)) for v in logits]
    order = sorted(range(len(scaled)), key=lambda i: (-float(logits[i]), i))
    if draw.top_k:
        order = order[: draw.top_k]
    peak = max(scaled)
    weight = {i: math.exp(scaled[i] - peak) for i in order}
    mass, kept = 0.0, []
    for i in order:
        kept.append(i)
        mass += weight[i]
        if draw.top_p < 1 and mass >= draw.top_p * sum(weight.values()):
            break
    return sorted(i for i in kept if weight[i] >= draw.min_p)


def test_log_and_exp_are_right() -> None:
    x = np.concatenate(
        [((np.arange(1 << 16) + 0.5) / (1 << 16)).astype(np.float32), np.exp(np.linspace(-17, 3, 40000)).astype(np.float32)]
    )
    true = np.log(x.astype(np.float64))
    assert np.max(np.abs(draws.log32(x) - true) / np.spacing(np.abs(true).astype(np.float32))) < 1.0
    y = -np.linspace(0, 699, 50001)
    assert np.max(np.abs(draws.exp64(y) / np.exp(y) - 1)) < 1e-15
    assert draws.exp64(np.array([0.0, -701.0, -np.inf])).tolist() == [1.0, 0.0, 0.0]


def test_noise_is_the_written_hash() -> None:
    ids = np.array([0, 1, 2, 49151, 131071])
    for seed, position in ((0, 0), (42, 7), (2**64 - 1, 262143)):
        u = [(draws.uniform_bits(seed, position, int(i)) + 0.5) / 2**23 for i in ids]
        assert np.allclose(draws.gumbel(seed, position, ids), [-math.log(-math.log(v)) for v in u], rtol=1e-6, atol=2e-7)


def test_values_that_may_never_change() -> None:
    assert [draws.uniform_bits(42, 7, i) for i in (0, 1, 49151)] == [4743020, 1221273, 7784647]
    assert draws.prompt_seed((1, 2, 3)) == 16835613460176385606
    assert draws.gumbel(42, 7, np.arange(3)).view(np.uint32).tolist() == [1058000892, 3207064733, 1067017550]
    logits = torch.from_numpy(((np.arange(500, dtype=np.float32) * np.float32(37.0)) % np.float32(101.0)) / np.float32(16.0))
    cases = (make(), make(temperature=0.7, top_p=0.95), make(top_k=20), make(min_p=0.05, position=9))
    assert [draws.draw(logits, c).token for c in cases] == [491, 491, 232, 330]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(2, 400),
    st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    st.integers(0, 50),
    st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_kept_candidates_follow_the_rules(seed: int, vocab: int, t: float, k: int, p: float, m: float) -> None:
    logits = np.round(random_logits(seed, vocab) * 4) / np.float32(4)  # many ties
    rule = make(temperature=t, top_k=k, top_p=p, min_p=m)
    assert draws.keep(logits.astype(np.float32), rule).tolist() == plain_keep(logits, rule)


def test_a_large_vocabulary_needs_several_looks_for_top_p() -> None:
    logits = random_logits(3, 20000, 0.3)
    rule = make(top_p=0.9)
    assert draws.keep(logits, rule).tolist() == plain_keep(logits, rule)


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    n = 20000
    counts = np.bincount([draws.draw(logits, make(seed=9, position=i)).token for i in range(n)], minlength=5)
    expected = torch.softmax(logits, 0).numpy() * n
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 18.5  # 99.9 % of the chi-square distribution with four degrees of freedom


def test_bias_mask_and_argmax() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, 2.0])
    assert draws.draw(logits, make(temperature=0.0)).token == 1, "ties go to the lower id"
    assert draws.draw(logits, make(temperature=0.0, bias=((3, 1.5),))).token == 3
    assert draws.draw(logits, make(temperature=0.0, mask=bytes([0b0001]))).token == 0
    assert logits.tolist() == [1.0, 3.0, 3.0, 2.0]
    with pytest.raises(FloatingPointError, match="no token"):
        draws.draw(logits, make(mask=bytes([0])))
    with pytest.raises(FloatingPointError, match="NaN"):
        draws.draw(torch.tensor([1.0, float("nan")]), make())


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, 2.0])
    out = draws.draw(logits, make(temperature=0.0, bias=((0, 9.0),), logprobs=3))
    true = torch.log_softmax(logits.double(), 0)
    assert out.token == 0
    assert out.logprob == pytest.approx(float(true[0]))
    assert [i for i, _ in out.top] == [1, 2, 3]
    assert [v for _, v in out.top] == pytest.approx([float(true[i]) for i in (1, 2, 3)])


def test_choices_have_their_own_seeds() -> None:
    seeds = [draws.choice_seed(7, i) for i in range(50)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 50
