"""What a person may set, from the command line; the only file of the engine that reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

DEFAULT_WINDOW = 16384
"""Tokens a stream may hold unless told otherwise, or the model's own window if that is smaller."""

DEFAULT_PROMPT_CACHE_GIB = 1.0


def cache_dir() -> Path:
    """Where pulled models and built code lie: HOMESTRETCH_CACHE if set, else the system's place for caches."""
    named = os.environ.get("HOMESTRETCH_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("homestretch"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What a request that is silent gets. Resolved: option, else the model's generation_config, else the neutral value."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    thinking: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the HTTP side behaves. body_bytes: largest request body; keys: accepted bearer tokens, none = open to all."""

    name: str
    window: int
    defaults: SamplingDefaults
    strict: bool = False
    keys: frozenset[str] = frozenset()
    body_bytes: int = 32 * 1024 * 1024
