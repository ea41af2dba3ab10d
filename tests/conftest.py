"""Fixtures that several areas share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The embedded model's GGUF, through the product's own store; downloaded on a machine's first run."""
    from homestretch.engine.store import pull

    return pull("smollm2-135m").path
