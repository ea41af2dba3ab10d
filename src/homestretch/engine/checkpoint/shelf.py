"""The weights a family takes from a checkpoint: missing, misshapen and left-over ones are refused by name, before any is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from homestretch.engine.checkpoint import Checkpoint, Weight
from homestretch.engine.errors import CheckpointError
from homestretch.engine.program import WeightSpec


class Shelf:
    """Hands out names of weights and remembers every fault, so that `finish` can name them all in one line."""

    def __init__(self, specs: Mapping[str, WeightSpec], *, where: str) -> None:
        self._specs, self._where = specs, where
        self._taken: dict[str, WeightSpec] = {}
        self._faults: list[str] = []

    def has(self, name: str) -> bool:
        """True when the files hold a weight of this name."""
        return name in self._specs

    def take(self, name: str, *shape: int) -> str:
        """The weight `name`, which must have this shape; returns the name, ready for an operation."""
        spec = self._specs.get(name)
        if spec is None:
            self._faults.append(f"{name} {list(shape)} is missing")
            return name
        if spec.shape != shape:
            self._faults.append(f"{name} is {list(spec.shape)}, the config asks for {list(shape)}")
        self._taken[name] = spec
        return name

    def optional(self, name: str, *shape: int) -> tuple[str, ...]:
        """The weight's name in a tuple, or an empty tuple when the files do not hold it."""
        return (self.take(name, *shape),) if self.has(name) else ()

    def share(self, name: str, of: str) -> str:
        """A weight that uses the bytes of one taken before (tied embeddings); if the files hold it too, `finish` must spare it."""
        spec = self._taken.get(of)
        if spec is not None:
            self._taken[name] = replace(spec, shared_with=of)
        return name

    def constant(self, name: str, values: Sequence[float]) -> str:
        """A small vector that follows from the config and is in no file; backends get it from `read_weight`."""
        self._taken[name] = WeightSpec(shape=(len(values),), dtype="float32", values=tuple(values))
        return name

    def finish(self, *, spare: frozenset[str] = frozenset()) -> Mapping[str, WeightSpec]:
        """Every weight taken. CheckpointError for faults and for tensors that nothing took; `spare` names may stay."""
        own = {name for name, spec in self._taken.items() if spec.shared_with is None and spec.values is None}
        left = sorted(set(self._specs) - own - spare)
        faults = self._faults + [f"{name} {list(self._specs[name].shape)} belongs to no part of this model" for name in left]
        if faults:
            more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
            raise CheckpointError(f"{self._where}: tensor {'; '.join(faults[:3])}{more}")
        return self._taken


def read_weight(checkpoint: Checkpoint, name: str, spec: WeightSpec) -> Weight:
    """One weight of a Model: from the files, or the constant that the family computed. Follow `shared_with` before calling."""
    if spec.values is not None:
        return torch.tensor(spec.values, dtype=torch.float32)
    return checkpoint.read(name)
