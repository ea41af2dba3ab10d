"""GGUF files: Q4_0, Q4_1 and Q8_0 stay packed as affine groups of 32, floats as they are, other types are widened to bf16."""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType as Storage

from homestretch.engine.checkpoint import Affine, TextDefaults, Weight
from homestretch.engine.checkpoint.gguf_header import Entry, Header, Texts, read_header
from homestretch.engine.checkpoint.gguf_vocabulary import build_tokenizer, split_of, text_defaults
from homestretch.engine.checkpoint.keys import short
from homestretch.engine.errors import CheckpointError
from homestretch.engine.program import WeightSpec

GROUP = 32
PACKED = {Storage.Q4_0: 4, Storage.Q4_1: 4, Storage.Q8_0: 8}
"""Storage types that are exactly affine, and their bits."""
DENSE = {Storage.F32: torch.float32, Storage.F16: torch.float16, Storage.BF16: torch.bfloat16}
DTYPES: dict[Storage, Any] = {Storage.F32: "float32", Storage.F16: "float16", Storage.BF16: "bfloat16"}

Bytes = npt.NDArray[np.uint8]


class GgufCheckpoint:
    """An opened GGUF file. `config` is its metadata without the vocabulary; weights have the file's own names."""

    layout = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header: Header = read_header(path)
        metadata = self._header.metadata
        if metadata.get("split.count", 1) not in (0, 1):
            raise CheckpointError(
                f"{path.name}: one of {short(metadata['split.count'])} parts; join them with llama-gguf-split --merge"
            )
        self.config: Mapping[str, Any] = {key: value for key, value in metadata.items() if not isinstance(value, Texts)}
        self.text: TextDefaults = text_defaults(metadata, path.name)
        self._specs = {name: _spec(path.name, name, entry) for name, entry in self._header.entries.items()}
        split_of(metadata, path.name)
        embedding, tokens = self._specs.get("token_embd.weight"), metadata.get("tokenizer.ggml.tokens")
        if embedding and isinstance(tokens, Texts) and len(tokens) > embedding.shape[0]:
            raise CheckpointError(
                f"{path.name}: {len(tokens):,} tokens in the vocabulary, but token_embd.weight has {embedding.shape[0]:,} rows"
            )

    @property
    def specs(self) -> Mapping[str, WeightSpec]:
        return self._specs

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """One line for each storage type that is widened to bf16."""
        widened: dict[Storage, list[str]] = defaultdict(list)
        for name, entry in self._header.entries.items():
            if entry.type not in PACKED and entry.type not in DENSE:
                widened[entry.type].append(name)
        return tuple(
            f"{len(names)} {kind.name} tensor{'s' * (len(names) > 1)} ({', '.join(names[:2])}{', ...' * (len(names) > 2)}) "
            "widened to bf16 on load: kept packed are Q4_0, Q4_1 and Q8_0"
            for kind, names in sorted(widened.items())
        )

    def read(self, name: str) -> Weight:
        """One weight. CheckpointError when it holds a scale or a value that is no finite number."""
        entry = self._header.entries[name]
        raw = np.frombuffer(self._header.data, dtype=np.uint8, count=entry.bytes, offset=entry.offset)
        if entry.type in PACKED:
            weight: Weight = (affine := _affine(entry, raw))
            floats: tuple[torch.Tensor, ...] = (affine.scales, affine.biases)
        elif entry.type in DENSE:
            weight = torch.from_numpy(raw.copy()).view(DENSE[entry.type]).reshape(entry.shape)
            floats = (weight,)
        else:
            wide = gguf.dequantize(raw.reshape(*entry.shape[:-1], -1), entry.type)
            weight = torch.from_numpy(np.asarray(wide, dtype=np.float32)).reshape(entry.shape).to(torch.bfloat16)
            floats = (weight,)
        if not all(bool(part.isfinite().all()) for part in floats):
            raise CheckpointError(f"{self.path.name}: tensor {name} holds values that are no finite numbers: the file is damaged")
        return weight

    def release(self) -> None:
        """Let go of the file's pages in memory; a later read brings them back."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._header.data.madvise(mmap.MADV_DONTNEED)

    def tokenizer(self) -> Any:
        """A `tokenizers.Tokenizer` made from the vocabulary in the metadata."""
        return build_tokenizer(self._header.metadata, self.path.name)


def _spec(where: str, name: str, entry: Entry) -> WeightSpec:
    if entry.type in PACKED:
        return WeightSpec(shape=entry.shape, bits=PACKED[entry.type], group=GROUP, dtype="float16")
    if entry.type in DENSE:
        return WeightSpec(shape=entry.shape, dtype=DTYPES[entry.type])
    if not _readable(entry.type):
        raise CheckpointError(f"{where}: tensor {name} is stored as {entry.type.name}, which cannot be read")
    return WeightSpec(shape=entry.shape, dtype="bfloat16")


@cache
def _readable(storage: Storage) -> bool:
    """Whether the `gguf` package widens this type: tried on a block of zeros."""
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[storage][1]), dtype=np.uint8), storage)
    except NotImplementedError:
        return False
    return True


def _affine(entry: Entry, raw: Bytes) -> Affine:
    """Blocks of 32 values as affine groups, exact: Q4_1 is d*q + m, Q4_0 is d*(q - 8), Q8_0 is d*(q - 128) with q moved by 128.

    A block of 4 bits holds values 0 to 15 in its low nibbles and 16 to 31 in its high ones; words hold neighbours side by side.
    """
    size = gguf.GGML_QUANT_SIZES[entry.type][1]
    blocks = raw.reshape(-1, size)
    head = 4 if entry.type is Storage.Q4_1 else 2
    floats = blocks[:, :head].copy().view(np.float16)
    scales = floats[:, 0]
    if entry.type is Storage.Q8_0:
        packed = blocks[:, head:] ^ np.uint8(0x80)
    else:
        low, high = blocks[:, head:] & np.uint8(15), blocks[:, head:] >> np.uint8(4)
        packed = np.concatenate((low[:, 0::2] | (low[:, 1::2] << 4), high[:, 0::2] | (high[:, 1::2] << 4)), axis=1)
    if entry.type is Storage.Q4_1:
        biases: npt.NDArray[Any] = floats[:, 1]
    else:
        with np.errstate(invalid="ignore"):  # a scale that is no number is refused by the caller
            wide = scales.astype(np.float32) * np.float32(-8.0 if entry.type is Storage.Q4_0 else -128.0)
        # A power of two times a half is a half again, unless it grows out of range.
        fits = bool((np.abs(wide) <= np.float32(np.finfo(np.float16).max)).all())
        biases = wide.astype(np.float16) if fits else wide
        scales = scales if fits else scales.astype(np.float32)
    groups = (*entry.shape[:-1], entry.shape[-1] // GROUP)
    bits = PACKED[entry.type]
    words = torch.from_numpy(np.ascontiguousarray(packed).view(np.uint32).reshape(*entry.shape[:-1], -1))
    return Affine(
        words=words,
        scales=torch.from_numpy(np.ascontiguousarray(scales).reshape(groups)),
        biases=torch.from_numpy(np.ascontiguousarray(biases).reshape(groups)),
        bits=bits,
        group=GROUP,
    )


def open_at(path: Path) -> GgufCheckpoint:
    """Open a GGUF file: headers only. CheckpointError names what is damaged or not known."""
    return GgufCheckpoint(path)
