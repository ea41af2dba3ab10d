"""The C interface of the kernels: structures as kernels/engine.hpp has them, functions with their types."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import ClassVar

SEGMENTS = 6
EMBED, MAP, LINEAR, HEAD, ATTEND, CONV, SSM, ROUTE, EXPERTS, TURN = range(10)
PASS, NORM, SILU_MUL, RELU2, GATED, ADD, CONCAT = range(7)
PLAIN, ACT_RELU2, ACT_SILU_MUL = range(3)
FAULT_NAN, FAULT_EMPTY = 1, 2
AFFINE4, AFFINE8, BF16, F32 = 4, 8, 16, 32
SCALES_HALF, SCALES_BF16, SCALES_F32 = range(3)

Fields = list[tuple[str, type]]


class Segment(ctypes.Structure):
    """One weight of a linear step: matrix numbers, columns, -1 for none."""

    _fields_: ClassVar[Fields] = [(name, c_int32) for name in ("weight", "second", "bias", "out", "residual", "act")]


class Step(ctypes.Structure):
    """One step of a compiled program; see kernels/engine.hpp."""

    _fields_: ClassVar[Fields] = [
        *(
            (name, c_int32)
            for name in ("kind", "form", "a", "b", "width", "wide_b", "vector", "groups", "slot", "segments", "out", "pad")
        ),
        ("segment", Segment * SEGMENTS),
        ("p", c_int32 * 16),
        ("f", c_float * 4),
    ]


class Window(ctypes.Structure):
    """Rows of one stream in a call."""

    _fields_: ClassVar[Fields] = [
        ("stream", c_void_p),
        *((name, c_int32) for name in ("start", "rows", "first", "kept", "seen", "pad")),
    ]


class Draw(ctypes.Structure):
    """How one row's token is drawn."""

    _fields_: ClassVar[Fields] = [
        ("seed", c_uint64),
        ("position", c_int64),
        ("temperature", c_float),
        ("inverse", c_float),
        *((name, c_int32) for name in ("top_k", "biases", "logprobs", "pad")),
        ("top_p", c_double),
        ("min_p", c_double),
        ("bias_ids", POINTER(c_int32)),
        ("bias_values", POINTER(c_float)),
        ("mask", c_char_p),
    ]


class Drawn(ctypes.Structure):
    """What a row drew."""

    _fields_: ClassVar[Fields] = [
        *((name, c_int32) for name in ("token", "fault", "top", "pad")),
        ("logprob", c_double),
        ("top_ids", POINTER(c_int32)),
        ("top_values", POINTER(c_double)),
    ]


class Call(ctypes.Structure):
    """One run of a program."""

    _fields_: ClassVar[Fields] = [
        *((name, c_int32) for name in ("program", "rows", "windows", "prompt", "draws", "pad")),
        ("window", POINTER(Window)),
        ("tokens", POINTER(c_int32)),
        ("hidden", c_void_p),
        ("hidden_out", c_void_p),
        ("draw_rows", POINTER(c_int32)),
        ("draw", POINTER(Draw)),
        ("drawn", POINTER(Drawn)),
        ("logits_out", c_void_p),
    ]


_FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "hs_form": (c_char_p, ()),
    "hs_prompt_form": (c_char_p, ()),
    "hs_new": (c_void_p, (c_int32, c_int32)),
    "hs_free": (None, (c_void_p,)),
    "hs_matrix": (c_int32, (c_void_p, c_int32, c_int32, c_int32, c_int32, c_int64, c_int64)),
    "hs_matrix_bytes": (c_int64, (c_void_p, c_int32)),
    "hs_fill_affine": (None, (c_void_p, c_int32, c_void_p, c_int32, c_void_p, c_void_p)),
    "hs_fill_dense": (None, (c_void_p, c_int32, c_void_p)),
    "hs_vector": (c_int32, (c_void_p, c_void_p, c_int64)),
    "hs_turn": (c_int32, (c_void_p, c_int32, c_void_p)),
    "hs_program": (c_int32, (c_void_p, c_int64, c_int32, c_int32, c_int32, c_int32)),
    "hs_program_kv": (c_int32, (c_void_p, c_int32, c_int32, c_int32, c_int32, c_float, c_int64)),
    "hs_program_turn": (c_int32, (c_void_p, c_int32, c_int32)),
    "hs_program_steps": (None, (c_void_p, c_int32, POINTER(Step), c_int64)),
    "hs_trim": (None, ()),
    "hs_state": (None, (c_void_p, c_int64, c_int64)),
    "hs_stream": (c_void_p, (c_void_p,)),
    "hs_stream_state": (c_void_p, (c_void_p,)),
    "hs_stream_free": (None, (c_void_p,)),
    "hs_stream_pages": (None, (c_void_p, c_void_p, c_int64)),
    "hs_run": (None, (c_void_p, POINTER(Call))),
}


@cache
def load(path: Path) -> ctypes.CDLL:
    """The library at `path` with the types of its functions set."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
