"""Programming tasks with public and hidden tests, in LiveCodeBench's layout; pickled ones load no class."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homestretch.lab.data import tables
from homestretch.lab.errors import LabError
from homestretch.lab.graders.lcb import Case

SYSTEM = "You are an expert Python programmer. You write correct Python programs that solve the given task and pass all tests."
WITH_STARTER = "Complete the starter code below and put the whole program between the fences.\n```python\n{starter}\n```"
WITHOUT_STARTER = (
    "Read the input from standard input, solve the task and write the answer to standard output. Put the whole program "
    "between the fences.\n```python\n# YOUR PROGRAM\n```"
)
MOST_TEST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class CodeTask:
    """function: the method to call, "" for programs that read standard input. tests: public ones first."""

    row: str
    question: str
    starter: str
    function: str
    date: str
    tests: tuple[Case, ...]

    def messages(self) -> list[dict[str, str]]:
        end = WITH_STARTER.format(starter=self.starter.rstrip()) if self.starter.strip() else WITHOUT_STARTER
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{self.question.strip()}\n\n{end}"}]


class _NoClasses(pickle.Unpickler):
    """Plain values only: a pickle that names any class or function is refused before it can run."""

    def find_class(self, module: str, name: str) -> Any:
        raise LabError(f"the hidden tests name {module}.{name}; test data holds plain text, nothing else is loaded")

    def persistent_load(self, pid: Any) -> Any:
        raise LabError("the hidden tests refer to an object outside; test data holds plain text, nothing else is loaded")


def hidden_tests(packed: str) -> list[dict[str, Any]]:
    """JSON text as it stands, or base64 of zlib of a pickled JSON text."""
    try:
        found = json.loads(packed) if packed.lstrip().startswith("[") else _unpickled(packed)
    except (ValueError, TypeError, zlib.error, pickle.UnpicklingError, EOFError, IndexError, KeyError, AttributeError) as error:
        raise LabError(
            f"hidden tests cannot be unpacked ({type(error).__name__}); the file is damaged or of another layout"
        ) from error
    if not isinstance(found, list) or not all(isinstance(test, dict) and {"input", "output"} <= set(test) for test in found):
        raise LabError("hidden tests cannot be unpacked: they are no list of inputs and outputs; the file is of another layout")
    return found


def _unpickled(packed: str) -> Any:
    inflate = zlib.decompressobj()
    data = inflate.decompress(base64.b64decode(packed, validate=True), MOST_TEST_BYTES)
    if inflate.unconsumed_tail:
        raise LabError(f"hidden tests unpack to more than {MOST_TEST_BYTES >> 20} MiB; this is no set of tests")
    return json.loads(_NoClasses(io.BytesIO(data)).load())


def read(path: Path, newest: int | None = None) -> list[CodeTask]:
    """Tasks ordered by contest date, then id; only the `newest` of them when given."""
    found = tables.rows(path)
    tables.need(
        found, ("question_id", "question_content", "starter_code", "contest_date", "public_test_cases", "private_test_cases"), path
    )
    tables.unique((str(row["question_id"]) for row in found), path)
    found.sort(key=lambda row: (str(row["contest_date"]), str(row["question_id"])))
    return [_task(row) for row in (found[-newest:] if newest else found)]


def _task(row: dict[str, Any]) -> CodeTask:
    metadata = (
        json.loads(row["metadata"]) if isinstance(row.get("metadata"), str) and row["metadata"] else row.get("metadata") or {}
    )
    tests = [*_listed(row["public_test_cases"]), *_listed(row["private_test_cases"])]
    kinds = {str(test.get("testtype", "stdin")) for test in tests}
    function = str(metadata.get("func_name") or "")
    if not tests or len(kinds) != 1 or ("functional" in kinds) != bool(function):
        raise LabError(
            f"task {row['question_id']} has tests of kinds {sorted(kinds)} and function {function!r}; they do not fit together"
        )
    return CodeTask(
        row=str(row["question_id"]),
        question=str(row["question_content"]),
        starter=str(row["starter_code"] or ""),
        function=function,
        date=str(row["contest_date"])[:10],
        tests=tuple(Case(given=str(test["input"]), expected=str(test["output"])) for test in tests),
    )


def _listed(value: Any) -> Sequence[dict[str, Any]]:
    return hidden_tests(value) if isinstance(value, str) else list(value)
