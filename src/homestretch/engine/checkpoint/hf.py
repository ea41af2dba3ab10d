"""Hugging Face folders: dense tensors under their published names, experts stacked, optionally quantized to 4 bits at load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from homestretch.engine.checkpoint import TextDefaults, Weight
from homestretch.engine.checkpoint.affine import quantize
from homestretch.engine.checkpoint.folder import load_tokenizer, read_json, text_defaults
from homestretch.engine.checkpoint.layout import CONV, FLOATS, dense_spec, flat_conv
from homestretch.engine.checkpoint.shards import open_shards
from homestretch.engine.errors import CheckpointError
from homestretch.engine.program import WeightSpec

LOAD_BITS, LOAD_GROUP = 4, 64
_EXPERT = re.compile(r"(?P<at>.*)\.experts\.(?P<expert>\d+)\.(?P<part>up_proj|down_proj)\.weight")
_STACKED = {"up_proj": "switch_mlp.fc1", "down_proj": "switch_mlp.fc2"}


class HfCheckpoint:
    """An opened folder. `experts.{e}.up_proj` and `.down_proj` become one tensor each, `switch_mlp.fc1` and `.fc2`, experts first.

    four_bit: every matrix except routers is quantized while it is read, to 4 bits in groups of 64.
    """

    layout = "hf"

    def __init__(self, path: Path, *, four_bit: bool = False) -> None:
        self.path = path
        self.config: Mapping[str, Any] = read_json(path / "config.json")
        for key in ("quantization", "quantization_config"):
            if self.config.get(key):
                raise CheckpointError(
                    f"{path.name}/config.json: {key} is {self.config[key]!r}; known are dense folders in this layout, "
                    "MLX folders with affine weights, and GGUF files"
                )
        self.text: TextDefaults = text_defaults(path, self.config)
        self._shards = open_shards(path)
        self._parts: dict[str, list[str]] = {}
        dense = self._stack({name: dense_spec(name, entry) for name, entry in self._shards.entries.items()})
        self._specs = {name: _four_bit_spec(name, spec) for name, spec in dense.items()} if four_bit else dense
        self._notes: list[str] = []
        if four_bit:
            kept = sorted(name for name, spec in self._specs.items() if _is_matrix(name, spec) and not spec.bits)
            self._notes.append(f"matrices are quantized to {LOAD_BITS} bits in groups of {LOAD_GROUP} while they are read")
            if kept:
                self._notes.append(f"{len(kept)} matrices stay dense, their width is no multiple of {LOAD_GROUP}: {kept[0]} first")

    def _stack(self, found: Mapping[str, WeightSpec]) -> dict[str, WeightSpec]:
        """Specs with the experts of a block as one stack; refuses gaps and experts of unequal shape."""
        made: dict[str, WeightSpec] = {}
        experts: dict[str, dict[int, str]] = {}
        for name, spec in found.items():
            match = _EXPERT.fullmatch(name)
            if match is None:
                made[name] = spec
                continue
            stacked = f"{match['at']}.{_STACKED[match['part']]}.weight"
            experts.setdefault(stacked, {})[int(match["expert"])] = name
        for stacked, names in experts.items():
            gap = next((e for e in range(len(names)) if e not in names), None)
            if gap is not None:
                place = names[max(names)].replace(f".experts.{max(names)}.", f".experts.{gap}.")
                raise CheckpointError(f"{self.path.name}: tensor {place} is missing")
            specs = [found[names[e]] for e in range(len(names))]
            odd = next((e for e, spec in enumerate(specs) if spec != specs[0]), None)
            if odd is not None:
                raise CheckpointError(
                    f"{self.path.name}: tensor {names[odd]} is {list(specs[odd].shape)} {specs[odd].dtype}; "
                    f"expert 0 is {list(specs[0].shape)} {specs[0].dtype}"
                )
            made[stacked] = WeightSpec(shape=(len(names), *specs[0].shape), dtype=specs[0].dtype)
            self._parts[stacked] = [names[e] for e in range(len(names))]
        return made

    @property
    def specs(self) -> Mapping[str, WeightSpec]:
        return self._specs

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def read(self, name: str) -> Weight:
        """One weight, dense or quantized on the way; a convolution's kernel as (channels, kernel)."""
        parts = self._parts.get(name)
        tensor = torch.stack([self._shards.read(part) for part in parts]) if parts else self._shards.read(name)
        if self._specs[name].bits:
            return quantize(tensor, bits=LOAD_BITS, group=LOAD_GROUP)
        return flat_conv(tensor) if name.endswith(CONV) else tensor

    def tokenizer(self) -> Any:
        return load_tokenizer(self.path)


def _is_matrix(name: str, spec: WeightSpec) -> bool:
    return name.endswith(".weight") and len(spec.shape) > 1 and not name.endswith((CONV, ".gate.weight"))


def _four_bit_spec(name: str, spec: WeightSpec) -> WeightSpec:
    if not _is_matrix(name, spec) or spec.shape[-1] % LOAD_GROUP:
        return spec
    return WeightSpec(shape=spec.shape, bits=LOAD_BITS, group=LOAD_GROUP, dtype=FLOATS["BF16"])


def open_at(path: Path, *, four_bit: bool = False) -> HfCheckpoint:
    """Open a folder: headers only. CheckpointError names what is damaged or not known."""
    return HfCheckpoint(path, four_bit=four_bit)
