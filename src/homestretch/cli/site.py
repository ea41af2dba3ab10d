"""`homestretch site build|serve`: makes the static site from setup folders, and previews it with live rebuild."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Build the site, or preview it.", no_args_is_help=True, rich_markup_mode=None)

Setups = Annotated[Path, typer.Argument(help="Folder with one folder per setup, or a site that `publish` made.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Where the pages go; public/ beside the setups if not given.")]
Base = Annotated[str, typer.Option(help="The address the site will stand at, for the feed.")]
Hide = Annotated[list[str] | None, typer.Option("--hide", help="A name that must not appear: an account, a host. Repeatable.")]
Allow = Annotated[list[str] | None, typer.Option("--allow", help="A word that is never private or foreign. Repeatable.")]


def places(setups: Path, out: Path | None) -> tuple[Path, Path]:
    """The folder of setups and the output folder, for a site folder or a bare folder of setups."""
    inner = setups / "setups"
    source = inner if inner.is_dir() else setups
    return source, out or (setups if inner.is_dir() else setups.parent) / "public"


@app.command()
def build(
    setups: Setups,
    out: Out = None,
    base: Base = "",
    hide: Hide = None,
    allow: Allow = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line last on stdout.")] = False,
) -> None:
    """Build the site; only what changed is made anew."""
    from homestretch.lab import site
    from homestretch.lab.errors import LabError
    from homestretch.lab.publish import Filter

    source, target = places(setups, out)
    try:
        built = site.build(
            source,
            target,
            what=Filter.of_this_machine(hide or (), allow or ()),
            base=base,
            say=lambda text: typer.echo(text, err=True),
        )
    except LabError as error:
        typer.echo(f"site build: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    for name, why in built.refused.items():
        typer.echo(f"no page for {name}: {why}", err=True)
    typer.echo(f"{len(built.pages)} setups, {len(built.rebuilt)} made anew: {built.index}", err=True)
    if as_json:
        pages = {slug: str(path) for slug, path in built.pages.items()}
        sys.stdout.write(json.dumps({"index": str(built.index), "pages": pages, "refused": built.refused}) + "\n")
    raise typer.Exit(1 if built.refused else 0)


@app.command()
def serve(
    setups: Setups,
    out: Out = None,
    port: Annotated[int, typer.Option(help="The port on 127.0.0.1; 0 takes a free one.")] = 8000,
    hide: Hide = None,
    allow: Allow = None,
) -> None:
    """Build, serve on 127.0.0.1, and rebuild when a setup changes; open pages reload."""
    from homestretch.lab.errors import LabError
    from homestretch.lab.publish import Filter
    from homestretch.lab.site.preview import preview

    source, target = places(setups, out)
    try:
        preview(
            source,
            target,
            port=port,
            what=Filter.of_this_machine(hide or (), allow or ()),
            say=lambda text: typer.echo(text, err=True),
        )
    except LabError as error:
        typer.echo(f"site serve: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
