"""The contract: every setting of a run, resolved, each with its source, and the exact command that would measure it again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from homestretch import __version__
from homestretch.lab import machine, parts, prompts
from homestretch.lab.errors import WrongUse
from homestretch.lab.guard import LIMIT_PCT
from homestretch.lab.options import Options
from homestretch.lab.parts.prefill import depths_that_fit
from homestretch.lab.records import now, sha256_of
from homestretch.lab.servers import Facts, ServerKind
from homestretch.lab.types import Card, Contract, Sourced

Say = Callable[[str], None]


CARDS = Path(__file__).parent / "cards"
"""The cards that come with the lab; `measure NAME` finds them by file name."""


def read_card(path: Path) -> Card:
    """A setup card, by path or by the name of one that ships; WrongUse names the field that is wrong."""
    shipped = CARDS / f"{path}.toml"
    if not path.exists() and len(path.parts) == 1 and shipped.exists():
        path = shipped
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Card)
    except FileNotFoundError:
        names = ", ".join(sorted(card.stem for card in CARDS.glob("*.toml")))
        raise WrongUse(f"there is no card {path}; {names} ship with the lab, or give --base-url for a server that runs") from None
    except msgspec.MsgspecError as error:
        raise WrongUse(f"card {path}: {error}") from None


def text_of(path: Path | None, option: str) -> str:
    """The text of an option's file, "" when none was given; WrongUse when it cannot be read."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{option} {path} cannot be read: {error}") from None


def server_settings(options: Options, card: Card | None, facts: Facts) -> dict[str, Sourced]:
    """Window, slots, version and drafts: an option first, then what the server says, then the card, each with that source."""

    def first(*offers: tuple[Any, str]) -> Sourced:
        for value, source in offers:
            if value not in (None, ""):
                return Sourced(value=value, source=source)
        return Sourced(value=None, source="not known")

    version = text_of(options.engine_version_file, "--engine-version-file")
    return {
        "server.window": first(
            (options.server_ctx, options.server_ctx_source or "--server-ctx"),
            (facts.window, facts.window_source),
            (card.window.value if card else None, f"card: {card.window.source}" if card else ""),
        ),
        "server.slots": first(
            (options.server_slots, options.server_slots_source or "--server-slots"),
            (facts.slots, facts.slots_source),
            (card.slots.value if card else None, f"card: {card.slots.source}" if card else ""),
        ),
        "server.version": first(
            (version, "--engine-version-file"),
            (facts.version, "the server itself"),
            (f"{card.engine.name} {card.engine.version}" if card else None, "card"),
        ),
        "server.start_line": first((facts.start_line, "the server's log")),
        "server.drafts": first((facts.drafts, "the server's start line")),
    }


def request_settings(options: Options, card: Card | None, kind: ServerKind) -> dict[str, Sourced]:
    """What each request carries: sampling, seed, the thinking switch, and fields against the prompt cache."""
    found: dict[str, Sourced] = {}
    if options.sampling is not None:
        sampling, source = options.sampling, options.sampling_source or "--sampling"
    elif card is not None and isinstance(card.sampling.value, dict):
        sampling, source = card.sampling.value, f"card: {card.sampling.source}"
    else:
        sampling, source = {}, ""
    found |= {f"sampling.{name}": Sourced(value=value, source=source) for name, value in sampling.items()}
    found["request.seed"] = Sourced(value=options.seed, source=options.source("seed"))
    if options.no_cache_prompt:
        if not kind.no_cache:
            raise WrongUse(
                f"--no-cache-prompt: {kind.name} has no request field for that; switch its prompt cache off when it starts"
            )
        found |= {
            f"request.{name}": Sourced(value=value, source=f"--no-cache-prompt for {kind.name}")
            for name, value in kind.no_cache.items()
        }
    found |= {f"request.{name}": Sourced(value=value, source="--extra") for name, value in options.extra.items()}
    if card is not None:
        found["thinking.field"] = Sourced(value=card.thinking.field, source="card")
        found["thinking.default"] = Sourced(value=card.thinking.default, source="card")
    return found


def fit_window(options: Options, window: Any) -> Options:
    """Default depths are cut to the window, and the contract says so; depths a person gave must fit, or are refused."""
    if not isinstance(window, int):
        return options
    options = replace(options, window=window)
    for name, reply in (("prefill_depths", 8), ("ctx_depths", options.ctx_max_tokens)):
        if name.split("_")[0] not in options.parts:
            continue
        wanted: tuple[int, ...] = getattr(options, name)
        fit = depths_that_fit(wanted, window, reply)
        if fit == wanted:
            continue
        if name in options.given:
            option = name.replace("_", "-")
            raise WrongUse(
                f"--{option} {','.join(map(str, wanted))}: the window of {window} tokens holds prompt and {reply} reply tokens "
                f"only up to {window - reply}; give smaller depths or serve a larger window"
            )
        cut: dict[str, Any] = {name: fit, "sources": {**options.sources, name: f"default, cut to the window of {window} tokens"}}
        options = replace(options, **cut)
    return options


def part_settings(options: Options) -> tuple[dict[str, Sourced], dict[str, str]]:
    """Settings and data hashes of every part that will run, with the part's version."""
    settings: dict[str, Sourced] = {}
    hashes: dict[str, str] = {}
    for name in options.parts:
        part = parts.load(name)
        settings[f"{name}.version"] = Sourced(value=part.version, source="the part")
        settings |= {f"{name}.{short}": value for short, value in part.settings(options).items()}
        hashes |= part.hashes(options)
    return settings, hashes


