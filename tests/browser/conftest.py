"""Chromium for page tests, skipped with its reason when there is none; a built site with two setups."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lab"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    path = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on PATH; `make system` says how to install one")
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The setup page's run and a smaller one of the same class, built."""
    import pagerun
    import smallsetup

    from homestretch.lab import site
    from homestretch.lab.publish import Filter

    root = tmp_path_factory.mktemp("site")
    pagerun.make(root / "setups")
    smallsetup.make(root / "setups", 1, memory_class_gb=128)
    smallsetup.make(root / "setups", 2, memory_class_gb=128)
    smallsetup.make(root / "setups", 3, memory_class_gb=8)
    built = site.build(root / "setups", root / "public", what=Filter(["sparkhost"]))
    assert not built.refused
    return root / "public"
