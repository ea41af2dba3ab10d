"""What a folder in the Hugging Face manner says beside its weights: config.json, defaults of replies, chat template, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from homestretch.engine.checkpoint import TextDefaults
from homestretch.engine.errors import CheckpointError


def _special_floats(found: dict[str, Any]) -> Any:
    """mlx-lm writes infinity as {"__float__": "Infinity"}; elsewhere it is the bare token Infinity."""
    return float(found["__float__"]) if set(found) == {"__float__"} else found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. CheckpointError: no such file, not JSON, not an object."""
    where = f"{path.parent.name}/{path.name}"
    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_hook=_special_floats)
    except OSError as error:
        raise CheckpointError(f"{where} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{where} holds a {type(found).__name__}; an object is wanted")
    return found


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _ends(value: Any, where: str) -> frozenset[int]:
    """eos_token_id: one id, a list of ids, or null."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
        raise CheckpointError(f"{where}: eos_token_id is {value!r}; a token id or a list of them is wanted")
    return frozenset(ids)


def _number(config: Mapping[str, Any], key: str, low: float, high: float) -> float | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise CheckpointError(f"generation_config.json: {key} is {value!r}; a number from {low:g} to {high:g} is wanted")
    return float(value)


def _token(value: Any) -> str | None:
    """A special token's text: a string, or an object with its content."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template(folder: Path, tokenizer: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or the template in tokenizer_config.json (one, or a list of named ones of which "default" counts)."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = tokenizer.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def text_defaults(folder: Path, config: Mapping[str, Any]) -> TextDefaults:
    """End tokens of config.json and generation_config.json joined; sampling from the latter, greedy if it says so.

    Without generation_config.json no sampling is stated (every field None).
    """
    generation = _optional(folder / "generation_config.json")
    tokenizer = _optional(folder / "tokenizer_config.json")
    ends = _ends(config.get("eos_token_id"), "config.json") | _ends(generation.get("eos_token_id"), "generation_config.json")
    greedy = generation.get("do_sample") is False
    top_k = _number(generation, "top_k", 0, 1 << 31)
    return TextDefaults(
        ends=ends,
        temperature=0.0 if greedy else _number(generation, "temperature", 0.0, 100.0),
        top_p=None if greedy else _number(generation, "top_p", 0.0, 1.0),
        top_k=None if greedy or top_k is None else int(top_k),
        min_p=None if greedy else _number(generation, "min_p", 0.0, 1.0),
        chat_template=_template(folder, tokenizer),
        bos_token=_token(tokenizer.get("bos_token")),
        eos_token=_token(tokenizer.get("eos_token")),
        source="generation_config.json" if generation else "",
    )


def load_tokenizer(folder: Path) -> Tokenizer:
    """tokenizer.json as a Tokenizer. CheckpointError: it is missing or damaged."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"{folder.name}: tokenizer.json is missing")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the binding raises bare Exception
        raise CheckpointError(f"{folder.name}: tokenizer.json cannot be read: {error}") from None
