"""Measures a contract again: its settings as options of a new run, on a server of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homestretch.lab.contract import read_card
from homestretch.lab.errors import WrongUse
from homestretch.lab.options import Options, given
from homestretch.lab.parts import names, select
from homestretch.lab.publish.runs import write_toml
from homestretch.lab.run import Measured
from homestretch.lab.run import measure as measure_options
from homestretch.lab.types import Contract

# Option <- settings of the contract that hold its value.
FIELDS = {
    "prompt_ids": ("decode.prompt_ids", "ctx.prompt_ids"),
    "runs": ("decode.runs",),
    "max_tokens": ("decode.max_tokens",),
    "warmups": ("decode.warmups",),
    "prefill_depths": ("prefill.depths",),
    "prefill_runs": ("prefill.runs",),
    "conc_levels": ("conc.levels",),
    "conc_rounds": ("conc.rounds",),
    "conc_max_tokens": ("conc.max_tokens",),
    "conc_prompt": ("conc.prompt", "prefill.prompt"),
    "ctx_depths": ("ctx.depths",),
    "ctx_runs": ("ctx.runs",),
    "ctx_max_tokens": ("ctx.max_tokens",),
    "seed": ("request.seed",),
    "at_once": ("measure.at_once",),
}


def options(contract: Contract, output: Path, *, base_url: str, parts: str, **more: Any) -> Options:
    """The options that measure the contract's parts again. WrongUse when it asks for a part that this lab does not have."""
    settings = {name: item.value for name, item in contract.settings.items()}
    asked = settings.get("parts") or sorted({name.split(".")[0] for name in settings} & set(names()))
    wanted = select(parts) if parts else tuple(part for part in asked if part in names())
    missing = [part for part in asked if part not in names()] if not parts else [part for part in wanted if part not in asked]
    if missing:
        raise WrongUse(
            f"the part {missing[0]!r} cannot be repeated: the contract has {', '.join(asked)}, this lab has {', '.join(names())}"
        )
    fields: dict[str, Any] = {"output": output, "parts": wanted, "model": contract.model, "label": output.name}
    for field, sources in FIELDS.items():
        value = next((settings[name] for name in sources if settings.get(name) is not None), None)
        if value is not None:
            fields[field] = tuple(value) if isinstance(value, list) else value
    sampling = {name.removeprefix("sampling."): value for name, value in settings.items() if name.startswith("sampling.")}
    if sampling:
        fields["sampling"] = sampling
        fields["sampling_source"] = "the contract that is repeated"
    limits = {
        part: settings[f"{part}.max_tokens"]
        for part in wanted
        if part not in ("decode", "prefill", "conc", "ctx", "gauntlet", "fit")
        and isinstance(settings.get(f"{part}.max_tokens"), int)
    }
    if limits:
        fields["limits"] = limits
    if contract.card is not None:
        card = output.with_name(output.name + "-page") / "card.toml"
        write_toml(card, contract.card)
        read_card(card)
        fields["card"] = card
    if base_url:
        fields["base_url"] = base_url
    elif contract.card is None:
        raise WrongUse("the contract holds no card, so the lab cannot start its server; give --base-url")
    fields |= {name: value for name, value in more.items() if value}
    return given(**fields)


def measure(contract: Contract, output: Path, *, base_url: str, parts: str = "", **more: Any) -> Measured:
    """Measure again into `output`."""
    return measure_options(options(contract, output, base_url=base_url, parts=parts, **more))
