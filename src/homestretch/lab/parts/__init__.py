"""The tests of the lab, one file a part, found by file name: what a part offers, and the example its shared test runs."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from homestretch.lab.errors import WrongUse
from homestretch.lab.types import Answer, Contract, Number, PartResult, Sourced

if TYPE_CHECKING:
    from homestretch.lab.context import Context
    from homestretch.lab.options import Options
    from homestretch.lab.records import RunFolder

Group = Literal["speed", "quality", "other"]
ORDER = ("decode", "prefill", "conc", "ctx", "mmlupro", "gpqa", "ifeval", "lcb", "ruler", "think", "gauntlet", "fit")


@dataclass(frozen=True, kw_only=True)
class NumberSpec:
    """A number a part makes. Segments of `name` in capitals stand for many: `prefill.DEPTH.ttft_s`. digits: as a page prints it."""

    name: str
    unit: str
    digits: int
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What `score` derives from the raw files of a part. doubts: doubt -> what exactly was seen (one sentence each)."""

    part: PartResult
    numbers: Mapping[str, Number]
    answers: tuple[Answer, ...] = ()
    doubts: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FakeAnswer:
    """What `fake` says to a request whose text (all messages joined by newlines) contains `match`; the first that fits speaks."""

    match: str
    text: str
    reasoning: str = ""
    finish_reason: str = "stop"


@dataclass(frozen=True, kw_only=True)
class Example:
    """A run of the part against `fake`: fields of Options to set, what it answers, the numbers that must come out.

    A number given as None only has to exist with a value; timed ones cannot be fixed. files: other data the options name,
    written into the test's folder first; `{folder}` in an option's text stands for that folder.
    """

    options: Mapping[str, Any]
    answers: tuple[FakeAnswer, ...] = ()
    numbers: Mapping[str, float | int | None] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


class Part(ABC):
    """One test. Each file `lab/parts/NAME.py` holds one subclass and `PART = ItsClass()`; `name` equals the file's name."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    group: ClassVar[Group]
    asks: ClassVar[str]
    numbers: ClassVar[tuple[NumberSpec, ...]]

    @abstractmethod
    def settings(self, options: Options) -> dict[str, Sourced]:
        """Every setting of the part, resolved, with its source; short names, the contract puts `NAME.` in front."""

    def hashes(self, options: Options) -> dict[str, str]:
        """sha256 of the data the part reads (prompts, question sets), for the contract."""
        return {}

    @abstractmethod
    def plan(self, contract: Contract) -> tuple[str, ...]:
        """Step ids in the order they run; () where only the data tell. Progress, resume and `score` go by them."""

    @abstractmethod
    def run(self, context: Context) -> None:
        """Measure: `context.step(...)` for each step. A step already in the raw files is not run again."""

    @abstractmethod
    def score(self, run: RunFolder) -> Scored:
        """Numbers from the raw files alone, without the server."""

    @abstractmethod
    def example(self) -> Example:
        """For the shared test of parts."""


def names() -> tuple[str, ...]:
    """Parts that are present, in the order they run."""
    present = {info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")}
    return tuple(name for name in ORDER if name in present) + tuple(sorted(present - set(ORDER)))


def load(name: str) -> Part:
    """The part called `name`; WrongUse when there is none."""
    if name not in names():
        raise WrongUse(f"no part is called {name!r}; there are: {', '.join(names())}; groups: speed, quality")
    part = importlib.import_module(f"{__name__}.{name}").PART
    if not isinstance(part, Part) or part.name != name:
        raise WrongUse(f"lab/parts/{name}.py must hold PART, a Part whose name is {name!r}")
    return part


def select(text: str) -> tuple[str, ...]:
    """Names for `--parts`: comma-separated parts or groups, in running order, each once."""
    wanted: set[str] = set()
    for word in (piece.strip() for piece in text.split(",")):
        if word in ("speed", "quality"):
            wanted |= {name for name in names() if load(name).group == word}
        elif word:
            wanted.add(load(word).name)
    if not wanted:
        raise WrongUse(f"--parts {text!r} names no part; there are: {', '.join(names())}; groups: speed, quality")
    return tuple(name for name in names() if name in wanted)
