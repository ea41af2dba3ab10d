"""`homestretch repeat`: measures a published contract on this machine and says number by number whether it repeats."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def repeat(
    source: Annotated[str, typer.Argument(help="A setup page (file or URL), or a run folder.")],
    base_url: Annotated[str, typer.Option(help="The server to measure, started by you: http://HOST:PORT/v1.")] = "",
    start: Annotated[
        bool, typer.Option("--start", help="Run the card's start command, which the page brought along. Read it first.")
    ] = False,
    run: Annotated[str, typer.Option(help="Which run of the page; its first if not given.")] = "",
    output: Annotated[Path, typer.Option(help="The new run folder.")] = Path("repeat"),
    parts: Annotated[str, typer.Option(help="Only these parts of the contract, comma-separated.")] = "",
    weights: Annotated[Path | None, typer.Option(help="Weights at hand, a file or folder, to check their hashes.")] = None,
    engine: Annotated[Path | None, typer.Option(help="Engine file at hand, to check its hash.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="The prompts file, when the contract used another than ours.")] = None,
    tokenizer_json: Annotated[Path | None, typer.Option(help="The served model's tokenizer.json.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of question sets.")] = None,
    allow_load: Annotated[bool, typer.Option("--allow-load", help="Let disturbed steps count; a doubt says so.")] = False,
    only_hashes: Annotated[bool, typer.Option("--only-hashes", help="Check the files at hand and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line last on stdout.")] = False,
) -> None:
    """Repeat a measurement. Exit code 0 when every number repeats, 1 when one does not, 2 wrong use, 3 undecided."""
    from homestretch.lab.errors import LabError
    from homestretch.lab.publish import repetition
    from homestretch.lab.publish.repeat import hashes, judge, origin

    try:
        found = origin(source, output.with_name(output.name + "-page"), run)
        contract = found.contract
        rows = hashes(contract, weights, engine, prompts)
        other = [row for row in rows if row.state == "other"]
        for row in rows:
            typer.echo(
                f"{row.state:9} {row.name} {row.wanted[:16]}…{'' if row.state != 'other' else ' here ' + row.here[:16] + '…'}",
                err=True,
            )
        if only_hashes or other:
            if other:
                typer.echo("repeat: the files named 'other' are not those of the page, so nothing is measured", err=True)
            raise typer.Exit(1 if other else 0)
        if not base_url and not start:
            command = " ".join(contract.card.start.command) if contract.card else "(the contract holds no card)"
            typer.echo(
                f"repeat: start the server as the page says and give --base-url, or let the lab run this command with "
                f"--start:\n  {command}",
                err=True,
            )
            raise typer.Exit(2)
        done = repetition.measure(
            contract,
            output,
            base_url=base_url,
            parts=parts,
            prompts=prompts,
            tokenizer_json=tokenizer_json,
            data=data,
            allow_load=allow_load,
        )
        numbers, refusals = judge(found.folder, done.folder)
    except LabError as error:
        typer.echo(f"repeat: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    for part, why in refusals.items():
        print(f"{part}: cannot be compared: {'; '.join(why)}")
    for number in numbers:
        allowed = f"within {number.allowed_pct:.1f} %" if number.allowed_pct is not None else "by the margins"
        print(f"{number.state:16} {number.name:44} page {number.page}  here {number.here}  ({allowed})")
    failed = [number.name for number in numbers if number.state == "does not repeat"]
    if as_json:
        sys.stdout.write(json.dumps({"repeats": not failed, "failed": failed, "refused": refusals}) + "\n")
    raise typer.Exit(done.exit_code or (1 if failed or refusals else 0))
