"""`fake` in a process of its own, and measuring runs against it, for the tests of the lab."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from homestretch.lab.context import Retry
from homestretch.lab.fake.behaviour import Behaviour, variant
from homestretch.lab.options import Options, given
from homestretch.lab.progress import Progress
from homestretch.lab.run import Measured, measure

QUICK = Behaviour(decode_tokens_per_s=1000.0, prefill_tokens_per_s=30_000.0)
RETRY = Retry(attempts=3, idle_s=2.0, total_s=60.0, wait_s=0.05, longest_wait_s=0.2)
SMALL: dict[str, Any] = {
    "model": "fake",
    "runs": 2,
    "max_tokens": 96,
    "prefill_depths": (512, 1024),
    "prefill_runs": 2,
    "conc_levels": (1, 2),
    "conc_rounds": 1,
    "conc_max_tokens": 96,
    "ctx_depths": (1024,),
    "ctx_runs": 1,
    "ctx_max_tokens": 96,
    "sampling": {"temperature": 1.0},
    "sampling_source": "the test",
    "allow_load": True,  # a test machine is never quiet; the guard's own tests do without
}


@contextmanager
def serving(**behaviours: Behaviour) -> Iterator[str]:
    """The base URL of a fake with these models."""
    command = [sys.executable, "-m", "homestretch.lab.fake", msgspec.json.encode(behaviours).decode()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
    finally:
        process.communicate(timeout=20)


def quick(**changes: object) -> Behaviour:
    return variant(QUICK, **changes)


def options(url: str, output: Path, parts: str, **changes: Any) -> Options:
    return given(base_url=url, output=output, parts=tuple(parts.split(",")), **{**SMALL, **changes})


def run(url: str, output: Path, parts: str, **changes: Any) -> Measured:
    return measure(options(url, output, parts, **changes), progress=Progress(quiet=True), retry=RETRY)
