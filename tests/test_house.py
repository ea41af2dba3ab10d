"""Walls and floors that no import graph shows: file sizes, first lines, the environment, one place per command."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src" / "homestretch").rglob("*.py"))
MAX_LINES = 400


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES, "split it: one file, one subject"
    doc = ast.get_docstring(ast.parse(text)) or ""
    assert doc.strip(), "the first line of a file says what it is"
    assert len(doc.splitlines()[0]) <= 150


def test_only_config_reads_the_environment() -> None:
    allowed = {"src/homestretch/engine/config.py", "src/homestretch/lab/config.py"}
    offenders = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            reads = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"} and getattr(node.value, "id", "") == "os"
            if reads and name(path) not in allowed:
                offenders.append(f"{name(path)}:{node.lineno}")
    assert not offenders, "settings come from the command line or from config.py"


def test_no_assert_outside_tests() -> None:
    offenders = [
        f"{name(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert not offenders, "users' errors are exceptions that say what to do"


def test_no_catch_all_file_names() -> None:
    banned = {"utils", "util", "common", "manager", "helper", "helpers", "misc"}
    assert not [name(path) for path in SOURCES if path.stem in banned]
