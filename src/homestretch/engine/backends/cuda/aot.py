"""Compiles every kernel to machine code without a GPU and tabulates registers, spills and shared memory for each target.

    python -m homestretch.engine.backends.cuda.aot [--json]

Shapes are those of the 30B-A3B hybrid (hidden 2,688, 4-bit groups of 64) and of a llama with 8-bit embeddings. The exit status is 1
when a kernel does not compile, needs more shared memory than the smallest device has, or a window kernel spills registers.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from homestretch.engine.backends.cuda.weights import stages

LEAST_SHARED = 99 << 10
"""Bytes of shared memory that a block may have on every device of the backend (sm_86, sm_120, sm_121: 99 KiB)."""

TARGETS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a", 120: "sm_120a", 121: "sm_121a"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kernel with the types and constants of one use. window: part of a decode step, where a spill is a fault."""

    module: str
    kernel: str
    types: str
    constants: dict[str, Any]
    window: bool = True
    label: str = ""
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one kernel takes on one target."""

    kernel: str
    target: str
    window: bool
    registers: int = 0
    spills: int = 0
    shared_bytes: int = 0
    error: str = field(default="")


AFFINE = {"K": 2688, "BN": 32, "GROUP": 64, "BITS": 4}
RECURRENT = {"HEADS": 64, "P": 64, "BP": 32, "GROUPS": 8, "N": 128, "BN": 128}
ATTENTION = {"HEADS": 32, "KV": 2, "D": 128, "BD": 128, "PAGE": 128}
NORM = {"K": 2688, "BK": 4096, "GROUP": 64, "PREPARE": True, "PLAIN": True}
VOCAB = {"BLOCK": 2048, "BB": 64}

CASES = (
    Case(
        module="affine",
        kernel="affine_rows",
        types="x f p h h f i i i i",
        constants={**AFFINE, "STAGES": stages(4, 64, wide=False)},
    ),
    Case(
        module="affine",
        kernel="affine_rows",
        types="x f p h h f i i i i",
        constants={**AFFINE, "BN": 64, "BITS": 8, "GROUP": 32, "K": 576, "STAGES": stages(8, 32, wide=False)},
        label="8-bit",
    ),
    Case(
        module="affine",
        kernel="affine_rows",
        types="x f p h h f i i i i",
        constants={**AFFINE, "BITS": 5, "STAGES": stages(5, 64, wide=False)},
        label="5-bit",
    ),
    Case(
        module="affine",
        kernel="affine_rows",
        types="x f p h h f i i i i",
        constants={**AFFINE, "BN": 64, "GROUP": 128, "BITS": 6, "STAGES": stages(6, 128, wide=False)},
        label="6-bit",
    ),
    Case(
        module="affine",
        kernel="affine_pairs",
        types="x f q p h h f i i i i i",
        constants={**AFFINE, "BLOCKS": 60, "STAGES": stages(4, 64, wide=False)},
    ),
    Case(module="affine", kernel="affine_embed", types="l p h h f", constants={**AFFINE, "BN": 64}),
    Case(
        module="affine",
        kernel="affine_tiles",
        types="x p h h f i i i i",
        constants={**AFFINE, "BM": 64, "BT": 128},
        window=False,
        warps=8,
    ),
    Case(
        module="affine",
        kernel="affine_tiles",
        types="x p h h f i i i i",
        constants={**AFFINE, "BM": 64, "BT": 128, "BITS": 6},
        window=False,
        label="6-bit",
        warps=8,
        stages=stages(6, 64, wide=True),
    ),
    Case(
        module="affine",
        kernel="affine_grouped",
        types="x q q q q p h h f i i i i",
        constants={**AFFINE, "BM": 64, "BT": 128, "BLOCKS": 60},
        window=False,
        warps=8,
    ),
    Case(
        module="dense",
        kernel="dense_rows",
        types="f f f f i i i i i",
        constants={"BN": 16, "BK": 64, "BIAS": False},
        label="fp32",
    ),
    Case(module="dense", kernel="dense_embed", types="l h f i", constants={"BK": 256}),
    Case(module="pointwise", kernel="add_norm", types="f f f h f f x f r", constants={**NORM, "ADD": 2}),
    Case(module="pointwise", kernel="add", types="f f f i", constants={"BK": 512}),
    Case(module="pointwise", kernel="activate", types="f f f x f i i", constants={**NORM, "K": 3712, "KIND": 2}),
    Case(
        module="pointwise",
        kernel="gated_norm",
        types="f f h f x f r i i",
        constants={"K": 4096, "PARTS": 8, "BP": 512, "GROUP": 64, "PREPARE": True, "PLAIN": False},
    ),
    Case(
        module="pointwise",
        kernel="rotary",
        types="f q f f i i",
        constants={"D": 64, "BD": 64, "DIMS": 64, "INTERLEAVED": True},
    ),
    Case(module="pointwise", kernel="combine", types="f f f i", constants={"BK": 256, "TOP": 6}),
    Case(module="router", kernel="scores", types="f f f i i", constants={"K": 2688, "BE": 4, "BK": 512}),
    Case(
        module="router",
        kernel="select",
        types="f f q f r",
        constants={"E": 128, "BE": 128, "TOP": 6, "GROUPS": 1, "TOP_GROUPS": 1, "NORMALISE": True},
    ),
    Case(
        module="attention",
        kernel="store_kv",
        types="f f x q q q i i i",
        constants={key: ATTENTION[key] for key in ("KV", "D", "BD", "PAGE")},
    ),
    Case(
        module="attention",
        kernel="attend_rows",
        types="f x q q q q f f r i i i",
        constants={**ATTENTION, "BH": 16, "CHUNK": 512, "BLOCK": 64},
    ),
    Case(
        module="attention",
        kernel="merge_rows",
        types="f f q q q f i",
        constants={**{key: ATTENTION[key] for key in ("HEADS", "KV", "D", "BD")}, "BH": 16, "CHUNK": 512},
    ),
    Case(
        module="attention",
        kernel="attend_tiles",
        types="f x q f r i i i i",
        constants={**ATTENTION, "BQ": 64, "BLOCK": 64},
        window=False,
    ),
    Case(
        module="recurrent",
        kernel="conv_rows",
        types="f h h f f f q q q q i i",
        constants={"C": 6144, "TAPS": 4, "BC": 128, "BT": 4, "MOST": 16},
    ),
    Case(
        module="recurrent",
        kernel="ssm_rows",
        types="f f f f f f f f f q q q q i r r i",
        constants={**RECURRENT, "BP": 16, "MOST": 16},
    ),
    Case(
        module="recurrent",
        kernel="conv_tiles",
        types="f h h f f i i",
        constants={"C": 6144, "TAPS": 4, "BT": 32, "BC": 64},
        window=False,
    ),
    Case(
        module="recurrent",
        kernel="ssd_tiles",
        types="f f f f f f f i i r r",
        constants={**RECURRENT, "Q": 32, "NARROW": True},
        window=False,
    ),
    Case(module="draws", kernel="peaks", types="f f q i i", constants={"BLOCK": 2048}),
    Case(module="draws", kernel="best_row", types="f q f l i", constants={"BB": 64}),
    Case(module="draws", kernel="tally", types="f f f q q q q l q i i", constants={**VOCAB, "LEVEL": 1, "WITHIN": True}),
    Case(module="draws", kernel="narrow_row", types="l q q f d l q q q", constants={"LEVEL": 2, "BY_MASS": True}),
    Case(module="draws", kernel="count_ties", types="f q q i i", constants={"BLOCK": 2048}),
    Case(module="draws", kernel="noisy_peaks", types="f f f f l q q q f q i i", constants={**VOCAB, "WITHIN": True}),
)
"""types, a letter an argument: pointers x compute type, h bf16, f fp32, d fp64, q int32, l int64, p words; i int32, r fp32."""

LETTERS = {"x": "*bf16", "h": "*bf16", "f": "*fp32", "d": "*fp64", "q": "*i32", "l": "*i64", "p": "*i32", "i": "i32", "r": "fp32"}


def compile_case(case: Case, capability: int) -> Row:
    """Compile one kernel for one target and read what it takes from the machine code."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(f"homestretch.engine.backends.cuda.kernels.{case.module}"), case.kernel)
    letters = case.types.split()
    arguments = [name for name in function.arg_names if name not in case.constants]
    name = f"{case.kernel} {case.label}".strip()
    if len(letters) != len(arguments):
        return Row(
            kernel=name, target=TARGETS[capability], window=case.window, error=f"{len(arguments)} arguments, {len(letters)} types"
        )
    signature = {argument: LETTERS[letter] for argument, letter in zip(arguments, letters, strict=True)}
    signature |= dict.fromkeys(case.constants, "constexpr")
    aligned = {(function.arg_names.index(a),): [["tt.divisibility", 16]] for a in arguments if signature[a].startswith("*")}
    try:
        source = ASTSource(fn=function, signature=signature, constexprs=case.constants, attrs=aligned)
        compiled = triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options={"num_warps": case.warps, "num_stages": case.stages}
        )
    except Exception as error:  # noqa: BLE001 - the compiler raises many kinds; each is a row of the table
        return Row(kernel=name, target=TARGETS[capability], window=case.window, error=str(error).strip().splitlines()[-1][:200])
    registers, spills = resources(compiled.asm["cubin"])
    return Row(
        kernel=name,
        target=TARGETS[capability],
        window=case.window,
        registers=registers,
        spills=spills,
        shared_bytes=int(compiled.metadata.shared),
    )


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack and local memory) of a cubin's kernel, as cuobjdump prints them."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    if not found:
        raise ValueError(f"cuobjdump printed no resources: {text[-200:]}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def rows(capabilities: tuple[int, ...] = tuple(TARGETS)) -> Iterator[Row]:
    """Every kernel on every target."""
    for case in CASES:
        for capability in capabilities:
            yield compile_case(case, capability)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON line at the end instead of a table")
    options = parser.parse_args()
    bad = 0
    table = []
    for row in rows():
        wrong = bool(row.error) or (row.window and row.spills > 0) or row.shared_bytes > LEAST_SHARED
        bad += wrong
        table.append(row)
        if not options.json:
            text = row.error or f"{row.registers:4} registers {row.spills:5} B spilled {row.shared_bytes:7} B shared"
            sys.stdout.write(f"{row.kernel:20} {row.target:8} {text}{'  <- fault' if wrong else ''}\n")
            sys.stdout.flush()
    if options.json:
        sys.stdout.write(msgspec.json.encode(table).decode() + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
