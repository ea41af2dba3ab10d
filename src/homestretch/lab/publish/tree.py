"""The raw tree of one run: every file through the filter, written or held back, with original and published hashes."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from homestretch.lab.publish.filter import MAX_BYTES, Filter, Judged, refused_name
from homestretch.lab.records import sha256_of
from homestretch.lab.types import FileEntry, Published

MAX_FILES = 1000
OWN = "published.json"


def regular_files(folder: Path) -> tuple[list[tuple[str, os.stat_result]], bool]:
    """Name and lstat of what lies below folder and is no folder, sorted, links not followed; True: more than MAX_FILES."""
    stack = [(folder, "")]
    found: list[tuple[str, os.stat_result]] = []
    while stack:
        place, prefix = stack.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_dir(follow_symlinks=False) and len(name.split("/")) < 8:
                    stack.append((Path(entry.path), name + "/"))
                else:
                    found.append((name, entry.stat(follow_symlinks=False)))
                if len(found) > MAX_FILES:
                    return sorted(found, key=lambda item: item[0])[:MAX_FILES], True
    return sorted(found, key=lambda item: item[0]), False


def printable(name: str) -> str:
    """A file name that may be printed anywhere."""
    return re.sub(r"[^A-Za-z0-9._/-]", "?", name)[:120]


def held(name: str, size: int, digest: str, reason: str) -> Judged:
    return Judged(entry=FileEntry(name=name, bytes=size, sha256=digest, state="held", reason=reason), data=None)


def judge_file(folder: Path, name: str, found: os.stat_result, what: Filter) -> Judged:
    """What becomes of one file of a run folder. Nothing but regular files is opened."""
    if stat.S_ISLNK(found.st_mode):
        return held(printable(what.scrub(name)), 0, "", "a symbolic link; only the files themselves are published")
    if not stat.S_ISREG(found.st_mode):
        return held(printable(what.scrub(name)), 0, "", "not a regular file")
    path = folder / name
    try:
        if found.st_size > MAX_BYTES:
            return held(
                printable(name), found.st_size, sha256_of(path), f"larger than the {MAX_BYTES:,} bytes that the filter reads"
            )
        data = path.read_bytes()
    except OSError as error:
        return held(printable(name), found.st_size, "", f"it cannot be read ({error.strerror})")
    if refused_name(name):
        digest = hashlib.sha256(data).hexdigest()
        return held(printable(what.scrub(name)), found.st_size, digest, refused_name(name))
    judged = what.judge(name, data)
    if what.remains(name):
        return held("a file with a private name", found.st_size, judged.entry.sha256, judged.entry.reason)
    return judged


def filter_run(folder: Path, what: Filter) -> Iterator[Judged]:
    """Every file of a run folder, judged. A `published.json` of an earlier pass keeps its original sizes and hashes."""
    before = earlier(folder)
    seen: set[str] = set()
    files, more = regular_files(folder)
    if more:
        yield held("(further files)", 0, "", f"the folder holds more than {MAX_FILES:,} files; the others were not looked at")
    for name, found in files:
        if name == OWN:
            continue
        judged = judge_file(folder, name, found, what)
        seen.add(name)
        old = before.get(name)
        if old is not None and judged.data is not None and old.published_sha256 == judged.entry.sha256:
            entry = msgspec.structs.replace(
                judged.entry,
                bytes=old.bytes,
                sha256=old.sha256,
                state="changed" if judged.entry.published_sha256 != old.sha256 else "published",
                replaced={**old.replaced, **judged.entry.replaced},
            )
            judged = Judged(entry=entry, data=judged.data, changes=judged.changes)
        yield judged
    for name, old in before.items():
        if name not in seen and old.state == "held":
            yield Judged(
                entry=msgspec.structs.replace(old, name=printable(what.scrub(old.name)), reason=what.scrub(old.reason)), data=None
            )


def earlier(folder: Path) -> dict[str, FileEntry]:
    """Entries of the `published.json` already in the folder, {} when there is none or it cannot be read."""
    path = folder / OWN
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
            return {}
        return {entry.name: entry for entry in msgspec.json.decode(path.read_bytes(), type=Published).files}
    except (OSError, msgspec.MsgspecError, RecursionError):
        return {}


def write_run(folder: Path, out: Path, what: Filter) -> list[FileEntry]:
    """Filter a run folder into `out`, touching nothing outside it. Returns the entries, which `out/published.json` holds too."""
    entries = []
    out.mkdir(parents=True, exist_ok=True)
    for judged in filter_run(folder, what):
        entries.append(judged.entry)
        if judged.data is not None:
            target = out / judged.entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(judged.data)
    record = Published(run=what.scrub(folder.name), files=entries)
    (out / OWN).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    return entries
