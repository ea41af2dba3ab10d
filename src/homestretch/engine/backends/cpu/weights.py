"""Hands a checkpoint's weights to the engine, repacked there, each once however many operations read it."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from homestretch.engine.backends.cpu import native
from homestretch.engine.checkpoint import Affine, Checkpoint, Weight
from homestretch.engine.checkpoint.affine import dequantize, quantize
from homestretch.engine.errors import SetupError
from homestretch.engine.program import Model, WeightSpec

SCALES = {torch.float16: native.SCALES_HALF, torch.bfloat16: native.SCALES_BF16, torch.float32: native.SCALES_F32}
QUIET_S = 2.0
"""Loading that takes longer says how far it is."""


class Weights:
    """matrix(name) and vector(name): the engine's numbers; memory is that of the packed form."""

    def __init__(self, library: ctypes.CDLL, engine: int, model: Model, checkpoint: Checkpoint, head_bits: int | None) -> None:
        self.library, self.engine, self.model, self.checkpoint, self.head_bits = library, engine, model, checkpoint, head_bits
        self.bytes = 0
        self._matrices: dict[str, int] = {}
        self._vectors: dict[str, int] = {}
        self._started = self._told = time.monotonic()
        self._total = sum(spec.shared_with is None for spec in model.weights.values())

    def matrix(self, name: str, *, wide: bool = False) -> int:
        """(out, in) or stacked (experts, out, in), packed. wide: as float32 in any case."""
        return self._once(self._matrices, name, partial(self._matrix, wide=wide))

    def vector(self, name: str) -> int:
        """float32, flattened."""
        return self._once(self._vectors, name, self._vector)

    def made(self, name: str, values: torch.Tensor) -> int:
        """A vector worked out from weight `name`, float32, flattened."""
        if name not in self._vectors:
            self._vectors[name] = self._put(values)
        return self._vectors[name]

    def dense(self, name: str) -> torch.Tensor:
        """float32, as it is."""
        weight = self.checkpoint.read(self._source(name))
        return dequantize(weight) if isinstance(weight, Affine) else weight.to(torch.float32)

    def _source(self, name: str) -> str:
        return self.model.weights[name].shared_with or name

    def _once(self, known: dict[str, int], name: str, make: Callable[[str], int]) -> int:
        source = self._source(name)
        if source not in known:
            known[source] = make(source)
            self._tell(len(self._matrices) + len(self._vectors))
        return known[source]

    def _tell(self, done: int) -> None:
        now = time.monotonic()
        if now - self._told > QUIET_S:
            self._told = now
            left = (now - self._started) / done * max(0, self._total - done)
            sys.stderr.write(f"Loading weights: {done} of {self._total}, about {left:.0f} s left\n")

    def _vector(self, name: str) -> int:
        return self._put(self.dense(name))

    def _put(self, wide: torch.Tensor) -> int:
        values = wide.to(torch.float32).reshape(-1).contiguous()
        return int(self.library.hs_vector(self.engine, values.data_ptr(), values.numel()))

    def _matrix(self, name: str, *, wide: bool) -> int:
        weight = self.dense(name) if wide else self.checkpoint.read(name)
        if self.head_bits and isinstance(weight, Affine) and name in self._head_names() and weight.bits > self.head_bits:
            weight = quantize(dequantize(weight), bits=self.head_bits, group=32, dtype=torch.float16)
        shape = self.model.weights[name].shape
        experts, out, width = (1, *shape) if len(shape) == 2 else shape
        storage, group, scales = form(weight)
        number = int(self.library.hs_matrix(self.engine, storage, group, scales, experts, out, width))
        if number < 0:
            raise SetupError(f"no memory for the weight {name} {list(shape)}")
        if isinstance(weight, Affine):
            words, factors, offsets = weight.words.contiguous(), *_scales(weight)
            self.library.hs_fill_affine(self.engine, number, words.data_ptr(), weight.bits, factors.data_ptr(), offsets.data_ptr())
        else:
            values = weight.to(torch.bfloat16 if storage == native.BF16 else torch.float32).contiguous()
            self.library.hs_fill_dense(self.engine, number, values.data_ptr())
        self.bytes += int(self.library.hs_matrix_bytes(self.engine, number))
        return number

    def _head_names(self) -> set[str]:
        return {self._source(op.weights[0]) for op in self.model.main.ops if op.kind.__name__ == "Head"}


def form(weight: Weight) -> tuple[int, int, int]:
    """(storage, group, scale type) of a weight in the engine. 2 and 3 bits lie in 4, 5 and 6 in 8; float16 is held as float32."""
    if isinstance(weight, Affine):
        return (native.AFFINE4 if weight.bits <= 4 else native.AFFINE8), weight.group, SCALES[_scales(weight)[0].dtype]
    return (native.BF16 if weight.dtype == torch.bfloat16 else native.F32), 0, 0


def _scales(weight: Affine) -> tuple[torch.Tensor, torch.Tensor]:
    same = weight.scales.dtype == weight.biases.dtype and weight.scales.dtype in SCALES
    if same:
        return weight.scales.contiguous(), weight.biases.contiguous()
    return weight.scales.to(torch.float32).contiguous(), weight.biases.to(torch.float32).contiguous()


def packed_bytes(spec: WeightSpec) -> int:
    """Bytes of a weight as the engine holds it; vectors are small and counted as float32."""
    count = 1
    for size in spec.shape:
        count *= size
    if len(spec.shape) < 2:
        return count * 4
    rows = -(-spec.shape[-2] // 16) * 16 * (count // (spec.shape[-1] * spec.shape[-2]))
    if spec.bits:
        scale = 8 if spec.dtype == "float32" else 4
        return rows * spec.shape[-1] * (4 if spec.bits <= 4 else 8) // 8 + rows * (spec.shape[-1] // spec.group) * scale
    return rows * spec.shape[-1] * (2 if spec.dtype == "bfloat16" else 4)
