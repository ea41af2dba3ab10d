"""`homestretch publish`: recounts and filters run folders, adds them to a site, rebuilds what changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def publish(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    site: Annotated[Path, typer.Option(help="The site's folder; setups/ and public/ lie in it.")],
    card: Annotated[Path | None, typer.Option(help="Use this card instead of the runs' own.")] = None,
    unused: Annotated[str, typer.Option(help="Publish the runs as not counting, for this reason.")] = "",
    sign: Annotated[Path | None, typer.Option(help="Sign each manifest with this private ssh key.")] = None,
    hide: Annotated[list[str] | None, typer.Option("--hide", help="A name that must not appear. Repeatable.")] = None,
    allow: Annotated[list[str] | None, typer.Option("--allow", help="A word that is never private or foreign. Repeatable.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the filter would change and hold back; write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line last on stdout.")] = False,
) -> None:
    """Publish runs. A run that the recount contradicts is published as unused, with the reason."""
    from homestretch.lab import publish as publishing
    from homestretch.lab.errors import LabError

    what = publishing.Filter.of_this_machine(hide or (), allow or ())
    try:
        if dry_run:
            for run in runs:
                show_diff(run, what)
            return
        done = publishing.publish(
            runs, site, what=what, card=card, reason=unused, sign=sign, say=lambda text: typer.echo(text, err=True)
        )
    except LabError as error:
        typer.echo(f"publish: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    for item in done:
        typer.echo(f"{item.name}: counts for {', '.join(item.counts) or 'no part'}", err=True)
        for part, why in item.unused.items():
            typer.echo(f"  {part} does not count: {why}", err=True)
        for entry in item.held:
            typer.echo(f"  held back: {entry.name}: {entry.reason}", err=True)
    typer.echo(f"the site: {site / 'public' / 'index.html'}", err=True)
    if as_json:
        rows = [{"run": item.name, "slug": item.slug, "counts": item.counts, "unused": item.unused} for item in done]
        sys.stdout.write(json.dumps({"runs": rows, "index": str(site / "public" / "index.html")}) + "\n")


def show_diff(run: Path, what: object) -> None:
    """The dry run of one run folder, as a diff on stdout."""
    from homestretch.lab import publish as publishing

    if not run.is_dir() or not isinstance(what, publishing.Filter):
        typer.echo(f"publish: {run} is not a folder", err=True)
        raise typer.Exit(2)
    for entry, changes in publishing.preview(run, what):
        told = {"published": "as it is", "changed": f"{len(changes)} lines changed", "held": f"held back: {entry.reason}"}[
            entry.state
        ]
        print(f"{entry.name}: {told}")
        for number, before, after in changes if entry.state == "changed" else ():
            print(f"  line {number}\n  - {before[:400]}\n  + {after[:400]}")
