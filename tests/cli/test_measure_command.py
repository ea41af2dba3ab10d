"""`homestretch measure` with several cards makes a run folder of each, named by its card."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from homestretch.cli import build
from homestretch.lab import run


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of every run that the command asked for; nothing is measured."""
    asked: list[Any] = []

    def measure(options: Any) -> Any:
        asked.append(options)
        return SimpleNamespace(folder=options.output, exit_code=0, result=SimpleNamespace(numbers={}, doubts={}, parts={}))

    monkeypatch.setattr(run, "measure", measure)
    return asked


@pytest.mark.parametrize(
    ("cards", "folders"),
    [(["smollm2-135m"], ["side"]), (["smollm2-135m", "hybrid-10m"], ["side/smollm2-135m", "side/hybrid-10m"])],
)
def test_each_card_has_its_folder(cards: list[str], folders: list[str], tmp_path: Path, seen: list[Any]) -> None:
    done = CliRunner().invoke(build(), ["measure", *cards, "--output", str(tmp_path / "side"), "--runs", "3"])
    assert done.exit_code == 0, done.output
    assert [options.output for options in seen] == [tmp_path / folder for folder in folders]
    assert [str(options.card) for options in seen] == cards
    assert {options.runs for options in seen} == {3}


def test_resumed_cards_that_were_not_reached_begin_anew(tmp_path: Path, seen: list[Any]) -> None:
    (tmp_path / "side" / "smollm2-135m").mkdir(parents=True)
    command = ["measure", "smollm2-135m", "hybrid-10m", "--output", str(tmp_path / "side"), "--resume"]
    done = CliRunner().invoke(build(), command)
    assert done.exit_code == 0, done.output
    assert [options.resume for options in seen] == [True, False]
