"""LiveCodeBench's rules: which code counts, when an output is right, and how a task's tests are run in the sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from homestretch.lab.sandbox import Limits, Outcome, Sandbox

VERSION = 1
TEST_S = 6.0
LIMITS = Limits(wall_s=TEST_S)
TaskVerdict = Literal["right", "wrong", "timeout", "unparsed"]

# Names that programs of such contests take for granted; the official harness puts the same modules in front.
PREAMBLE = """
import sys
sys.setrecursionlimit(50000)
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from typing import *
from builtins import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics
import itertools, functools, operator, io, sys, json
"""
RUN = 'exec(compile({code!r}, "solution.py", "exec"), globals())\n'
# A method is called with one JSON value a line; its result goes out as JSON that keeps Python's types apart, behind a mark, after
# all that it printed. (A Python literal would do, but reading a hostile one can take the grader down.)
CALL = """
import json as _json, sys as _sys
def _told(value):
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple, set):
        return [kind.__name__, *map(_told, value)]
    if kind is dict:
        return ["dict", *([_told(key), _told(entry)] for key, entry in value.items())]
    return ["other"]
_values = [_json.loads(_line) for _line in _sys.stdin.read().split("\\n") if _line.strip()]
_owner = Solution() if "Solution" in globals() else _sys.modules["__main__"]
_result = getattr(_owner, {name!r})(*_values)
_sys.stdout.flush()
_sys.__stdout__.write("\\n" + {mark!r} + _json.dumps(_told(_result)) + "\\n")
_sys.__stdout__.flush()
"""
MARK = "<<result 6f1c>> "


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test of a task. stdin tests: text in and out; functional ones: one JSON value a line in, one JSON value out."""

    given: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """verdict on a task; reason names the first test that failed (from 1) and how, never what it holds."""

    verdict: TaskVerdict
    reason: str = ""
    passed: int = 0
    failed_test: int | None = None


def extract_code(answer: str) -> str | None:
    """What stands between the last two lines that hold a fence; None when there are fewer than two."""
    lines = answer.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    if len(fences) < 2:
        return None
    return "\n".join(lines[fences[-2] + 1 : fences[-1]])


def program(code: str, function: str = "") -> str:
    """The whole program for one test: the names, the model's code, and for functional tests the call."""
    text = PREAMBLE + RUN.format(code=code)
    return text + CALL.format(name=function, mark=MARK) if function else text


def same_output(said: str, expected: str) -> bool:
    """Line by line without outer blanks: equal, or equal as lists of decimal numbers. No tolerance."""
    mine, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (said, expected))
    return len(mine) == len(theirs) and all(a == b or _same_numbers(a, b) for a, b in zip(mine, theirs, strict=True))


def _same_numbers(said: str, expected: str) -> bool:
    try:
        return [Decimal(word) for word in said.split()] == [Decimal(word) for word in expected.split()]
    except InvalidOperation:
        return False


def same_value(said: str, expected: str) -> bool:
    """A result as `CALL` tells it against a JSON value: `==`, a tuple counting as a list."""
    try:
        value = _untold(json.loads(said))
    except (ValueError, TypeError, RecursionError):
        return False
    if isinstance(value, tuple):
        value = list(value)
    return bool(value == json.loads(expected))


def _untold(told: Any) -> Any:
    """The value that `_told` in `CALL` wrote; TypeError or ValueError for what it never writes."""
    if not isinstance(told, list):
        return told
    kind, *parts = told
    if kind == "dict":
        return {_untold(key): _untold(entry) for key, entry in parts}
    makers: dict[Any, Any] = {"list": list, "tuple": tuple, "set": set}
    if kind not in makers:
        return object()
    return makers[kind](_untold(part) for part in parts)


def run_test(sandbox: Sandbox, code: str, test: Case, function: str = "", limits: Limits = LIMITS) -> tuple[TaskVerdict, str]:
    """One test as a real process with the test on its real standard input."""
    outcome = sandbox.run(program(code, function), test.given, limits)
    if outcome.status == "timeout":
        return "timeout", f"not done in {limits.wall_s:g} s"
    said = outcome.stdout.decode("utf-8", "replace")
    if not outcome.ok:
        return "wrong", _ending(outcome)
    if function:
        _, mark, result = said.rpartition("\n" + MARK)
        if not mark:
            return "wrong", "no result"
        return ("right", "") if same_value(result.strip(), test.expected) else ("wrong", "wrong result")
    return ("right", "") if same_output(said, test.expected) else ("wrong", "wrong output")


def _ending(outcome: Outcome) -> str:
    """How a program failed, in words without anything the program said but the name of its error."""
    if outcome.status != "crashed":
        return {"memory": "too much memory", "flood": "too much output"}.get(outcome.status, outcome.status)
    lines = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
    named = re.match(r"([A-Za-z_][A-Za-z0-9_.]{0,60}(?:Error|Exception|Interrupt|Exit|Iteration))\b", lines[-1]) if lines else None
    if named:
        return f"crashed: {named[1].rpartition('.')[2]}"
    if outcome.exit_code is not None and outcome.exit_code < 0:
        return f"crashed: signal {-outcome.exit_code}"
    return f"crashed: exit code {outcome.exit_code}"


def judge(
    sandbox: Sandbox, answer: str, tests: Sequence[Case], function: str = "", *, begin: int = 0, limits: Limits = LIMITS
) -> Judged:
    """Runs the tests in order until one fails. begin: the first test to run, those before it passed already.

    A time-out is only a suspicion while other programs run: call again with `begin` at it on a quiet machine.
    """
    code = extract_code(answer)
    if code is None:
        return Judged(verdict="unparsed", reason="no code between two fences")
    for number in range(begin, len(tests)):
        verdict, reason = run_test(sandbox, code, tests[number], function, limits)
        if verdict != "right":
            where = f"test {number + 1} of {len(tests)}: {reason}"
            return Judged(verdict=verdict, reason=where, passed=number, failed_test=number)
    return Judged(verdict="right", passed=len(tests))
