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


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tile or one row to run: token ids (rows,), the hidden input of a head (rows, width), and what operations are told."""

    tokens: torch.Tensor
    hidden: torch.Tensor | None
    rows: Rows


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
        return run(program, [Call(tokens=self.ids(padded), hidden=hidden, rows=rows)])[0]

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
        call = self.call(token, memory, position, row, hidden=hidden, first=first, asked=asked)
        return run(program, [call])[0]

    def call(
        self,
        token: int,
        memory: Memory,
        position: int,
        row: int,
        *,
        hidden: torch.Tensor | None = None,
        first: int = 0,
        asked: bool = True,
    ) -> Call:
        """A row to be run beside others: see `run`."""
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
        return Call(tokens=self.ids([token]), hidden=hidden, rows=rows)


def missing(program: Program) -> str | None:
    """Operations of a program that nothing here computes, in one line; None if there are none."""
    unknown = sorted({op.kind.__name__ for op in program.ops if op.kind not in LOWERINGS})
    return f"the reference backend does not compute {', '.join(unknown)}" if unknown else None


def refuse_unknown(program: Program) -> None:
    """SetupError when a program holds an operation that nothing here computes."""
    said = missing(program)
    if said:
        raise SetupError(said)


def run(program: Program, calls: Sequence[Call]) -> list[Outputs]:
    """Every operation in order, and each for one call after the other: calls share no arithmetic, only the weights in the cache.

    Calls of one stream come in the order of their rows, so that a row finds the keys of the rows before it.
    """
    last = {number: at for at, op in enumerate(program.ops) for number in op.ins}
    kept = set(program.outputs.values())
    values: list[dict[int, torch.Tensor]] = [
        {0: call.tokens} if call.hidden is None else {0: call.tokens, 1: call.hidden} for call in calls
    ]
    with torch.inference_mode():
        for at, op in enumerate(program.ops):
            lowering = LOWERINGS[op.kind]
            done = [number for number in set(op.ins) if last[number] == at and number not in kept]
            for call, held in zip(calls, values, strict=True):
                made = lowering(op, [held[number] for number in op.ins], call.rows)
                held.update(zip(op.outs, made, strict=True))
                for number in done:
                    del held[number]
    names = program.outputs
    return [Outputs(hidden=held[names["hidden"]], logits=held[names["logits"]]) for held in values]
