"""`homestretch fake`: a server of known speed and answers, to try the lab out and to check other instruments."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer


def fake(
    port: Annotated[int, typer.Option(help="0 = any free one.")] = 8081,
    behaviour: Annotated[str, typer.Option(help="A preset's name; all are served as fake-NAME anyway.")] = "single",
    change: Annotated[list[str] | None, typer.Option("--set", help="FIELD=JSON of the behaviour, may be repeated.")] = None,
    answers: Annotated[Path | None, typer.Option(help='JSON list of {"match": …, "text": …}: what to answer.')] = None,
) -> None:
    """Serve until stopped. Model `fake` behaves as asked; the truth about each reply is at /fake/truth."""
    import msgspec

    from homestretch.lab.errors import LabError
    from homestretch.lab.fake import PRESETS, FakeServer
    from homestretch.lab.fake.behaviour import FakeReply, changed

    try:
        chosen = changed(behaviour, change or [])
        said = msgspec.json.decode(answers.read_bytes(), type=tuple[FakeReply, ...]) if answers else ()
    except (LabError, OSError, msgspec.MsgspecError) as error:
        typer.echo(f"fake: {error}", err=True)
        raise typer.Exit(2) from None
    server = FakeServer({"fake": chosen, **{f"fake-{name}": preset for name, preset in PRESETS.items()}}, port=port, answers=said)
    ended = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: ended.set())
    speed = f"{chosen.decode_tokens_per_s:g} tok/s, window {chosen.window} tokens, {chosen.slots} streams at once"
    typer.echo(f"homestretch fake: {server.url}, {speed}")
    ended.wait()
    server.close()
