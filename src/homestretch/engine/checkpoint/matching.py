"""The weights a family asks for against those the files hold: missing, left-over and misshapen ones are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from homestretch.engine.errors import CheckpointError
from homestretch.engine.program import WeightSpec

NOTHING: Mapping[str, str] = {}


def match(
    shapes: Mapping[str, tuple[int, ...]],
    specs: Mapping[str, WeightSpec],
    *,
    where: str,
    tied: Mapping[str, str] = NOTHING,
    spare: frozenset[str] = frozenset(),
) -> dict[str, WeightSpec]:
    """The specs of the wanted weights, by name. shapes: what the config asks for; specs: what the files hold.

    tied: names that use another weight's bytes; they must not be in the files. spare: names that may be there and are not used.
    CheckpointError names up to three faults; nothing has been read by then.
    """
    faults = [f"{name} {list(shape)} is missing" for name, shape in shapes.items() if name not in specs and name not in tied]
    faults += [
        f"{name} is {list(specs[name].shape)}, the config asks for {list(shape)}"
        for name, shape in shapes.items()
        if name in specs and specs[name].shape != shape
    ]
    faults += [f"{name} is there, but the config ties it to {of}" for name, of in tied.items() if name in specs]
    left = sorted(set(specs) - set(shapes) - set(tied) - spare)
    faults += [f"{name} {list(specs[name].shape)} belongs to no part of this model" for name in left]
    if faults:
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise CheckpointError(f"{where}: tensor {'; '.join(faults[:3])}{more}")
    made = {name: specs[name] for name in shapes if name not in tied}
    return made | {name: replace(specs[of], shared_with=of) for name, of in tied.items()}
