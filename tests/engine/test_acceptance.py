"""The shipped hybrid's head is as good as when it was trained: a small sample of bench/acceptance.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from homestretch.engine.backends import find

BENCH = Path(__file__).resolve().parents[2] / "bench" / "acceptance.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("acceptance", BENCH)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("kind", ["code", "prose", "chat"])
def test_a_sample_of_the_published_acceptance(kind: str, bench: ModuleType) -> None:
    """About 700 positions: a wrong head stands at a third of them at most, sampling moves a right one by four points."""
    backend = "reference" if find("cpu").refusal() else "cpu"
    count, most = (8, 96) if backend == "cpu" else (3, 64)
    tally = bench.measure(bench.load("hybrid-10m", backend), kind, count, most)
    one_step, chain = bench.PUBLISHED[kind]
    assert abs(tally.right / tally.asked - one_step) < 0.08
    assert abs(tally.accepted / tally.rounds - chain) < 0.3
