"""What the device must hold beside the weights, and what it has; needs no kernels, so that a plan can be made anywhere."""

from __future__ import annotations

import psutil
import torch

from homestretch.engine.backends.cuda.lower import Lowered, Lowering
from homestretch.engine.backends.cuda.memory import ROWS
from homestretch.engine.program import Experts, Model, Program, Router, Slot, Ssm
from homestretch.engine.types import Limits

OVERHEAD = 1 << 29
"""Bytes for the kernels' code, captured graphs and what the allocator cannot use."""

LEAST_GROUP = 32
"""The smallest group of a packed matrix."""

PARTS = 1 << 24
"""Elements of the buffer for attention's chunks; rows whose chunks do not fit into it together are launched in turns."""


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
