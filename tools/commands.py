"""Writes docs/commands.md from the command line's own help; `--check` fails when it is out of date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from homestretch.cli import build

TARGET = Path(__file__).resolve().parent.parent / "docs" / "commands.md"


def options(command: Any) -> list[str]:
    """A line for each argument and option."""
    lines = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        if parameter.param_type_name == "argument":
            names = f"`{str(parameter.metavar or parameter.name).upper()}`"
        text = (getattr(parameter, "help", "") or "").strip()
        default = parameter.default
        shown = default is not None and default is not ... and not callable(default) and default not in (False, "", (), [])
        tail = f" Default: {default}." if shown and "efault" not in text and parameter.param_type_name == "option" else ""
        lines.append(f"- {names} {text}{tail}")
    return lines


def sections(name: str, command: Any, level: int = 2) -> list[str]:
    """A command and, if it has some, its sub-commands."""
    lines = [f"{'#' * level} homestretch {name}", "", (command.help or "").strip(), ""]
    lines += options(command)
    for sub_name, sub in getattr(command, "commands", {}).items():
        lines += ["", *sections(f"{name} {sub_name}", sub, level + 1)]
    return lines


def render() -> str:
    root = typer.main.get_command(build())
    lines = ["# Commands", "", "Made by `make map` from the command line's own help. People's text goes to stderr; `--json` puts"]
    lines += ["one JSON line last on stdout. Exit codes: 0 done or kept, 1 failed or broken, 2 wrong use, 3 undecided.", ""]
    for name, command in getattr(root, "commands", {}).items():
        lines += [*sections(name, command), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    text = render()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print("docs/commands.md is out of date: run `make map`")
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
