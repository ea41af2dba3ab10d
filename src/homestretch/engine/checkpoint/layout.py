"""What the two folder layouts share: types of dense tensors, the shape of a convolution's kernel."""

from __future__ import annotations

from typing import Literal

import torch

from homestretch.engine.checkpoint.shards import Entry
from homestretch.engine.errors import CheckpointError
from homestretch.engine.program import WeightSpec

FLOATS: dict[str, Literal["float32", "float16", "bfloat16"]] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
CONV = ".conv1d.weight"


def dense_spec(name: str, entry: Entry) -> WeightSpec:
    """A dense tensor; a depthwise kernel is (channels, kernel), stored as (C, K, 1) by MLX and (C, 1, K) elsewhere."""
    if entry.dtype not in FLOATS:
        raise CheckpointError(f"{entry.file.name}: tensor {name} is {entry.dtype}; dense weights are {', '.join(FLOATS)}")
    shape = entry.shape
    if name.endswith(CONV) and len(shape) == 3 and 1 in shape[1:]:
        shape = (shape[0], shape[1] * shape[2])
    return WeightSpec(shape=shape, dtype=FLOATS[entry.dtype])


def flat_conv(tensor: torch.Tensor) -> torch.Tensor:
    """(C, K, 1) or (C, 1, K) -> (C, K)."""
    return tensor.reshape(tensor.shape[0], -1)
