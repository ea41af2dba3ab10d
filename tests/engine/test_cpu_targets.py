"""The kernels built for other processors: each target's own code against plain loops, and a whole model on the x86 ones."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from cpu_worlds import difference, drawn, loaded, read, step, tiny_llama

from homestretch.engine.backends.cpu import build

CHECK = Path(__file__).with_name("cpu_kernels_check.cpp")
X86 = {"AVX2": ("-march=x86-64-v3",), "AVX-512": ("-march=x86-64-v4",), "portable": ("-march=x86-64",), "this one": build.NATIVE}
ARM = {"NEON": ("-march=armv8-a",), "NEON dotprod": ("-march=armv8.2-a+dotprod",)}
NEEDED = {"AVX2": "avx2", "AVX-512": "avx512bw"}


def compile_check(compiler: str, target: tuple[str, ...], folder: Path, *more: str) -> Path:
    out = folder / "check"
    flags = [flag for flag in build.FLAGS if flag not in ("-shared", "-O3")]
    command = [compiler, *flags, "-O2", *target, *more, "-I", str(build.KERNELS), str(CHECK), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def skip_unless_runs(name: str) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("an x86 target on another machine")
    if NEEDED.get(name, "") not in build.processor():
        pytest.skip(f"this processor has no {NEEDED[name]}")


@pytest.mark.parametrize("name", X86)
def test_x86_kernels_agree_with_plain_loops(name: str, tmp_path: Path) -> None:
    skip_unless_runs(name)
    compiler = build.compiler()
    assert compiler
    done = subprocess.run([compile_check(compiler, X86[name], tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", [pytest.param("NEON", marks=pytest.mark.long), "NEON dotprod"])
def test_arm_kernels_agree_with_plain_loops(name: str, tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64-static")
    if not compiler or not emulator:
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user-static")
    program = compile_check(compiler, ARM[name], tmp_path, "-static")
    done = subprocess.run([emulator, "-cpu", "max", str(program)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["AVX2", pytest.param("portable", marks=pytest.mark.long)])
def test_a_model_on_another_x86_target_agrees_with_this_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_unless_runs(name)
    checkpoint, tokens = tiny_llama(6), [(37 * i + 11) % 320 for i in range(140)]
    made = []
    for target in (build.NATIVE, X86[name]):
        library = build.library(target, None if target is build.NATIVE else tmp_path)
        monkeypatch.setattr(build, "library", lambda library=library: library)
        backend = loaded("cpu", checkpoint, threads=2)
        monkeypatch.undo()
        stream = backend.open(None)
        rows = read(backend, stream, tokens, drawn(1, 140, 320))
        rows += step(backend, stream, 140, tokens[:3], [drawn(1, 141 + i, 320) for i in range(3)], 0)
        made.append(rows)
    assert max(difference(a, b) for a, b in zip(*made, strict=True)) < 2e-2


def test_kernels_are_compiled_once_and_found_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = build.library(("-O0",), tmp_path)
    assert "Compiling" in capfd.readouterr().err
    assert build.library(("-O0",), tmp_path) == first
    assert capfd.readouterr().err == ""
    assert build.cached(str(build.compiler()), ("-O1",), tmp_path) != first


def test_without_a_compiler_the_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from homestretch.engine.backends.cpu import Backend
    from homestretch.engine.errors import SetupError

    monkeypatch.setattr(build, "compiler", lambda: None)
    assert "--backend reference" in str(Backend.refusal())
    with pytest.raises(SetupError, match="--backend reference"):
        build.library()
    assert "leave --device out" in str(Backend.refusal("cuda:0"))
