"""Prompts with checkable instructions, in IFEval's layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homestretch.lab.data import tables


@dataclass(frozen=True, kw_only=True)
class InstructionPrompt:
    """text: the one user message. arguments: one mapping an instruction, without entries that are None."""

    row: str
    text: str
    instructions: tuple[str, ...]
    arguments: tuple[dict[str, Any], ...]


def read(path: Path) -> list[InstructionPrompt]:
    """kwargs come as objects or, in some copies of the set, as JSON text."""
    found = tables.rows(path)
    tables.need(found, ("key", "prompt", "instruction_id_list", "kwargs"), path)
    prompts = []
    for row in found:
        given = json.loads(row["kwargs"]) if isinstance(row["kwargs"], str) else row["kwargs"]
        arguments = tuple({name: value for name, value in one.items() if value is not None} for one in given)
        names = tuple(str(name) for name in row["instruction_id_list"])
        prompts.append(InstructionPrompt(row=str(row["key"]), text=str(row["prompt"]), instructions=names, arguments=arguments))
    tables.unique((prompt.row for prompt in prompts), path)
    return prompts
