"""`homestretch score`: derives answers, numbers and doubts of a run folder again from its raw files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def score(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    unsafe_code_execution: Annotated[
        bool, typer.Option("--unsafe-code-execution", help="Run programs a model wrote without isolation where there is none.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line last on stdout.")] = False,
) -> None:
    """Score a run folder again; needs no server."""
    from homestretch.cli.measure import report
    from homestretch.lab import sandbox
    from homestretch.lab.errors import LabError
    from homestretch.lab.score import score as derive

    sandbox.allow_unsafe(unsafe_code_execution)
    try:
        result = derive(run)
    except LabError as error:
        typer.echo(f"score: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    report(result, run)
    if as_json:
        numbers = {name: number.value for name, number in result.numbers.items()}
        sys.stdout.write(json.dumps({"run": str(run), "numbers": numbers}) + "\n")
