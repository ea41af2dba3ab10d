"""The register of lowerings: how the reference backend computes each kind of operation, for a tile and for a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from homestretch.engine.backends.reference.memory import Memory
from homestretch.engine.program import Attrs, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What an operation is told about the call: one tile of a prompt, or one row of a window.

    weights: every weight as float32 on the device. memory: the stream's. start: absolute position of row 0.
    count: rows that are real; a tile always has QUANTUM rows, the ones past `count` are padding that must change no state.
    row: number of the row in its window (0 for a tile), which names the recurrent state it starts from.
    first: attention sees no key below this position (but always the row's own). asked: rows whose logits are wanted.
    """

    weights: Mapping[str, torch.Tensor]
    memory: Memory
    start: int
    count: int
    tile: bool
    row: int = 0
    first: int = 0
    asked: tuple[int, ...] = ()


Lowering = Callable[[Op, Sequence[torch.Tensor], Rows], tuple[torch.Tensor, ...]]
"""Computes one operation: its inputs (rows x width; ids are int64) give its outputs."""

LOWERINGS: dict[type[Attrs], Lowering] = {}


def lowers(kind: type[Attrs]) -> Callable[[Lowering], Lowering]:
    """Registers the decorated function for a kind of operation."""

    def register(lowering: Lowering) -> Lowering:
        LOWERINGS[kind] = lowering
        return lowering

    return register
