"""What a person may set, from the command line; the one place where the engine may read the environment."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_WINDOW = 16384
"""Tokens a stream may hold unless told otherwise, or the model's own window if that is smaller."""

DEFAULT_PROMPT_CACHE_GIB = 1.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """`homestretch serve` as it was typed. None and "" mean: not given. window 0 = the model's own; streams 0 = auto."""

    host: str = "127.0.0.1"
    port: int = 8080
    name: str = ""
    window: int | None = None
    streams: int = 0
    drafts: tuple[str, ...] = ("copies", "mtp")
    backend: str = ""
    threads: int = 0
    device: str = ""
    memory_bytes: int | None = None
    prompt_cache_bytes: int | None = None
    api_key_file: str = ""
    strict: bool = False
    four_bit: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    thinking: bool | None = None