def file_hashes(options: Options, card: Card | None, command: list[str], say: Say) -> dict[str, str]:
    """sha256 of prompts, tokenizer, engine file and weights, as far as they lie here; the card's own where they do not."""
    hashes = {"prompts": prompts.read(options.prompts)[1]}
    tokenizer = options.tokenizer_json or (
        Path(card.model.tokenizer_json).expanduser() if card and card.model.tokenizer_json else None
    )
    if tokenizer is not None and tokenizer.exists():
        hashes["tokenizer.json"] = sha256_of(tokenizer)
    if command and (program := shutil.which(command[0])) is not None:
        hashes[f"engine/{Path(command[0]).name}"] = sha256_of(Path(program).resolve())
    if card is None:
        return hashes
    if card.engine.sha256:
        hashes[f"card/engine/{Path(card.engine.artifact).name or card.engine.name}"] = card.engine.sha256
    for file in card.model.files:
        if file.sha256:
            hashes[f"card/weights/{file.name}"] = file.sha256
    for path in weight_files(card):
        say(f"hashing {path.name} ({path.stat().st_size / 2**30:.2f} GiB)")
        hashes[f"weights/{path.name}"] = sha256_of(path)
    return hashes


def weight_files(card: Card) -> list[Path]:
    """Weight files of a location that is a file or a folder here; [] for names and aliases."""
    place = Path(card.model.location).expanduser()
    if place.is_file():
        return [place]
    if place.is_dir():
        return sorted(path for path in place.iterdir() if path.suffix in (".safetensors", ".gguf"))
    return []


def refuse_other_weights(hashes: Mapping[str, str]) -> None:
    """WrongUse when a weight file here is not the one the card names."""
    for name, digest in hashes.items():
        claimed = hashes.get(f"card/{name}")
        if claimed is not None and claimed != digest:
            raise WrongUse(
                f"{name.removeprefix('weights/')}: its sha256 is {digest[:16]}…, the card says {claimed[:16]}…; correct one of them"
            )


def make(
    *,
    options: Options,
    card: Card | None,
    base_url: str,
    model: str,
    settings: dict[str, Sourced],
    hashes: dict[str, str],
) -> Contract:
    run = options.label or options.output.name
    listed = {
        "parts": Sourced(value=list(options.parts), source=options.source("parts")),
        "measure.at_once": Sourced(value=options.at_once, source=options.source("at_once")),
        "guard.limit_pct": Sourced(value=LIMIT_PCT, source="the guard"),
        "guard.allow_load": Sourced(value=options.allow_load, source=options.source("allow_load")),
    }
    return Contract(
        run=run,
        label=options.label or run,
        created=now(),
        lab_version=__version__,
        card=card,
        base_url=base_url,
        model=model,
        machine_name=options.machine_name,
        settings={**listed, **settings},
        hashes=hashes,
        machine=machine.facts(),
        command=command(options, base_url, model),
    )


def command(options: Options, base_url: str, model: str) -> list[str]:
    """argv that measures the same again; local places are $RUN (the new run folder), $HOME and $FILES."""
    argv = ["homestretch", "measure"]
    if options.card is not None:
        argv.append(placed(options.card))
    if options.card is None or options.base_url:
        argv += ["--base-url", base_url]
    argv += ["--model", model, "--label", options.label or options.output.name, "--output", "$RUN"]
    argv += ["--parts", ",".join(options.parts)]
    plain: dict[str, Any] = {
        "--prompts": options.prompts,
        "--prompt-ids": options.prompt_ids,
        "--runs": options.runs,
        "--max-tokens": options.max_tokens,
        "--warmups": options.warmups,
        "--prefill-depths": options.prefill_depths,
        "--prefill-runs": options.prefill_runs,
        "--conc-levels": options.conc_levels,
        "--conc-rounds": options.conc_rounds,
        "--conc-max-tokens": options.conc_max_tokens,
        "--conc-prompt": options.conc_prompt,
        "--ctx-depths": options.ctx_depths,
        "--ctx-runs": options.ctx_runs,
        "--ctx-max-tokens": options.ctx_max_tokens,
        "--tokenizer-json": options.tokenizer_json,
        "--sampling": json.dumps(options.sampling) if options.sampling is not None else None,
        "--sampling-source": options.sampling_source or None,
        "--seed": options.seed,
        "--server-log": options.server_log,
        "--engine-version-file": options.engine_version_file,
        "--server-slots": options.server_slots,
        "--server-slots-source": options.server_slots_source or None,
        "--server-ctx": options.server_ctx,
        "--server-ctx-source": options.server_ctx_source or None,
        "--at-once": options.at_once,
        "--data": options.data,
        "--season": options.season if "gauntlet" in options.parts else None,
        "--buzzers": options.buzzers or None,
        "--fit-smallest": options.fit_smallest if "fit" in options.parts else None,
        "--fit-largest": options.fit_largest if "fit" in options.parts else None,
        "--limit-gib": options.limit_gib,
    }
    for name, value in plain.items():
        if value is None:
            continue
        text = placed(value) if isinstance(value, Path) else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        argv += [name, text]
    for part, limit in sorted(options.limits.items()):
        argv += ["--limit", f"{part}={limit}"]
    argv += ["--no-cache-prompt"] if options.no_cache_prompt else []
    argv += ["--thinking"] if options.thinking else []
    argv += ["--allow-load"] if options.allow_load else []
    argv += ["--unsafe-code-execution"] if options.unsafe_code_execution else []
    return argv


def placed(path: Path) -> str:
    """A path without this machine in it: relative ones as they are, under the home folder $HOME/…, others $FILES/NAME."""
    if not path.is_absolute():
        return path.as_posix()
    try:
        return f"$HOME/{path.relative_to(Path.home()).as_posix()}"
    except ValueError:
        return f"$FILES/{path.name}"
