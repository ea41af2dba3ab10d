"""`homestretch demo`: the whole road on this machine, from the embedded model to a page, in a few minutes; resumable."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

CARD = "smollm2-135m"


def demo(
    folder: Annotated[Path, typer.Option(help="Where the runs and the site go.")] = Path("demo"),
    card: Annotated[str, typer.Option(help="The setup to show: smollm2-135m or hybrid-10m.")] = CARD,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew even if the last demo was cut off half-way.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line last on stdout.")] = False,
) -> None:
    """Pull the model, serve it, measure it, recount the figures, build the page."""
    from homestretch.lab.errors import LabError

    try:
        from homestretch.cli.pull import pull_with_progress
        from homestretch.engine.errors import CheckpointError, SetupError
    except ModuleNotFoundError as error:
        typer.echo(f"homestretch demo: {error.name} is not installed; install homestretch[engine]", err=True)
        raise typer.Exit(1) from None
    from homestretch.lab import publish as publishing
    from homestretch.lab.contract import CARDS, read_card
    from homestretch.lab.options import Options
    from homestretch.lab.options import demo as profile
    from homestretch.lab.run import measure

    started = time.monotonic()
    try:
        shipped = read_card(Path(card))
        tell(1, f"the model: {shipped.model.name}")
        pulled = pull_with_progress(shipped.model.location)
        tell(1, f"the model lies at {pulled.path}")
        run, resume = run_folder(folder, shipped.slug, fresh)
        tell(2, f"{'going on with' if resume else 'measuring into'} {run}")
        named = Path(card) if Path(card).exists() else CARDS / f"{card}.toml"
        done = measure(profile(Options(card=named, output=run, resume=resume)))
        if done.exit_code == 3:
            tell(2, "this machine is busy with other work; once more, letting disturbed steps count: the page will say so")
            run, _ = run_folder(folder, shipped.slug, fresh)
            done = measure(profile(Options(card=named, output=run, allow_load=True)))
        tell(3, "recounting and filtering")
        published = publishing.publish([run], folder / "site", say=lambda text: tell(3, text))
    except (LabError, SetupError, CheckpointError) as error:
        typer.echo(f"homestretch demo: {error}", err=True)
        typer.echo("Run `homestretch demo` again: it goes on where it stopped.", err=True)
        raise typer.Exit(getattr(error, "exit_code", 1)) from None
    except KeyboardInterrupt:
        typer.echo("Stopped. Run `homestretch demo` again: it goes on where it stopped.", err=True)
        raise typer.Exit(1) from None
    page = (folder / "site" / "public" / "setup" / shipped.slug / "index.html").resolve()
    for name, number in done.result.numbers.items():
        if name in HEADLINES and number.value is not None:
            typer.echo(f"  {HEADLINES[name]:28} {number.value:10.1f} {number.unit}", err=True)
    for item in published:
        for part, why in item.unused.items():
            typer.echo(f"  {part} does not count on the page: {why}", err=True)
    typer.echo(f"Done in {time.monotonic() - started:.0f} s. The page: {page}", err=True)
    typer.echo(f"Look at it: homestretch site serve {folder / 'site'}", err=True)
    if as_json:
        sys.stdout.write(json.dumps({"page": str(page), "run": str(run), "exit": done.exit_code}) + "\n")
    raise typer.Exit(done.exit_code)


HEADLINES = {
    "decode.tokens_per_s": "decode",
    "decode.code.tokens_per_s": "decode, code prompt",
    "decode.prose.tokens_per_s": "decode, prose prompt",
    "prefill.512.tokens_per_s": "prefill at 512 tokens",
    "prefill.2048.tokens_per_s": "prefill at 2,048 tokens",
    "conc.1.total_tokens_per_s": "1 request at once, total",
    "conc.2.total_tokens_per_s": "2 at once, total",
}


def tell(station: int, text: str) -> None:
    """A line of progress: which of the three stations, and what."""
    typer.echo(f"[{station}/3] {text}", err=True)


def run_folder(folder: Path, slug: str, fresh: bool) -> tuple[Path, bool]:
    """The run to make, and whether it goes on: the last one if it has no result yet, else the next number."""
    runs = folder / "runs"
    made = sorted(runs.glob(f"{slug}-[0-9][0-9][0-9]")) if runs.is_dir() else []
    unfinished = bool(made) and (made[-1] / "contract.json").exists() and not (made[-1] / "result.json").exists()
    if unfinished and not fresh:
        return made[-1], True
    runs.mkdir(parents=True, exist_ok=True)
    return runs / f"{slug}-{len(made) + 1:03}", False
