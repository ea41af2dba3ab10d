"""Compiles the kernels once for this processor and keeps the result in the cache folder; finds it again by a hash of everything."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import platformdirs

from homestretch.engine.errors import SetupError

KERNELS = Path(__file__).parent / "kernels"
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++20", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-Wno-psabi")
"""No contraction: a product is fused with a sum only where the source says so, else bits would depend on the optimiser."""
NATIVE = ("-march=native",)
TIMEOUT_S = 300


def compiler() -> str | None:
    """Path of the first C++ compiler found."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


@cache
def processor() -> str:
    """What the compiled code depends on: the machine type and the instruction sets that the processor names."""
    flags = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                flags = line.partition(":")[2]
                break
    except OSError:
        flags = platform.processor()
    return f"{platform.machine()} {' '.join(sorted(flags.split()))}"


def sources() -> tuple[Path, ...]:
    """The kernel files, sorted."""
    return tuple(sorted((*KERNELS.glob("*.hpp"), *KERNELS.glob("*.cpp"))))


def cached(compiler_path: str, target: tuple[str, ...] = NATIVE, folder: Path | None = None) -> Path:
    """Where the library for this source, compiler, processor and target is kept, whether or not it is there yet."""
    version = subprocess.run([compiler_path, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    digest = hashlib.sha256("\0".join((version, processor(), *FLAGS, *target)).encode())
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    where = folder or Path(platformdirs.user_cache_dir("homestretch")) / "kernels"
    return where / f"cpu-{digest.hexdigest()[:20]}.so"


def library(target: tuple[str, ...] = NATIVE, folder: Path | None = None) -> Path:
    """The compiled kernels, compiled now if need be (a few seconds, said on stderr). SetupError without a working compiler."""
    found = compiler()
    if found is None:
        raise SetupError(
            f"the cpu backend needs a C++ compiler once and found none ({', '.join(COMPILERS)}); "
            "install g++, or use --backend reference"
        )
    path = cached(found, target, folder)
    if path.is_file():
        return path
    started = time.monotonic()
    sys.stderr.write(f"Compiling the CPU kernels for this processor with {Path(found).name}, once ...\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        command = [found, *FLAGS, *target, str(KERNELS / "engine.cpp"), "-o", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
            raise SetupError(f"{Path(found).name} could not compile the CPU kernels: {lines[0]}; use --backend reference")
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    sys.stderr.write(f"Compiled in {time.monotonic() - started:.1f} s, kept as {path}\n")
    return path
