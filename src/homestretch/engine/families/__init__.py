"""Model families: one file here per model_type, found by its name, that turns a config into a Model."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Protocol, cast

from homestretch.engine.checkpoint import Checkpoint
from homestretch.engine.checkpoint.keys import short
from homestretch.engine.errors import CheckpointError
from homestretch.engine.program import Model


class Family(Protocol):
    """What a family file holds."""

    TINY: Mapping[str, Any]
    """A small config of this family in its own keys, for tests."""

    def model(self, checkpoint: Checkpoint) -> Model:
        """The Model of a checkpoint. Reads its config with `Keys`; its weights' names and shapes go through `match`."""


def names() -> tuple[str, ...]:
    """The model types that can be served, sorted."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(__path__)))


def find(name: str) -> Family:
    """The family file of a model type. KeyError for a name that is not in `names()`."""
    if name not in names():
        raise KeyError(name)
    return cast(Family, importlib.import_module(f"{__name__}.{name}"))


def model_type(checkpoint: Checkpoint) -> str:
    """What the config calls its architecture: `model_type`, or `general.architecture` in a GGUF."""
    key = "general.architecture" if checkpoint.layout == "gguf" else "model_type"
    value = checkpoint.config.get(key)
    if not isinstance(value, str):
        raise CheckpointError(f"{checkpoint.path.name}: {key} = {short(value)}; it must name the architecture")
    return value


def build_model(checkpoint: Checkpoint) -> Model:
    """The Model of an opened checkpoint, from headers alone. CheckpointError names what is unknown, missing or misshapen."""
    name = model_type(checkpoint)
    if name not in names():
        raise CheckpointError(f"{checkpoint.path.name}: model type {short(name)} is not supported; supported: {', '.join(names())}")
    return find(name).model(checkpoint)
