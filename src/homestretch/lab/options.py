"""What a person may set for a measuring run: one field an option of `homestretch measure`, and the demo profile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of one run. `given` names the fields that a person set; the others are defaults, and the contract says which.

    card: a setup card; base_url: a server that runs already (either, or both: then the card describes and the URL is measured).
    season, thinking, buzzers (seconds, () = the game's own): the gauntlet's. fit_smallest … fit_largest: windows of fit, doubling.
    limit_gib: fit stops before the rise of used memory comes to this (None: what the machine can spare).
    limits: PART -> answer limit in tokens (`--limit mmlupro=1024`).
    window: what the server says, once it is asked. prompts: a file of task prompts, ours if None.
    """

    card: Path | None = None
    base_url: str = ""
    model: str = ""
    label: str = ""
    output: Path = Path("run")
    parts: tuple[str, ...] = ()
    prompts: Path | None = None
    prompt_ids: tuple[str, ...] = ("code", "prose")
    runs: int = 2
    max_tokens: int = 512
    warmups: int = 1
    prefill_depths: tuple[int, ...] = (2048, 8192, 32768)
    prefill_runs: int = 3
    conc_levels: tuple[int, ...] = (1, 2, 4, 8)
    conc_rounds: int = 2
    conc_max_tokens: int = 512
    conc_prompt: str = "prose"
    ctx_depths: tuple[int, ...] = (16384, 32768, 65536, 131072)
    ctx_runs: int = 2
    ctx_max_tokens: int = 512
    tokenizer_json: Path | None = None
    sampling: dict[str, Any] | None = None
    sampling_source: str = ""
    seed: int = 42
    contract: Path | None = None
    no_cache_prompt: bool = False
    server_log: Path | None = None
    engine_version_file: Path | None = None
    server_slots: int | None = None
    server_slots_source: str = ""
    server_ctx: int | None = None
    server_ctx_source: str = ""
    at_once: int = 8
    season: int = 21
    thinking: bool = False
    buzzers: tuple[float, ...] = ()
    fit_smallest: int = 4096
    fit_largest: int = 131072
    limit_gib: float | None = None
    limits: dict[str, int] = field(default_factory=dict)
    data: Path | None = None
    resume: bool = False
    allow_load: bool = False
    unsafe_code_execution: bool = False
    machine_name: str = ""
    api_key_file: Path | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    profile: str = ""
    given: frozenset[str] = frozenset()
    sources: dict[str, str] = field(default_factory=dict)
    window: int | None = None

    def source(self, name: str) -> str:
        """Where the value of a field came from, in the words of the contract."""
        if name in self.sources:
            return self.sources[name]
        if name in self.given:
            return f"--{name.replace('_', '-')}"
        return f"profile {self.profile}" if self.profile else "default"


def given(**values: Any) -> Options:
    """Options with these fields set by a person."""
    return Options(**values, given=frozenset(values))


def demo(options: Options) -> Options:
    """The profile of `homestretch demo`: short replies, two levels and depths, 40 questions of ours; doubted as `short_run`."""
    return replace(
        options,
        profile="demo",
        parts=("decode", "prefill", "conc", "mmlupro"),
        data=options.data or Path("house"),
        max_tokens=128,
        runs=2,
        prefill_depths=(512, 2048),
        prefill_runs=2,
        conc_levels=(1, 2),
        conc_rounds=1,
        conc_max_tokens=128,
    )
