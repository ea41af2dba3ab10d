"""What a checkpoint offers: its config, its weights by name, its tokenizer and defaults. One file here per layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from homestretch.engine.program import WeightSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """A matrix of small integers: value = scales * q + biases, per group along the last axis. The layout is MLX's.

    words: uint32 (..., out, in*bits/32), the q values as one little-endian bit stream along the input axis, lowest bits first;
    scales, biases: (..., out, in/group) float16, bfloat16 or float32.
    """

    words: torch.Tensor
    scales: torch.Tensor
    biases: torch.Tensor
    bits: int
    group: int


Weight = Affine | torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDefaults:
    """What the files say about replies: end tokens (all sources joined), sampling, the chat template, special token texts."""

    ends: frozenset[int]
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    source: str = ""


class Checkpoint(Protocol):
    """An opened checkpoint; opening reads headers only, checks sizes, and refuses what it does not know."""

    path: Path
    layout: str
    config: Mapping[str, Any]
    text: TextDefaults

    @property
    def specs(self) -> Mapping[str, WeightSpec]:
        """Every weight in the files by name; shape and storage from headers."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know, such as types that are widened on load."""

    def read(self, name: str) -> Weight:
        """Read one weight."""

    def tokenizer(self) -> Any:
        """A `tokenizers.Tokenizer`."""
