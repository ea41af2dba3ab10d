"""Nouns of the lab: what a setup is, what a run keeps, what a number is. Frozen msgspec structs; unknown fields are refused.

Files of a run folder and who writes them are in docs/run-folder.md; names and definitions of numbers in docs/numbers.md.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything that is written to or read from a file."""


# --- the card: a setup as its author describes it ------------------------------------------------------------------------


class Link(Record, frozen=True, kw_only=True):
    label: str
    url: str


class Author(Record, frozen=True, kw_only=True):
    name: str
    handle: str = ""
    links: list[Link] = []


class Machine(Record, frozen=True, kw_only=True):
    """label: what the page prints; names: how notes call each machine taking part ("first DGX Spark"), never host names."""

    label: str
    memory_gb: int
    memory_kind: Literal["unified", "system", "discrete"] = "system"
    accelerator: str = ""
    note: str = ""
    names: list[str] = []


class Engine(Record, frozen=True, kw_only=True):
    """server names the file in lab/servers that can start it; artifact and sha256 identify the program that ran."""

    name: str
    version: str
    server: str
    description: str = ""
    artifact: str = ""
    sha256: str = ""
    commit: str = ""
    url: str = ""


class ModelFile(Record, frozen=True, kw_only=True):
    name: str
    bytes: int = 0
    sha256: str = ""


class ModelCard(Record, frozen=True, kw_only=True):
    """The served checkpoint. id: the name sent as `model`; location: what the start command is given."""

    id: str
    name: str
    location: str
    repository: str = ""
    revision: str = ""
    description: str = ""
    base: str = ""
    links: list[Link] = []
    files: list[ModelFile] = []
    tokenizer_json: str = ""


class Recipe(Record, frozen=True, kw_only=True):
    """Whose way of running the model this setup follows."""

    title: str
    author: str = ""
    url: str = ""
    path: str = ""


class Part(Record, frozen=True, kw_only=True):
    """One argument of the start command, explained. `argument` as it stands in the command, value included."""

    argument: str
    meaning: str


class Start(Record, frozen=True, kw_only=True):
    """command: argv with {location}, {port}, {window} to be filled in; parts explain it; steps come before it."""

    command: list[str]
    port: int = 8080
    parts: list[Part] = []
    steps: list[str] = []
    ready_s: float = 600.0


class Sourced(Record, frozen=True, kw_only=True):
    """A setting and where it came from."""

    value: Any
    source: str


class Thinking(Record, frozen=True, kw_only=True):
    """How thinking is switched in a request: the JSON path of a boolean, or "" when the model has no switch."""

    field: str = ""
    default: bool = False


class Card(Record, frozen=True, kw_only=True):
    """A setup card, such as `lab/cards/smollm2-135m.toml`. settings: window, slots and sampling fields, each with its source."""

    slug: str
    title: str
    summary: str = ""
    memory_class_gb: int
    author: Author
    machine: Machine
    engine: Engine
    model: ModelCard
    recipe: Recipe | None = None
    start: Start
    window: Sourced
    slots: Sourced
    sampling: Sourced
    thinking: Thinking = Thinking()
    specialist: str = ""
    differences: list[str] = []
    credits: list[Link] = []
    notes: dict[str, str] = {}


# --- the contract: every setting of a run, resolved, before the first request --------------------------------------------


class Contract(Record, frozen=True, kw_only=True):
    """`contract.json`. settings: flat dotted names such as "decode.runs", "sampling.temperature", "server.slots"."""

    schema: Literal[1] = 1
    run: str
    label: str
    created: str
    lab_version: str
    card: Card | None
    base_url: str
    model: str
    machine_name: str = ""
    settings: dict[str, Sourced]
    hashes: dict[str, str]
    machine: dict[str, Any]
    command: list[str]


# --- raw records ---------------------------------------------------------------------------------------------------------

EventKind = Literal["content", "reasoning", "text", "tool", "role", "usage", "finish", "comment", "done", "other"]


