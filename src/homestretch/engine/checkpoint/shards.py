"""Safetensors files: headers checked against the file's size when opened, tensors read one at a time through a memory map."""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from homestretch.engine.errors import CheckpointError

DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U8": torch.uint8,
    "I64": torch.int64,
}
ALIGNMENT = 64  # vector kernels round differently at other addresses, so where a file places a tensor would show in the logits
_HEADER_LIMIT = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor in a file: its type by the format's name, its shape, and where its bytes lie."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(slots=True)
class Shards:
    """Tensors of one or more safetensors files by name."""

    entries: dict[str, Entry] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    _maps: dict[Path, mmap.mmap] = field(default_factory=dict)

    def add(self, file: Path, *, prefix: str = "") -> Mapping[str, str]:
        """Open a file's header, naming its tensors prefix + name; returns its metadata. A name seen before is refused."""
        entries, metadata = read_header(file)
        for name, entry in entries.items():
            if prefix + name in self.entries:
                raise CheckpointError(f"{file.name}: tensor {prefix + name} is also in {self.entries[prefix + name].file.name}")
            self.entries[prefix + name] = entry
        self.metadata.update(metadata)
        return metadata

    def read(self, name: str) -> torch.Tensor:
        """The tensor, in its stored type: a view of the file's pages where they are aligned, else a copy."""
        entry = self.entries[name]
        if entry.start == entry.stop:
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        if entry.file not in self._maps:
            with entry.file.open("rb") as file:
                self._maps[entry.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        dtype = DTYPES[entry.dtype]
        flat = torch.frombuffer(self._maps[entry.file], dtype=torch.uint8, count=entry.stop - entry.start, offset=entry.start)
        if entry.start % ALIGNMENT:
            flat = flat.clone()
        return flat.view(dtype).reshape(entry.shape)


def read_header(file: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """Entries and metadata of one file. CheckpointError: truncated, overlapping or oversized, or a type that is not known."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8).ljust(8, b"\0"))
            if size < 8 or length > min(size - 8, _HEADER_LIMIT):
                raise CheckpointError(f"{file.name}: {size} bytes, but its header says {length}: truncated, or no safetensors file")
            text = opened.read(length)
    except OSError as error:
        raise CheckpointError(f"{file.name}: cannot be read ({error.strerror or error})") from None
    try:
        header: dict[str, Any] = json.loads(text)
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        found = [
            (
                name,
                Entry(
                    file=file,
                    dtype=str(one["dtype"]),
                    shape=tuple(int(n) for n in one["shape"]),
                    start=8 + length + int(one["data_offsets"][0]),
                    stop=8 + length + int(one["data_offsets"][1]),
                ),
            )
            for name, one in header.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{file.name}: its header is damaged ({type(error).__name__}: {error})") from None
    end = 8 + length
    for name, entry in sorted(found, key=lambda pair: (pair[1].start, pair[1].stop)):
        if entry.dtype not in DTYPES:
            raise CheckpointError(f"{file.name}: tensor {name} has the type {entry.dtype}; known are {', '.join(DTYPES)}")
        wanted = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
        if entry.start != end or entry.stop - entry.start != wanted or min(entry.shape, default=0) < 0:
            raise CheckpointError(
                f"{file.name}: tensor {name} {list(entry.shape)} {entry.dtype} lies at bytes {entry.start} to {entry.stop}; "
                f"{wanted} bytes from {end} are wanted"
            )
        end = entry.stop
    if end != size:
        what = "truncated" if size < end else "longer than its tensors"
        raise CheckpointError(f"{file.name}: {what}: {size} bytes, its header needs {end}")
    return dict(found), metadata


def open_shards(folder: Path) -> Shards:
    """`model.safetensors`, or the shards that `model.safetensors.index.json` names; names must agree with the index.

    CheckpointError: no weights, a shard that is missing or outside the folder, a tensor that is not where the index says.
    """
    shards = Shards()
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.is_file():
        if not single.is_file():
            raise CheckpointError(f"{folder.name}: neither model.safetensors nor model.safetensors.index.json is there")
        shards.add(single)
        return shards
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({str(file) for file in places.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder.name}/{index.name}: no weight_map can be read ({type(error).__name__}: {error})") from None
    for file in files:
        if Path(file).name != file:
            raise CheckpointError(f"{folder.name}/{index.name}: the shard {file!r} is not a file beside it")
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder.name}: the shard {file} is missing; pull the model again")
        shards.add(folder / file)
    for name, file in places.items():
        entry = shards.entries.get(name)
        if entry is None or entry.file.name != file:
            raise CheckpointError(f"{folder.name}: tensor {name} is missing from {file}, where the index places it")
    return shards
