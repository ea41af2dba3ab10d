"""The header of a GGUF file: metadata and the tensor table, every count and offset checked before it is believed."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from homestretch.engine.checkpoint.keys import short
from homestretch.engine.errors import CheckpointError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
"""struct letters of the value types of the format; 7 is bool, 8 a string, 9 an array."""
BOOL, STRING, ARRAY = 7, 8, 9
MOST_DIMENSIONS = 4
LONGEST_NAME = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor: shape with the last axis fastest (out, in), its storage type, and where its bytes lie in the file."""

    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    bytes: int


class Texts:
    """An array of strings that stays in the file until it is asked for."""

    def __init__(self, data: mmap.mmap, offset: int, count: int) -> None:
        self._data, self._offset, self.count = data, offset, count

    def __repr__(self) -> str:
        return f"<{self.count:,} texts>"

    def __len__(self) -> int:
        return self.count

    def raw(self) -> Iterator[bytes]:
        """The strings as stored."""
        at, data, size = self._offset, self._data, struct.Struct("<Q").unpack_from
        for _ in range(self.count):
            length = size(data, at)[0]
            yield data[at + 8 : at + 8 + length]
            at += 8 + length

    def all(self) -> list[str]:
        """Every string; bytes that are no UTF-8 become U+FFFD."""
        return [text.decode("utf-8", "replace") for text in self.raw()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a GGUF file says of itself. metadata: keys to scalars, strings, lists, or `Texts` for arrays of strings."""

    metadata: Mapping[str, Any]
    entries: Mapping[str, Entry]
    data: mmap.mmap


class _Reader:
    """Reads little-endian values in order; running past the end says what was being read."""

    def __init__(self, data: mmap.mmap, where: str) -> None:
        self.data, self.where, self.at, self.size = data, where, 0, len(data)

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {what}")

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.at:
            raise self.fail(
                f"the file ends inside {what} ({self.size:,} bytes; {self.at + count:,} wanted): is the download whole?"
            )

    def scalar(self, letter: str, what: str) -> Any:
        size = struct.calcsize("<" + letter)
        self.need(size, what)
        value = struct.unpack_from("<" + letter, self.data, self.at)[0]
        self.at += size
        return value

    def name(self, what: str) -> str:
        """A key's or a tensor's name: short and printable, so that a message can quote it."""
        length = struct.unpack_from("<Q", self.data, self.at)[0] if self.size - self.at >= 8 else 0
        if length > LONGEST_NAME:
            raise self.fail(f"{what} is {length:,} bytes long, at most {LONGEST_NAME} are allowed: the header is damaged")
        name = self.text(what)
        if not name or not name.isprintable():
            raise self.fail(f"{what} is {name!r}, which is no name: the header is damaged")
        return name

    def text(self, what: str) -> str:
        length = self.scalar("Q", what)
        self.need(length, what)
        self.at += length
        try:
            return self.data[self.at - length : self.at].decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is no UTF-8 text: the header is damaged") from None

    def value(self, kind: int, what: str) -> Any:
        if kind == STRING:
            return self.text(what)
        if kind == ARRAY:
            return self.array(what)
        if kind not in SCALARS:
            raise self.fail(f"{what} has the unknown value type {kind}: the header is damaged, or of a newer format")
        value = self.scalar(SCALARS[kind], what)
        return bool(value) if kind == BOOL else value

    def array(self, what: str) -> Any:
        kind, count = self.scalar("I", what), self.scalar("Q", what)
        if kind == STRING:
            start = self.at
            self.need(8 * count, what)
            for index in range(count):
                length = self.scalar("Q", f"{what}[{index}]")
                self.need(length, f"{what}[{index}]")
                self.at += length
            return Texts(self.data, start, count)
        if kind == ARRAY:
            raise self.fail(f"{what} is an array of arrays, which no key of the format is")
        if kind not in SCALARS:
            raise self.fail(f"{what} holds the unknown value type {kind}: the header is damaged, or of a newer format")
        letter = SCALARS[kind]
        size = struct.calcsize("<" + letter) * count
        self.need(size, what)
        values = struct.unpack_from(f"<{count}{letter}", self.data, self.at)
        self.at += size
        return [bool(value) for value in values] if kind == BOOL else list(values)


def read_header(path: Path) -> Header:
    """Metadata and tensor table of a GGUF file (version 2 or 3, little-endian). CheckpointError names what is damaged."""
    where = path.name
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{where}: cannot be read ({error})") from None
    reader = _Reader(data, where)
    reader.need(24, "the first 24 bytes")
    if data[:4] != b"GGUF":
        raise CheckpointError(f"{where}: not a GGUF file (it begins with {bytes(data[:4])!r})")
    reader.at = 4
    version = reader.scalar("I", "the version")
    if version not in (2, 3):
        hint = "a big-endian file; convert it" if version in (2 << 24, 3 << 24) else "2 and 3 are known"
        raise CheckpointError(f"{where}: GGUF version {version} is not supported ({hint})")
    tensors, keys = reader.scalar("Q", "the tensor count"), reader.scalar("Q", "the key count")
    metadata: dict[str, Any] = {}
    for index in range(keys):
        name = reader.name(f"the name of key {index}")
        if name in metadata:
            raise reader.fail(f"the key {name} is there twice")
        metadata[name] = reader.value(reader.scalar("I", name), name)
    return Header(metadata=metadata, entries=_table(reader, tensors, metadata), data=data)


def _table(reader: _Reader, count: int, metadata: Mapping[str, Any]) -> dict[str, Entry]:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise reader.fail(f"general.alignment = {short(alignment)}; a power of two is wanted")
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for index in range(count):
        name = reader.name(f"the name of tensor {index}")
        dimensions = reader.scalar("I", f"tensor {name}")
        if name in found:
            raise reader.fail(f"tensor {name} is there twice")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise reader.fail(f"tensor {name} has {dimensions} dimensions; 1 to {MOST_DIMENSIONS} are allowed")
        shape = tuple(reader.scalar("Q", f"tensor {name}") for _ in range(dimensions))[::-1]
        found[name] = shape, reader.scalar("I", f"tensor {name}"), reader.scalar("Q", f"tensor {name}")
    start = -(-reader.at // alignment) * alignment
    entries = {name: _entry(reader, name, *row, start, alignment) for name, row in found.items()}
    end, last = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: item[1].offset):
        if entry.offset < end:
            raise reader.fail(f"tensor {name} lies over tensor {last}: the tensor table is damaged")
        end, last = entry.offset + entry.bytes, name
    return entries


def _entry(reader: _Reader, name: str, shape: tuple[int, ...], kind: int, offset: int, start: int, alignment: int) -> Entry:
    try:
        storage = GGMLQuantizationType(kind)
    except ValueError:
        raise reader.fail(f"tensor {name} has the unknown storage type {kind}") from None
    block, size = GGML_QUANT_SIZES[storage]
    elements = 1
    for length in shape:
        elements *= length
    if not elements or shape[-1] % block:
        raise reader.fail(f"tensor {name} {list(shape)} cannot be {storage.name}: rows are whole blocks of {block} values")
    if offset % alignment:
        raise reader.fail(f"tensor {name} begins at {offset}, no multiple of the alignment {alignment}")
    length = elements // block * size
    if start + offset + length > reader.size:
        wanted = start + offset + length
        raise reader.fail(f"the file ends inside tensor {name} ({reader.size:,} bytes; {wanted:,} wanted): is the download whole?")
    return Entry(shape=shape, type=storage, offset=start + offset, bytes=length)
