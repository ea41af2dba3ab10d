"""`homestretch measure`: measures a setup into a run folder."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Text = str | None


def measure(
    context: typer.Context,
    card: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Setup cards; the lab starts each one's server unless --base-url is given. Several: one after the other."
        ),
    ] = None,
    base_url: Annotated[Text, typer.Option(help="A running server's OpenAI base, http://HOST:PORT/v1.")] = None,
    model: Annotated[Text, typer.Option(help="The model name to send.")] = None,
    label: Annotated[Text, typer.Option(help="The run's name on the page.")] = None,
    output: Annotated[Path, typer.Option(help="The new run folder.")] = Path("run"),
    parts: Annotated[Text, typer.Option(help="Parts or groups, comma-separated: speed, quality, decode, …")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A file of task prompts; ours if not given.")] = None,
    prompt_ids: Annotated[Text, typer.Option(help="Which of them, comma-separated.")] = None,
    runs: Annotated[int | None, typer.Option(help="Decode runs a prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Reply length of the decode part.")] = None,
    warmups: Annotated[int | None, typer.Option(help="Requests before the first that counts.")] = None,
    prefill_depths: Annotated[Text, typer.Option(help="Prompt lengths, comma-separated.")] = None,
    prefill_runs: Annotated[int | None, typer.Option(help="Runs a depth.")] = None,
    conc_levels: Annotated[Text, typer.Option(help="Requests at once, comma-separated.")] = None,
    conc_rounds: Annotated[int | None, typer.Option(help="Rounds a level.")] = None,
    conc_max_tokens: Annotated[int | None, typer.Option(help="Reply length of requests at once.")] = None,
    conc_prompt: Annotated[Text, typer.Option(help="The prompt of requests at once and of prefill.")] = None,
    ctx_depths: Annotated[Text, typer.Option(help="Long prompt lengths, comma-separated.")] = None,
    ctx_runs: Annotated[int | None, typer.Option(help="Runs a depth and prompt.")] = None,
    ctx_max_tokens: Annotated[int | None, typer.Option(help="Reply length behind long prompts.")] = None,
    tokenizer_json: Annotated[Path | None, typer.Option(help="The served model's tokenizer.json.")] = None,
    sampling: Annotated[Text, typer.Option(help='JSON, such as {"temperature": 1.0, "top_p": 0.95}.')] = None,
    sampling_source: Annotated[Text, typer.Option(help="Where the sampling comes from.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sent with each request.")] = None,
    contract: Annotated[Path | None, typer.Option(help="Also write the contract here.")] = None,
    no_cache_prompt: Annotated[bool, typer.Option("--no-cache-prompt", help="Ask the server to keep no prompt.")] = False,
    server_log: Annotated[Path | None, typer.Option(help="The log of a server that runs already.")] = None,
    engine_version_file: Annotated[Path | None, typer.Option(help="A file that holds the engine's version.")] = None,
    server_slots: Annotated[int | None, typer.Option(help="How many requests the server works on at once.")] = None,
    server_slots_source: Annotated[Text, typer.Option(help="Where that stands.")] = None,
    server_ctx: Annotated[int | None, typer.Option(help="The server's window in tokens.")] = None,
    server_ctx_source: Annotated[Text, typer.Option(help="Where that stands.")] = None,
    at_once: Annotated[int | None, typer.Option(help="Questions at once in the quality parts.")] = None,
    limit: Annotated[list[str] | None, typer.Option(help="PART=TOKENS: another answer limit.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of question sets.")] = None,
    season: Annotated[int | None, typer.Option(help="The gauntlet's season.")] = None,
    thinking: Annotated[bool, typer.Option("--thinking", help="Race the gauntlet with thinking on.")] = False,
    buzzers: Annotated[Text, typer.Option(help="Other limits of the four ranges in seconds; such a race is not ranked.")] = None,
    fit_smallest: Annotated[int | None, typer.Option(help="First window of fit; it doubles from there.")] = None,
    fit_largest: Annotated[int | None, typer.Option(help="Last window of fit.")] = None,
    limit_gib: Annotated[float | None, typer.Option(help="Fit stops before used memory rises by this much.")] = None,
    machine_name: Annotated[Text, typer.Option(help='How the page calls this machine, "first DGX Spark".')] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file with the server's key.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --output.")] = False,
    allow_load: Annotated[bool, typer.Option("--allow-load", help="Let disturbed steps count; a doubt says so.")] = False,
    unsafe_code_execution: Annotated[
        bool, typer.Option("--unsafe-code-execution", help="Run programs a model wrote without isolation where there is none.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line last on stdout.")] = False,
) -> None:
    """Measure a setup. Exit code 0 done, 1 a part failed, 2 wrong use, 3 undecided because of foreign load."""
    from homestretch.lab.errors import LabError
    from homestretch.lab.options import given
    from homestretch.lab.run import measure as run

    named = {
        name: value
        for name, value in context.params.items()
        if name not in ("as_json", "limit") and value is not None and value is not False
    }
    if context.get_parameter_source("output") is not None and context.get_parameter_source("output").name == "DEFAULT":  # type: ignore[union-attr]
        named.pop("output")
    signal.signal(signal.SIGTERM, stop)
    try:
        fields: dict[str, Any] = {name: convert(name, value) for name, value in named.items()}
        if limit:
            fields["limits"] = limits(limit)
        done = [run(given(**fields | one)) for one in each(fields, output)]
    except LabError as error:
        typer.echo(f"measure: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:
        typer.echo(f"measure: {error.filename or ''} {error.strerror or error}; when that is mended, go on with --resume", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        several = len(context.params["card"] or ()) > 1
        same = "the same command and --resume" if several else f"homestretch measure --resume --output {output}"
        typer.echo(f"stopped; go on with: {same}", err=True)
        raise typer.Exit(1) from None
    for made in done:
        report(made.result, made.folder)
    if as_json:
        told = [
            {"run": str(made.folder), "exit": made.exit_code, "numbers": {n: x.value for n, x in made.result.numbers.items()}}
            for made in done
        ]
        sys.stdout.write(json.dumps(told[0] if len(told) == 1 else {"runs": told}) + "\n")
    raise typer.Exit(next((made.exit_code for made in done if made.exit_code), 0))


def each(fields: dict[str, Any], output: Path) -> list[dict[str, Any]]:
    """What differs from run to run: with several cards, a card and a folder of its name inside --output each."""
    cards = fields.pop("card", None) or []
    if len(cards) < 2:
        return [{"card": card} for card in cards] or [{}]
    output.mkdir(parents=True, exist_ok=True)
    # A run that was cut off in its first card has no folder of the next ones yet: those begin anew.
    folders = [(card, output / card.stem) for card in cards]
    return [{"card": card, "output": folder, "resume": bool(fields.get("resume")) and folder.exists()} for card, folder in folders]


def stop(*_: object) -> None:
    """SIGTERM ends a run as Ctrl-C does: the server is stopped, the folder can be resumed."""
    raise KeyboardInterrupt


WHOLE = ("prefill_depths", "conc_levels", "ctx_depths")


def convert(name: str, value: Any) -> Any:
    """An option's text as the field's type; WrongUse says what is allowed."""
    from homestretch.lab.errors import WrongUse

    option = f"--{name.replace('_', '-')}"
    if name in WHOLE:
        try:
            return tuple(int(piece) for piece in str(value).split(","))
        except ValueError:
            raise WrongUse(f"{option} {value!r}: give whole numbers with commas between, such as 2048,8192") from None
    if name == "buzzers":
        try:
            return tuple(float(piece) for piece in str(value).split(","))
        except ValueError:
            raise WrongUse(f"{option} {value!r}: give four limits in seconds, such as 60,90,120,180") from None
    if name in ("parts", "prompt_ids"):
        return tuple(piece.strip() for piece in str(value).split(",") if piece.strip())
    if name == "sampling":
        try:
            found = json.loads(value)
        except ValueError as error:
            raise WrongUse(f'{option} is no JSON ({error}); give an object such as {{"temperature": 1.0}}') from None
        if not isinstance(found, dict):
            raise WrongUse(f'{option} {value!r}: give a JSON object such as {{"temperature": 1.0}}')
        return found
    return value


def limits(texts: list[str]) -> dict[str, int]:
    from homestretch.lab.errors import WrongUse

    found = {}
    for text in texts:
        part, _, tokens = text.partition("=")
        if not part or not tokens.isdigit() or int(tokens) < 1:
            raise WrongUse(f"--limit {text!r}: give PART=TOKENS, such as mmlupro=1024")
        found[part] = int(tokens)
    return found


def report(result: Any, folder: Path) -> None:
    """The numbers and doubts for people, on stderr."""
    from rich.console import Console
    from rich.table import Table

    from homestretch.lab.doubts import DOUBTS

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=True, highlight=False, width=140)  # no name is cut short in a log file
    table = Table("number", "value", "unit", "n", "spread", "doubts")
    for name, number in result.numbers.items():
        value = "—" if number.value is None else f"{number.value:.2f}" if isinstance(number.value, float) else str(number.value)
        spread = "" if number.spread_pct is None else f"{number.spread_pct:.1f} %"
        table.add_row(name, value, number.unit, str(number.n), spread, ", ".join(number.doubts))
    console.print(table)
    for name, texts in result.doubts.items():
        for text in texts:
            console.print(f"[bold]{name}[/bold]: {text}. {DOUBTS[name].hint}", soft_wrap=True)
    for name, part in result.parts.items():
        if part.state != "done":
            console.print(f"[bold]{name} is {part.state}[/bold]: {part.reason}", soft_wrap=True)
    console.print(f"run folder: {folder}", soft_wrap=True)
