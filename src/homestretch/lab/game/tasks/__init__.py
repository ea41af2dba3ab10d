"""The Gauntlet's tasks, one file here each: `TASK` is made from a season and judges a reply on five targets.

A task's bytes depend on the season alone. A verdict depends on the task and the reply alone; a program that a model wrote is run
by `run`, which the caller brings, on cases that the statement does not show.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from homestretch.lab.game.answers import KEYS, puzzle

TARGETS = 5

Kind = Literal["puzzle", "code"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a program did with one case. fault is "" or why it gave no answer ("exit status 1", "over 10 s", …)."""

    stdout: str
    fault: str = ""


Run = Callable[[str, str], Outcome]
"""Runs a Python program (its text) with a standard input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A task of one season: the statement as sent, and per target what the verifier needs. `targets` is plain JSON."""

    statement: str
    targets: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """The verdict on one target; reason says in a few words why it was missed, "" for a hit."""

    hit: bool
    reason: str = ""


class Task(Protocol):
    """One file here. `judge` gives TARGETS shots and never raises for anything a model can write."""

    name: str
    title: str
    kind: Kind

    def make(self, season: int) -> Made: ...

    def judge(self, made: Made, reply: str, run: Run) -> tuple[Shot, ...]: ...


def missed(reason: str) -> tuple[Shot, ...]:
    """Five misses for one reason."""
    return (Shot(hit=False, reason=reason),) * TARGETS


def puzzles(made: Made, reply: str, fault: Callable[[dict[str, Any], object], str], missing: str) -> tuple[Shot, ...]:
    """One shot a puzzle of a JSON answer; fault(target, answer) is "" for a right one, missing the reason for none."""
    answer = puzzle(reply)
    if answer is None:
        return missed("no JSON answer")
    shots = []
    for key, target in zip(KEYS, made.targets, strict=True):
        reason = fault(target, answer[key]) if key in answer else missing
        shots.append(Shot(hit=not reason, reason=reason))
    return tuple(shots)


def names() -> tuple[str, ...]:
    """Names of the tasks in this folder, sorted."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(__path__)))


def find(name: str) -> Task:
    """The task of a file here. KeyError for a name that is not in `names()`."""
    if name not in names():
        raise KeyError(name)
    task: Task = importlib.import_module(f"{__name__}.{name}").TASK
    return task
