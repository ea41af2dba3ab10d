"""Weights on the device: affine matrices in blocks that a kernel reads in one piece, dense ones as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from homestretch.engine.checkpoint import Affine, Weight

WIDE = 128
"""Outputs of a prompt kernel's block; matrices are padded to a multiple of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """An affine matrix (experts, N, K) as [expert][block of BN][group][BN][words], scales and biases as [...][group][BN].

    One expert stands for a plain matrix. Outputs past N are zero (scale = bias = 0).
    """

    words: torch.Tensor
    scales: torch.Tensor
    biases: torch.Tensor
    n: int
    k: int
    bits: int
    group: int
    bn: int
    experts: int

    @property
    def blocks(self) -> int:
        """Blocks of BN outputs of one expert, padding included."""
        return -(-self.n // WIDE) * (WIDE // self.bn)

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.words, self.scales, self.biases))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A dense matrix (N, K) or vector on the device."""

    tensor: torch.Tensor

    @property
    def n(self) -> int:
        return int(self.tensor.shape[0])

    @property
    def k(self) -> int:
        return int(self.tensor.shape[-1])

    @property
    def bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


def block_outputs(n: int) -> int:
    """BN of a matrix with n outputs: enough blocks to fill a device, one choice per shape (it fixes the order of nothing)."""
    return 64 if n >= 16_384 else 32 if n >= 2_048 else 16


def stages(bits: int, group: int, *, wide: bool) -> int:
    """Loop turns whose loads a product keeps in flight: what fits into the 99 KiB of shared memory of an RTX or a GB10.

    Widths that are no power of two load a word and its neighbour for every integer. wide: a prompt's blocks.
    """
    if bits in (2, 4, 8):
        return 3 if wide else 8 if group <= 64 else 4
    if wide:
        return 1 if group > 64 else 2
    return 2 if group > 64 else 3


def pack(parts: Sequence[Affine], device: torch.device) -> Packed:
    """Join affine matrices of one input width along their outputs and lay them out in blocks.

    Each part is (N_i, K) or (experts, N, K) (then there is one part). All must share bits, group and scale type.
    """
    first = parts[0]
    words = torch.cat([_three(p.words.view(torch.int32)) for p in parts], dim=1).to(device)
    scales = torch.cat([_three(p.scales) for p in parts], dim=1).to(device)
    biases = torch.cat([_three(p.biases) for p in parts], dim=1).to(device)
    experts, n, groups = scales.shape
    bn = block_outputs(n)
    padded = -(-n // WIDE) * WIDE
    run = first.group * first.bits // 32

    def blocks(t: torch.Tensor, tail: tuple[int, ...]) -> torch.Tensor:
        full = torch.zeros((experts, padded, *t.shape[2:]), dtype=t.dtype, device=device)
        full[:, :n] = t
        return full.reshape(experts, padded // bn, bn, groups, *tail).transpose(2, 3).contiguous()

    return Packed(
        words=blocks(words, (run,)),
        scales=blocks(scales, ()),
        biases=blocks(biases, ()),
        n=n,
        k=groups * first.group,
        bits=first.bits,
        group=first.group,
        bn=bn,
        experts=experts,
    )


def alike(weights: Sequence[Weight]) -> bool:
    """Whether matrices can be joined into one packed matrix."""
    kinds = {(w.bits, w.group, w.scales.dtype, w.scales.dim()) if isinstance(w, Affine) else None for w in weights}
    return None not in kinds and len(kinds) == 1


def _three(t: torch.Tensor) -> torch.Tensor:
    return t if t.dim() == 3 else t[None]
