"""From a checkpoint to executors: weights packed once and shared, programs lowered for rows and for tiles."""

from __future__ import annotations

from typing import TypeVar

import psutil
import torch

from homestretch.engine.backends.cuda.executor import LEAST_GROUP, Executor, Matrices
from homestretch.engine.backends.cuda.lower import Lowered, Lowering
from homestretch.engine.backends.cuda.memory import ROWS, Store
from homestretch.engine.backends.cuda.rows import PARTS, Rows
from homestretch.engine.backends.cuda.tiles import Tiles
from homestretch.engine.backends.cuda.weights import Dense, Packed, pack
from homestretch.engine.checkpoint import Affine, Checkpoint
from homestretch.engine.checkpoint.shelf import read_weight
from homestretch.engine.errors import SetupError
from homestretch.engine.program import Embed, Experts, Head, Linear, Model, Program, Router, Slot, Ssm
from homestretch.engine.types import Limits

E = TypeVar("E", bound=Executor)

MATRICES = (Linear, Head, Embed, Experts)

OVERHEAD = 1 << 29
"""Bytes for the kernels' code, captured graphs and what the allocator cannot use."""


class Loaded:
    """The matrices of a model on the device, and executors over them."""

    def __init__(self, model: Model, checkpoint: Checkpoint, store: Store, compute: torch.dtype) -> None:
        self._model, self._checkpoint, self._store, self._compute = model, checkpoint, store, compute
        self._matrices: dict[str, Packed | Dense] = {}
        self._lowered: dict[str, Lowered] = {}

    def rows(self, name: str, program: Program, capacity: int) -> Rows:
        """An executor for windows."""
        rows = self._executor(Rows, name, program, capacity)
        rows.prepare()
        return rows

    def tiles(self, name: str, program: Program, capacity: int) -> Tiles:
        """An executor for prompt pieces."""
        return self._executor(Tiles, name, program, capacity)

    def _executor(self, kind: type[E], name: str, program: Program, capacity: int) -> E:
        lowered = self._lower(name, program)
        return kind(
            name=name,
            program=program,
            lowered=lowered,
            matrices=self._names(),
            store=self._store,
            capacity=capacity,
            compute=self._compute,
        )

    def _names(self) -> Matrices:
        """Every weight name, shared ones under their own name too."""
        shared = {name: spec.shared_with for name, spec in self._model.weights.items() if spec.shared_with}
        return self._matrices | {name: self._matrices[target] for name, target in shared.items() if target in self._matrices}

    def _lower(self, name: str, program: Program) -> Lowered:
        if name not in self._lowered:
            specs, lowered = self._model.weights, lower(self._model, program)
            for key, names in lowered.joined.items():
                self._take(key, names)
            gates = {op.weights[0] for op in program.ops if isinstance(op.attrs, Router)}
            matrices = {key for op in program.ops if isinstance(op.attrs, MATRICES) for key in op.weights}
            joined = {one for names in lowered.joined.values() for one in names}
            for op in program.ops:
                for key in op.weights:
                    if key not in joined:
                        name = specs[key].shared_with or key
                        self._take(name, (name,), dense=key not in matrices, exact=key in gates)
            self._lowered[name] = lowered
        return self._lowered[name]

    def _take(self, key: str, names: tuple[str, ...], *, dense: bool = False, exact: bool = False) -> None:
        """Read weights once and lay them out. exact: float32 whatever the file holds, so that a router's products are."""
        if key in self._matrices:
            return
        parts = [read_weight(self._checkpoint, name, self._model.weights[name]) for name in names]
        packed = [part for part in parts if isinstance(part, Affine)]
        if len(packed) == len(parts):
            if dense:
                raise SetupError(f"{names[0]} is quantized, which the cuda backend reads only for matrices")
            self._matrices[key] = pack(packed, self._store.device)
            return
        tensor = parts[0]
        if isinstance(tensor, Affine) or len(parts) > 1:
            raise SetupError(f"{', '.join(names)} mix quantized and dense weights")
        if tensor.dim() == 3:
            raise SetupError(f"the experts {names[0]} are not quantized; the cuda backend reads them in packed groups")
        wide = tensor.to(torch.float32) if exact or self._compute == torch.float32 else tensor
        self._matrices[key] = Dense(tensor=wide.to(self._store.device).contiguous())


def lower(model: Model, program: Program) -> Lowered:
    """A program of the model as launches, from the shapes of its weights alone."""
    specs = model.weights
    joinable = {key: (s.bits, s.group, s.dtype) for key, s in specs.items() if s.bits and len(s.shape) == 2 and not s.shared_with}
    groups = {key: (specs[s.shared_with] if s.shared_with else s).group for key, s in specs.items()}
    return Lowering(program, {key: s.shape for key, s in specs.items()}, groups, joinable).run(model.hidden)


def work_bytes(model: Model, streams: int, piece: int) -> int:
    """Device memory beside weights, states and pages: what `streams` windows and a prompt piece compute in, graphs and code."""
    total = OVERHEAD
    for program in (model.main, model.head):
        if program is None:
            continue
        lowered = lower(model, program)
        row = 4 * sum(lowered.buffers) + sum(2 * width + 4 * (width // LEAST_GROUP) for width, _ in lowered.casts)
        inner, outer = (
            max((model.weights[op.weights[at]].shape[-2] for op in program.ops if isinstance(op.attrs, Experts)), default=0)
            for at in (0, 1)
        )
        top = max((op.attrs.top for op in program.ops if isinstance(op.attrs, Router)), default=0)
        row += top * (4 * outer + 6 * inner + 4 * (inner // LEAST_GROUP))
        rows = streams * ROWS if program is model.main else ROWS
        total += rows * row + piece * (row - 4 * model.vocab) + 4 * PARTS
    return total + 3 * 4 * streams * ROWS * model.vocab


def saved_width(slot: Slot, program: Program) -> int:
    """Elements a row that a recurrent slot's window inputs take."""
    if slot.kind == "conv":
        return 2 * slot.shape[1]
    if slot.kind == "ssm":
        return next((op.attrs.heads for op in program.ops if op.slot == slot.name and isinstance(op.attrs, Ssm)), 0)
    return 0


def available(limits: Limits) -> int:
    """Bytes that may be used: what the person said, else what the device has free (of unified memory: what the machine has)."""
    if limits.memory_bytes is not None:
        return limits.memory_bytes
    machine = int(psutil.virtual_memory().available)
    if limits.device == "cpu":
        return machine
    free = int(torch.cuda.mem_get_info(limits.device or None)[0])
    unified = bool(getattr(torch.cuda.get_device_properties(limits.device or None), "is_integrated", False))
    return machine if unified else free
