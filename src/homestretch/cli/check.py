"""`homestretch check`: the independent recount of a run folder, or of a built site and its pages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def check(
    target: Annotated[Path, typer.Argument(help="A run folder, or a built site.")],
    signers: Annotated[Path | None, typer.Option(help="An ssh `allowed_signers` file to verify signatures with.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report as JSON here.")] = None,
    every: Annotated[
        bool | None, typer.Option("--all/--differences", help="List every point, or only those that do not agree; a run: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line last on stdout.")] = False,
) -> None:
    """Recount. Exit code 0 when nothing differs, 1 when something does."""
    import msgspec

    from homestretch.lab import check as recount
    from homestretch.lab.errors import LabError

    try:
        if (target / "raw" / "v2").is_dir():
            reports = recount.check_site(target, say=lambda text: typer.echo(text, err=True))
        elif (target / "contract.json").exists() or (target / "result.json").exists():
            reports = [recount.check_run(target, signers)]
        else:
            typer.echo(f"check: {target} is neither a run folder (contract.json, result.json) nor a built site (raw/v2)", err=True)
            raise typer.Exit(2)
    except LabError as error:
        typer.echo(f"check: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    for found in reports:
        table(found, every if every is not None else len(reports) == 1, as_json)
    if report is not None:
        report.write_bytes(msgspec.json.format(msgspec.json.encode(reports if len(reports) > 1 else reports[0]), indent=1) + b"\n")
    passed = all(found.passed for found in reports)
    if as_json:
        counts: dict[str, int] = {}
        for found in reports:
            for outcome, count in found.counts().items():
                counts[outcome] = counts.get(outcome, 0) + count
        sys.stdout.write(msgspec.json.encode({"passed": passed, "counts": counts}).decode() + "\n")
    raise typer.Exit(0 if passed else 1)


def table(found: object, every: bool, aside: bool) -> None:
    """The report as a table, differences first; on stderr (aside) where stdout is for JSON."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from homestretch.lab.check import Report

    if not isinstance(found, Report):
        return
    order = {"differs": 0, "cannot be recounted": 1, "recounted": 2}
    rows = [row for row in sorted(found.rows, key=lambda row: order[row.outcome]) if every or row.outcome != "recounted"]
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.counts().items(), key=lambda item: order[item[0]]))
    console = Console(stderr=aside, width=None if sys.stdout.isatty() else 200)
    signed = f"; {found.signature}" if found.signature else ""
    console.print(
        f"[bold]{escape(found.run)}[/bold]: {'passed' if found.passed else 'FAILED'} "
        f"({counts or 'nothing to count'}{escape(signed)})"
    )
    if not rows:
        return
    shown = Table(show_edge=False, pad_edge=False)
    for head in ("outcome", "point", "page", "recount", "where and why"):
        shown.add_column(head, overflow="fold")
    for row in rows:
        style = {"differs": "red", "cannot be recounted": "yellow", "recounted": ""}[row.outcome]
        why = "; ".join(text for text in (row.place, row.note) if text)
        shown.add_row(*(escape(text) for text in (row.outcome, row.name, row.page, row.recount, why)), style=style)
    console.print(shown)
