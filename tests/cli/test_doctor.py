"""`homestretch doctor`: every operation of the program has a line, the chosen backend can run it, and a wrong model is said."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from typer.testing import CliRunner

from homestretch.cli import build, doctor
from homestretch.engine import backends
from homestretch.engine.program import Attrs


def run(*arguments: str) -> tuple[int, dict[str, object], str]:
    result = CliRunner().invoke(build(), ["doctor", *arguments, "--json"])
    return result.exit_code, json.loads(result.stdout), result.stderr


def test_every_operation_has_a_backend_and_a_reason() -> None:
    code, found, text = run()
    assert code == 0
    rows = {row["operation"]: row for row in found["operations"]}  # type: ignore[attr-defined]
    assert rows.keys() == {kind.__name__ for kind in get_args(Attrs)}
    for name, row in rows.items():
        assert set(row["backends"]) == set(backends.names())
        assert row["chosen"] is not None
        assert row["backends"][row["chosen"]] is None
        assert row["why"]
        assert name in text


def test_a_backend_without_an_operation_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from homestretch.engine.backends.cpu import lowering
    from homestretch.engine.program import Ssm

    monkeypatch.setattr(lowering, "KINDS", lowering.KINDS - {Ssm})
    rows = {row["operation"]: row for row in doctor.examine("", 0, "")["operations"]}
    assert rows["Ssm"]["chosen"] == "reference"
    assert "Ssm" in rows["Ssm"]["why"]
    assert rows["Linear"]["chosen"] != "reference"


def test_threads_and_foreign_load_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 100.0)
    found = doctor.examine("", 3, "")
    assert found["machine"]["threads"] == 3
    assert "BUSY" in doctor.as_text(found)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 0.0)
    assert "BUSY" not in doctor.as_text(doctor.examine("", 3, ""))


def test_a_model_that_cannot_be_opened_is_refused() -> None:
    code, found, text = run("no-such-folder")
    assert code == 1
    assert found["model"]["backend"] is None  # type: ignore[index]
    assert "no-such-folder" in text
