"""Pulled files on disk: a record of size and hash beside each, whole files only, one puller at a time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from homestretch.engine.errors import SetupError

Report = Callable[[str, int, int | None], None]
"""Told what is being done, bytes done, and bytes in all where they are known."""

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """Where a model lies. sha256 and bytes are those of a single pulled file; fetched False: it was here already."""

    path: Path
    source: str
    fetched: bool
    sha256: str | None = None
    bytes: int | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was true of a file when it was checked last."""

    source: str
    sha256: str
    bytes: int
    mtime_ns: int


def silent(what: str, done: int, total: int | None) -> None:
    """A report that nobody reads."""


def sha256_of(path: Path, report: Report = silent) -> str:
    """The SHA-256 of a file, in hex."""
    total, done, digest = path.stat().st_size, 0, hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            digest.update(part)
            done += len(part)
            report(f"checking {path.name}", done, total)
    return digest.hexdigest()


def copy_whole(source: IO[bytes], target: Path, total: int, report: Report) -> str:
    """Copy a stream into `target`, which appears only when it is whole; returns its SHA-256."""
    room = shutil.disk_usage(target.parent).free
    if total > room:
        raise SetupError(f"{target.parent} has {room / 1e9:.1f} GB free; {target.name} needs {total / 1e9:.1f} GB")
    partial, digest, done = target.with_name(target.name + ".partial"), hashlib.sha256(), 0
    with partial.open("wb") as file:
        while part := source.read(CHUNK):
            file.write(part)
            digest.update(part)
            done += len(part)
            report(f"unpacking {target.name}", done, total)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, target)
    return digest.hexdigest()


def write_record(path: Path, source: str, digest: str) -> Record:
    """Remember a checked file."""
    stat = path.stat()
    record = Record(source=source, sha256=digest, bytes=stat.st_size, mtime_ns=stat.st_mtime_ns)
    partial = _record_path(path).with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    os.replace(partial, _record_path(path))
    return record


def find_record(path: Path, report: Report = silent) -> Record | None:
    """The record of a file that is still what was recorded: same size and time of change, else its hash is taken again."""
    try:
        record = msgspec.json.decode(_record_path(path).read_bytes(), type=Record)
        stat = path.stat()
    except (OSError, msgspec.MsgspecError):
        return None
    if stat.st_size != record.bytes:
        return None
    if stat.st_mtime_ns != record.mtime_ns:
        return write_record(path, record.source, record.sha256) if sha256_of(path, report) == record.sha256 else None
    return record


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


@contextlib.contextmanager
def alone(folder: Path, report: Report) -> Iterator[None]:
    """One puller at a time in `folder`, across processes; waits for the other one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise SetupError(f"{folder} cannot be written to ({error.strerror}); choose another cache folder with --cache") from None
    with file:
        try:
            import fcntl
        except ModuleNotFoundError:  # no such locks on Windows: two pullers then do the same work twice, and both end whole
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another pull of the same model", 0, None)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