class Usage(Record, frozen=True, kw_only=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class RequestRecord(Record, frozen=True, kw_only=True):
    """A line of `requests-PART.jsonl`, written when its step has been judged. Times in seconds since t0 (perf_counter).

    events: (time, kind, tokens) of each stream event; tokens = how many the event carries, null where unknown. A counting
    event is one of kind content, reasoning, text or tool with non-empty text. k1_source: how tokens of the first are known.
    settings: the body as sent, without messages and prompt. extras: the server's own fields (timings, speculative, token_sha).
    offset_s: t0 relative to the step's start (conc: the barrier). discarded: why this attempt does not count, or "".
    of: how many requests the attempt consists of; an attempt with fewer lines was cut by a kill and does not count.
    A finish event with tokens >= 1 is the textless end token: it ends the reply's time (t_last), but never starts it (t_first).
    detail: what the part needs to score it (row id, depth, level, round, run, slot).
    """

    id: str
    part: str
    step: str
    attempt: int = 1
    of: int = 1
    at: str
    prompt_id: str = ""
    prompt_sha256: str
    prompt_tokens: int | None = None
    prompt_tokens_source: str = ""
    settings: dict[str, Any]
    offset_s: float = 0.0
    events: list[tuple[float, EventKind, int | None]] = []
    end_s: float = 0.0
    usage: Usage | None = None
    usage_where: str = ""
    k1: int | None = None
    k1_source: str = ""
    finish_reason: str | None = None
    status: int = 0
    error: str = ""
    extras: dict[str, Any] = {}
    discarded: str = ""
    detail: dict[str, Any] = {}


class ReplyRecord(Record, frozen=True, kw_only=True):
    """A line of `replies-PART.jsonl`: what the model said, untouched. Same id as its request."""

    id: str
    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []


class ProcessLoad(Record, frozen=True, kw_only=True):
    """Foreign CPU use of one process in percent of one core."""

    name: str
    pid: int
    cpu_pct: float


class GuardSample(Record, frozen=True, kw_only=True):
    """A line of `guard.jsonl` (every 0.5 s) or `quiet.jsonl` (every 10 s). at: wall clock, mono: perf_counter seconds."""

    at: str
    mono: float
    step: str = ""
    foreign: list[ProcessLoad] = []
    gpu_pct: float | None = None
    gpu_foreign: list[str] = []
    clock_mhz: float | None = None
    throttled: str = ""
    available_bytes: int = 0


class Answer(Record, frozen=True, kw_only=True):
    """A line of `answers-PART.jsonl`, derived. verdict as counted; row: the question's id in its set."""

    row: str
    verdict: Literal["right", "wrong", "cut", "unparsed", "empty", "timeout", "error"]
    reason: str = ""
    answer: str = ""
    tokens: int | None = None
    finish_reason: str | None = None
    seconds: float | None = None
    detail: dict[str, Any] = {}


class Number(Record, frozen=True, kw_only=True):
    """A figure of `result.json`. Full precision; a page rounds once. source: raw file (and lines) it was counted from."""

    value: float | int | None
    unit: str
    n: int = 0
    low: float | None = None
    high: float | None = None
    spread_pct: float | None = None
    doubts: list[str] = []
    source: str = ""


class StepSummary(Record, frozen=True, kw_only=True):
    """How the guard judged the steps of a part."""

    steps: int
    discarded: int
    samples: int
    busiest_name: str = ""
    busiest_pct: float = 0.0


class PartResult(Record, frozen=True, kw_only=True):
    """One part of a run: its state, what it asked for, and notes made from its counts."""

    state: Literal["done", "undecided", "invalid", "missing"]
    measured: str = ""
    reason: str = ""
    guard: StepSummary | None = None
    notes: list[str] = []
    detail: dict[str, Any] = {}


class Result(Record, frozen=True, kw_only=True):
    """`result.json`, derived from the raw files by `score`."""

    schema: Literal[1] = 1
    run: str
    scored_by: str
    parts: dict[str, PartResult]
    numbers: dict[str, Number]
    doubts: dict[str, list[str]] = {}


class ManifestEntry(Record, frozen=True, kw_only=True):
    bytes: int
    sha256: str


class Manifest(Record, frozen=True, kw_only=True):
    """`manifest.json`: every other file of the run folder, with size and hash."""

    schema: Literal[1] = 1
    files: dict[str, ManifestEntry]


class FileEntry(Record, frozen=True, kw_only=True):
    """A file of a run as published; `published.json` keeps one for each. state "changed": placeholders were put in."""

    name: str
    bytes: int
    sha256: str
    state: Literal["published", "changed", "held"]
    published_bytes: int = 0
    published_sha256: str = ""
    reason: str = ""
    replaced: dict[str, int] = {}


class Published(Record, frozen=True, kw_only=True):
    """`published.json` of a published run: each original file, what became of it, and why."""

    schema: Literal[1] = 1
    run: str
    files: list[FileEntry]


# --- the setup: runs joined into one page --------------------------------------------------------------------------------


class UnusedRun(Record, frozen=True, kw_only=True):
    part: str
    run: str
    reason: str
    machine: str = ""


class EarlierRun(Record, frozen=True, kw_only=True):
    """A run that counted until another one of the same part replaced it; kept for the setup's history."""

    part: str
    run: str
    replaced: str


class Setup(Record, frozen=True, kw_only=True):
    """`setup.toml` of a setup folder. runs: part (or group speed, quality) -> run folder that counts, relative to the file.

    machines: run folder name -> how the page calls its machine. earlier: runs that counted before, for the history.
    """

    card: str
    runs: dict[str, str]
    machines: dict[str, str] = {}
    unused: list[UnusedRun] = []
    earlier: list[EarlierRun] = []
    notes: dict[str, str] = {}
