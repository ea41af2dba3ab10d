"""`homestretch play`: a race of the Gauntlet alone, against a card's setup or a server that runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Text = str | None


def play(
    context: typer.Context,
    setup: Annotated[str, typer.Argument(metavar="URL|CARD", help="http://HOST:PORT/v1 of a server, or a setup card.")],
    season: Annotated[int, typer.Option(help="Which race: every season has its own tasks.")] = 21,
    thinking: Annotated[
        bool, typer.Option("--thinking/--no-thinking", help="Thinking on: another race, limits times five.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="The new run folder; runs/gauntlet-SEASON-… if not given.")] = None,
    model: Annotated[Text, typer.Option(help="The model name to send.")] = None,
    label: Annotated[Text, typer.Option(help="The run's name on the page.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Answer limit of a range.")] = None,
    sampling: Annotated[Text, typer.Option(help='JSON, such as {"temperature": 1.0, "top_p": 0.95}.')] = None,
    sampling_source: Annotated[Text, typer.Option(help="Where the sampling comes from.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sent with each request.")] = None,
    buzzers: Annotated[Text, typer.Option(help="Other limits of the four ranges in seconds; such a race is not ranked.")] = None,
    engine_version_file: Annotated[Path | None, typer.Option(help="A file that holds the engine's build.")] = None,
    server_ctx: Annotated[int | None, typer.Option(help="The server's window in tokens.")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file with the server's key.")] = None,
    allow_load: Annotated[bool, typer.Option("--allow-load", help="Let foreign load be; a doubt says so.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line last on stdout.")] = False,
) -> None:
    """Run one race. Exit code 0 finished, 1 void, 2 wrong use."""
    from homestretch.cli.measure import convert
    from homestretch.lab.errors import LabError
    from homestretch.lab.game.seasons import season as made_for
    from homestretch.lab.options import given
    from homestretch.lab.run import measure as run

    try:
        made_for(season)  # a season that is none is refused before a server is started
        fields: dict[str, Any] = {"parts": ("gauntlet",), "season": season, "thinking": thinking}
        fields["output"] = output or free_folder(season, thinking)
        fields |= {"base_url": setup} if "://" in setup else {"card": Path(setup)}
        texts = {"model": model, "label": label, "sampling": sampling, "sampling_source": sampling_source, "buzzers": buzzers}
        fields |= {name: convert(name, value) for name, value in texts.items() if value is not None}
        others: dict[str, Any] = {
            "seed": seed,
            "engine_version_file": engine_version_file,
            "server_ctx": server_ctx,
            "api_key_file": api_key_file,
            "allow_load": allow_load or None,
            "limits": {"gauntlet": max_tokens} if max_tokens is not None else None,
        }
        fields |= {name: value for name, value in others.items() if value is not None}
        done = run(given(**fields))
    except LabError as error:
        typer.echo(f"play: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("stopped: the race is void; a race has one attempt", err=True)
        raise typer.Exit(1) from None
    part = done.result.parts["gauntlet"]
    if part.reason:
        typer.echo(f"play: {part.reason}", err=True)
    typer.echo(f"race files: {done.folder / 'gauntlet'}", err=True)
    if as_json:
        numbers = {name: number.value for name, number in done.result.numbers.items()}
        line = {"run": str(done.folder), "exit": done.exit_code, "state": part.state, "reason": part.reason, "numbers": numbers}
        sys.stdout.write(json.dumps(line) + "\n")
    raise typer.Exit(done.exit_code)


def free_folder(season: int, thinking: bool) -> Path:
    """A run folder's name that is not taken."""
    stem = f"gauntlet-{season}-{'thinking' if thinking else 'plain'}"
    number = 0
    while (path := Path("runs") / f"{stem}-r{number}").exists():
        number += 1
    return path
