"""Affine integers: six widths, three groups, in MLX's layout; equal to mlx.core where it is installed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homestretch.engine.checkpoint import Affine
from homestretch.engine.checkpoint.affine import GROUPS, WIDTHS, dequantize, pack, quantize, unpack


@settings(max_examples=40, deadline=None)
@given(bits=st.sampled_from(WIDTHS), rows=st.integers(1, 3), groups=st.integers(1, 4), seed=st.integers(0, 1000))
def test_words_hold_the_little_endian_bit_stream_of_their_row(bits: int, rows: int, groups: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 1 << bits, (2, rows, groups * 32), generator=draw, dtype=torch.uint8)
    words = pack(values, bits)
    assert words.dtype == torch.uint32
    assert words.shape == (2, rows, groups * bits)
    stream = sum(int(value) << (bits * i) for i, value in enumerate(values[1, 0].tolist()))
    assert [int(word) for word in words[1, 0].tolist()] == [stream >> (32 * i) & 0xFFFFFFFF for i in range(groups * bits)]
    assert torch.equal(unpack(words, bits), values)


@pytest.mark.parametrize("bits", WIDTHS)
def test_quantizing_keeps_every_value_within_half_a_step_and_half_of_the_scales_negative(bits: int) -> None:
    matrix = torch.randn(64, 256, generator=torch.Generator().manual_seed(bits))
    made = quantize(matrix, bits=bits, group=64, dtype=torch.float32)
    step = made.scales.abs().repeat_interleave(64, dim=-1)
    error = (dequantize(made) - matrix).abs()
    assert bool((error <= step * 1.01).all())
    assert float((error <= step * 0.501).float().mean()) > 0.95
    assert 0.3 < float((made.scales < 0).float().mean()) < 0.7


def test_constant_and_zero_groups_survive() -> None:
    matrix = torch.cat((torch.zeros(1, 64), torch.full((1, 64), 0.75), torch.full((1, 64), -0.5)))
    assert torch.equal(dequantize(quantize(matrix, dtype=torch.float32)), matrix)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="100 inputs are no multiple of the group of 64"):
        quantize(torch.zeros(2, 100))
    with pytest.raises(ValueError, match="5 values of 6 bits"):
        pack(torch.zeros(1, 5, dtype=torch.uint8), 6)


@pytest.mark.oracle
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", WIDTHS)
def test_mlx_reads_and_writes_the_same_values(bits: int, group: int) -> None:
    mx = pytest.importorskip("mlx.core")
    np = pytest.importorskip("numpy")
    matrix = torch.randn(3, 24, 384, generator=torch.Generator().manual_seed(bits * group))
    words, scales, biases = mx.quantize(mx.array(matrix.numpy()), group_size=group, bits=bits)
    theirs = Affine(
        words=torch.from_numpy(np.array(words).view(np.int32)).view(torch.uint32),
        scales=torch.from_numpy(np.array(scales)),
        biases=torch.from_numpy(np.array(biases)),
        bits=bits,
        group=group,
    )
    wanted = torch.from_numpy(np.array(mx.dequantize(words, scales, biases, group_size=group, bits=bits)))
    assert torch.equal(dequantize(theirs), wanted)
    ours = quantize(matrix, bits=bits, group=group, dtype=torch.float32)
    assert torch.equal(ours.words.view(torch.int32), theirs.words.view(torch.int32))
    assert torch.equal(ours.scales, theirs.scales)
    assert torch.equal(ours.biases, theirs.biases)
