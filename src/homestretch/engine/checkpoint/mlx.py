"""MLX folders: affine matrices as words, scales and biases; per-layer widths; an MTP head in a file beside the shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from homestretch.engine.checkpoint import Affine, TextDefaults, Weight
from homestretch.engine.checkpoint.affine import GROUPS, WIDTHS
from homestretch.engine.checkpoint.folder import load_tokenizer, read_json, text_defaults
from homestretch.engine.checkpoint.layout import CONV, FLOATS, dense_spec, flat_conv
from homestretch.engine.checkpoint.shards import Shards, open_shards
from homestretch.engine.errors import CheckpointError
from homestretch.engine.program import WeightSpec

HEAD_FILES = "mtp-*.safetensors"
HEAD = "mtp."


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """bits and group of affine matrices: one default, and overrides by the name of a layer (None: not quantized)."""

    bits: int
    group: int
    layers: Mapping[str, tuple[int, int] | None]

    def of(self, layer: str) -> tuple[int, int] | None:
        return self.layers.get(layer, (self.bits, self.group))


def _pair(found: Mapping[str, Any], where: str) -> tuple[int, int]:
    """bits and group_size of an object, checked."""
    mode = found.get("mode", "affine")
    if mode != "affine":
        raise CheckpointError(f"{where}: mode is {mode!r}; only 'affine' is known")
    bits, group = found.get("bits"), found.get("group_size")
    if isinstance(bits, bool) or bits not in WIDTHS:
        raise CheckpointError(f"{where}: bits is {bits!r}; allowed are {', '.join(map(str, WIDTHS))}")
    if isinstance(group, bool) or group not in GROUPS:
        raise CheckpointError(f"{where}: group_size is {group!r}; allowed are {', '.join(map(str, GROUPS))}")
    return int(bits), int(group)


def read_widths(found: Any, where: str) -> Widths:
    """The `quantization` object of config.json: defaults and, under a layer's name, true, false or an object of its own."""
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{where} is {found!r}; an object with bits and group_size is wanted")
    bits, group = _pair(found, where)
    layers: dict[str, tuple[int, int] | None] = {}
    for name, value in found.items():
        if name in {"bits", "group_size", "mode", "quant_method"}:
            continue
        if isinstance(value, Mapping):
            layers[name] = _pair({"mode": "affine", **value}, f"{where}.{name}")
        elif isinstance(value, bool):
            layers[name] = (bits, group) if value else None
        else:
            raise CheckpointError(f"{where}: unknown key {name} = {value!r}")
    return Widths(bits=bits, group=group, layers=layers)


def _affine_spec(shards: Shards, layer: str, widths: tuple[int, int] | None) -> WeightSpec:
    """The logical shape of a matrix whose words, scales and biases are in the files."""
    words = shards.entries[f"{layer}.weight"]
    scales, biases = shards.entries.get(f"{layer}.scales"), shards.entries.get(f"{layer}.biases")
    if scales is None or biases is None:
        missing = "scales" if scales is None else "biases"
        raise CheckpointError(f"{words.file.name}: tensor {layer}.{missing} is missing beside {layer}.weight")
    if widths is None:
        raise CheckpointError(f"{words.file.name}: {layer} has scales, but config.json says that it is not quantized")
    bits, group = widths
    inputs = words.shape[-1] * 32 // bits
    wanted = (*words.shape[:-1], inputs // group)
    if words.dtype != "U32" or words.shape[-1] * 32 % bits or inputs % group:
        raise CheckpointError(
            f"{words.file.name}: {layer}.weight is {words.dtype} {list(words.shape)}; "
            f"whole groups of {group} values of {bits} bits in U32 words are wanted"
        )
    for name, entry in (("scales", scales), ("biases", biases)):
        if entry.shape != wanted or entry.dtype not in FLOATS:
            raise CheckpointError(
                f"{entry.file.name}: {layer}.{name} is {entry.dtype} {list(entry.shape)}; {list(wanted)} floats are wanted for "
                f"{bits} bits in groups of {group} (does config.json name another width for this layer?)"
            )
    return WeightSpec(shape=(*words.shape[:-1], inputs), bits=bits, group=group, dtype=FLOATS[scales.dtype])


class MlxCheckpoint:
    """An opened MLX folder. Names are the files' own; a head's tensors are called `mtp.layers...` as in the HF layout."""

    layout = "mlx"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Mapping[str, Any] = read_json(path / "config.json")
        self.text: TextDefaults = text_defaults(path, self.config)
        where = f"{path.name}/config.json: quantization"
        widths = read_widths(self.config.get("quantization"), where)
        self._shards = open_shards(path)
        self._specs = self._read_specs("", widths)
        self._notes: list[str] = []
        for file in self._head_files():
            metadata = self._shards.add(file, prefix=HEAD)
            self._specs |= self._read_specs(HEAD, _head_widths(metadata, widths, file))
        unknown = sorted(set(widths.layers) - {name.removesuffix(".weight") for name in self._specs})
        if unknown:
            raise CheckpointError(f"{where} names the layer {unknown[0]}, which the files do not hold")

    def _head_files(self) -> list[Path]:
        found = sorted(self.path.glob(HEAD_FILES))
        if len(found) > 1:
            raise CheckpointError(
                f"{self.path.name} holds {len(found)} MTP heads ({', '.join(one.name for one in found)}); keep one"
            )
        return found

    def _read_specs(self, prefix: str, widths: Widths) -> dict[str, WeightSpec]:
        made: dict[str, WeightSpec] = {}
        entries = {name: entry for name, entry in self._shards.entries.items() if name.startswith(prefix)}
        for name, entry in entries.items():
            layer, _, kind = name.rpartition(".")
            if kind in {"scales", "biases"}:
                if f"{layer}.weight" not in entries:
                    raise CheckpointError(f"{entry.file.name}: tensor {name} has no {layer}.weight beside it")
            elif kind == "weight" and (entry.dtype == "U32" or f"{layer}.scales" in entries):
                made[name] = _affine_spec(self._shards, layer, widths.of(layer))
            else:
                made[name] = dense_spec(name, entry)
        return made

    @property
    def specs(self) -> Mapping[str, WeightSpec]:
        return self._specs

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def read(self, name: str) -> Weight:
        """One weight as stored: Affine, or a dense tensor; a convolution's kernel as (channels, kernel)."""
        spec = self._specs[name]
        tensor = self._shards.read(name)
        if not spec.bits:
            return flat_conv(tensor) if name.endswith(CONV) else tensor
        layer = name.removesuffix(".weight")
        return Affine(
            words=tensor.view(torch.uint32),
            scales=self._shards.read(f"{layer}.scales"),
            biases=self._shards.read(f"{layer}.biases"),
            bits=spec.bits,
            group=spec.group,
        )

    def tokenizer(self) -> Any:
        return load_tokenizer(self.path)


def _head_widths(metadata: Mapping[str, str], main: Widths, file: Path) -> Widths:
    """A head's file names its width in its metadata; one that says nothing has the model's."""
    if "bits" not in metadata and "group_size" not in metadata:
        return Widths(bits=main.bits, group=main.group, layers={})
    numbers: dict[str, Any] = {}
    for key in ("bits", "group_size"):
        text = metadata.get(key, "")
        numbers[key] = int(text) if text.isdigit() else text
    bits, group = _pair(numbers, f"{file.name}: metadata")
    return Widths(bits=bits, group=group, layers={})


def open_at(path: Path) -> MlxCheckpoint:
    """Open a folder: headers only. CheckpointError names what is damaged or not known."""
    return MlxCheckpoint(path)
