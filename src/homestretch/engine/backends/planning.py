"""Memory of a model and its streams, from headers alone: one calculation for every backend, behind the start line and --plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from homestretch.engine.errors import SetupError
from homestretch.engine.program import QUANTUM, Model, Program, WeightSpec
from homestretch.engine.types import Limits, MemoryPlan

MOST_STREAMS = 8
"""Streams that 0 (auto) asks for, if memory allows."""

GIB = 1 << 30


def weight_names(program: Program | None) -> frozenset[str]:
    """Names of the weights that a program reads."""
    return frozenset(name for op in program.ops for name in op.weights) if program else frozenset()


def without_head(model: Model) -> Model:
    """The model as if its files held no MTP head: neither its program nor the weights that only it reads."""
    read = weight_names(model.main)
    read |= {of for name in read if (of := model.weights[name].shared_with)}
    return replace(model, head=None, weights={name: spec for name, spec in model.weights.items() if name in read})


def slot_bytes(program: Program | None, *, kv_element: int, state_element: int) -> tuple[int, int]:
    """(bytes a token, bytes a stream) of a program's slots."""
    slots = program.slots if program else ()
    per_token = sum(slot.elements * kv_element for slot in slots if slot.per == "token")
    return per_token, sum(slot.elements * state_element for slot in slots if slot.per == "stream")


def plan(
    model: Model,
    limits: Limits,
    *,
    available: int,
    weight_bytes: Callable[[WeightSpec], int],
    kv_element: int,
    state_element: int = 4,
    state_copies: int = 1,
) -> MemoryPlan:
    """What a backend needs, and how many streams of `limits.window` tokens fit into `available` bytes beside the model.

    weight_bytes: bytes of one unshared weight as the backend holds it. kv_element, state_element: bytes of one element of a KV or
    recurrent slot. state_copies: recurrent states held at once for each stream. SetupError when not even one stream fits, or not
    as many as were asked for; it names the largest window or number of streams that does.
    """
    own = {name: 0 if spec.shared_with else weight_bytes(spec) for name, spec in model.weights.items()}
    main = {model.weights[name].shared_with or name for name in weight_names(model.main)}
    head_only = {model.weights[name].shared_with or name for name in weight_names(model.head)} - main
    head_bytes = sum(own[name] for name in head_only)
    model_bytes = sum(own.values()) - head_bytes
    per_token, per_stream = slot_bytes(model.main, kv_element=kv_element, state_element=state_element)
    head_token, head_stream = slot_bytes(model.head, kv_element=kv_element, state_element=state_element)
    page = (per_token + head_token) * QUANTUM
    pages = -(-limits.window // QUANTUM)
    states = (per_stream + head_stream) * state_copies
    stream_bytes = page * pages + states
    room = available - model_bytes - head_bytes - limits.prompt_cache_bytes
    fits = room // stream_bytes if stream_bytes else MOST_STREAMS
    if room < 0:
        raise SetupError(
            f"the model needs {(model_bytes + head_bytes) / GIB:.2f} GiB and the prompt cache "
            f"{limits.prompt_cache_bytes / GIB:.2f} GiB; {available / GIB:.2f} GiB are free"
        )
    if fits < max(1, limits.streams):
        largest = max(0, (room // max(1, limits.streams) - states) // page * QUANTUM)
        advice = f"a window of {largest:,} tokens would fit" if largest else "no window fits beside the model"
        if fits:
            advice += f", or {fits} streams"
        raise SetupError(
            f"{max(1, limits.streams)} x {stream_bytes / GIB:.2f} GiB for a window of {limits.window:,} tokens do not fit into the "
            f"{room / GIB:.2f} GiB left beside the model; {advice}"
        )
    streams = limits.streams or min(MOST_STREAMS, fits)
    return MemoryPlan(
        model_bytes=model_bytes,
        head_bytes=head_bytes,
        kv_bytes_per_token=per_token,
        head_kv_bytes_per_token=head_token,
        state_bytes_per_stream=states,
        stream_bytes=stream_bytes,
        streams=streams,
        left_bytes=room - streams * stream_bytes,
        prompt_cache_bytes=limits.prompt_cache_bytes,
    )
