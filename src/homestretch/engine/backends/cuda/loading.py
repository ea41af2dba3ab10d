"""From a checkpoint to executors: weights packed once and shared, programs lowered for rows and for tiles."""

from __future__ import annotations

from typing import TypeVar

import torch

from homestretch.engine.backends.cuda.executor import Executor, Matrices
from homestretch.engine.backends.cuda.lower import Lowered
from homestretch.engine.backends.cuda.memory import Store
from homestretch.engine.backends.cuda.rows import Rows
from homestretch.engine.backends.cuda.sizes import lower
from homestretch.engine.backends.cuda.tiles import Tiles
from homestretch.engine.backends.cuda.weights import Dense, Packed, pack
from homestretch.engine.checkpoint import Affine, Checkpoint
from homestretch.engine.checkpoint.shelf import read_weight
from homestretch.engine.errors import SetupError
from homestretch.engine.program import Embed, Experts, Head, Linear, Model, Program, Router

E = TypeVar("E", bound=Executor)

MATRICES = (Linear, Head, Embed, Experts)


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
