"""`homestretch compare`: the numbers of two runs side by side, where their settings allow it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def compare(
    first: Annotated[Path, typer.Argument(help="A run folder.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line last on stdout.")] = False,
) -> None:
    """Compare two runs. Exit code 0 when every shared part compares, 1 when a setting forbids it."""
    from rich.console import Console
    from rich.table import Table

    from homestretch.lab.compare import compare as derive
    from homestretch.lab.compare import refused
    from homestretch.lab.errors import LabError

    try:
        found = derive(first, second)
    except LabError as error:
        typer.echo(f"compare: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    console = Console(stderr=True, highlight=False)
    for part, reasons in found.refusals.items():
        console.print(f"[bold]{part} is not comparable[/bold]: {'; '.join(reasons)}", soft_wrap=True)
    if found.rows:
        table = Table("number", "first", "second", "unit", "difference", "spreads", "beyond them")
        for row in found.rows:
            values = [
                "—" if n.value is None else f"{n.value:.2f}{' (doubted)' if refused(n) else ''}" for n in (row.first, row.second)
            ]
            change = "—" if row.difference_pct is None else f"{row.difference_pct:+.1f} %"
            spreads = " / ".join("—" if n.spread_pct is None else f"{n.spread_pct:.1f} %" for n in (row.first, row.second))
            table.add_row(row.name, *values, row.first.unit, change, spreads, {None: "—", True: "yes", False: "no"}[row.beyond])
        console.print(table)
    if as_json:
        rows = {
            row.name: {"first": row.first.value, "second": row.second.value, "difference_pct": row.difference_pct}
            for row in found.rows
        }
        sys.stdout.write(json.dumps({"refusals": found.refusals, "numbers": rows}) + "\n")
    raise typer.Exit(1 if found.refusals else 0)
