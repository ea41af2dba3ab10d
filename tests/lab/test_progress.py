"""Rate and time left follow the pace of a part, also when steps run at once or were done before."""

from __future__ import annotations

import io

import pytest

from homestretch.lab import progress
from homestretch.lab.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_steps_at_once_are_not_counted_one_after_the_other(clock: list[float]) -> None:
    told = Progress(io.StringIO())
    told.plan("mmlupro", 40)
    for step in range(8):
        told.start("mmlupro", str(step))
    clock[0] += 4.0
    for step in range(8):
        told.advance("mmlupro", str(step))
    assert told.left() == "120 a minute, about 16 s left"


def test_resumed_steps_say_nothing_of_the_pace(clock: list[float]) -> None:
    told = Progress(io.StringIO())
    told.plan("decode", 4)
    told.advance("decode", "code-1", resumed=True)
    assert told.left() == ""
    told.start("decode", "code-2")
    clock[0] += 10.0
    told.advance("decode", "code-2")
    assert told.left() == "about 20 s left"
    told.plan("prefill", 60)
    assert told.left() == "about 10 min left"
