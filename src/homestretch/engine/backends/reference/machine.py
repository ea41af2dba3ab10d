"""Runs a Program operation by operation, on a tile of a prompt or on one row of a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from homestretch.engine.backends.reference.lowering import LOWERINGS, Rows
from homestretch.engine.backends.reference.memory import Memory
from homestretch.engine.errors import SetupError
from homestretch.engine.program import QUANTUM, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """hidden: (rows, width) after the final norm; logits: (asked rows, vocab)."""

    hidden: torch.Tensor
    logits: torch.Tensor


class Machine:
    """The weights of a model, and how to run its programs over them."""

    def __init__(self, weights: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self.weights, self.device = weights, device

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        """Token ids as a tensor on the device."""
        return torch.tensor(tokens, dtype=torch.int64, device=self.device)

    def tile(
        self,
        program: Program,
        tokens: Sequence[int],
        memory: Memory,
        start: int,
        *,
        hidden: torch.Tensor | None = None,
        first: int = 0,
        asked: tuple[int, ...] = (),
    ) -> Outputs:
        """1 to QUANTUM prompt tokens from `start` (a multiple of QUANTUM), padded; hidden (QUANTUM, width) for a head."""
        padded = [*tokens, *[0] * (QUANTUM - len(tokens))]
        rows = Rows(weights=self.weights, memory=memory, start=start, count=len(tokens), tile=True, first=first, asked=asked)
        return run(program, self.ids(padded), hidden, rows)

    def row(
        self,
        program: Program,
        token: int,
        memory: Memory,
        position: int,
        row: int,
        *,
        hidden: torch.Tensor | None = None,
        first: int = 0,
        asked: bool = True,
    ) -> Outputs:
        """Row `row` of a window, at `position`; hidden (1, width) for a head. asked False leaves the logits out."""
        rows = Rows(
            weights=self.weights,
            memory=memory,
            start=position,
            count=1,
            tile=False,
            row=row,
            first=first,
            asked=(0,) if asked else (),
        )
        return run(program, self.ids([token]), hidden, rows)


def refuse_unknown(program: Program) -> None:
    """SetupError when a program holds an operation that nothing here computes."""
    unknown = sorted({op.kind.__name__ for op in program.ops if op.kind not in LOWERINGS})
    if unknown:
        raise SetupError(f"the reference backend does not compute {', '.join(unknown)}")


def run(program: Program, tokens: torch.Tensor, hidden: torch.Tensor | None, rows: Rows) -> Outputs:
    """Every operation in order; values are let go after their last use."""
    last = {number: at for at, op in enumerate(program.ops) for number in op.ins}
    kept = set(program.outputs.values())
    values: dict[int, torch.Tensor] = {0: tokens}
    if hidden is not None:
        values[1] = hidden
    with torch.inference_mode():
        for at, op in enumerate(program.ops):
            made = LOWERINGS[op.kind](op, [values[number] for number in op.ins], rows)
            values.update(zip(op.outs, made, strict=True))
            for number in op.ins:
                if last[number] == at and number not in kept:
                    values.pop(number, None)
    return Outputs(hidden=values[program.outputs["hidden"]], logits=values[program.outputs["logits"]])
