"""Fixtures that several areas share, and one thread of arithmetic for each test process that runs beside others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Two processes with two OpenMP threads each on two cores wait for each other most of the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The embedded model's GGUF, through the product's own store; downloaded on a machine's first run."""
    from homestretch.engine.store import pull

    return pull("smollm2-135m").path
