"""Docs as tests: every part, number, doubt and server has its place in docs/, and links between files lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from homestretch.lab import parts, servers
from homestretch.lab.contract import CARDS, read_card
from homestretch.lab.doubts import DOUBTS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", parts.names())
def test_a_part_has_its_page(name: str) -> None:
    speed = {"decode", "prefill", "conc", "ctx"}
    page = "speed.md" if name in speed else f"{name}.md"
    assert re.search(rf"\b{name}\b", text(page) + text("quality.md"))


@pytest.mark.parametrize("name", DOUBTS)
def test_a_doubt_has_its_row(name: str) -> None:
    assert f"| `{name}` |" in text("doubts.md")


@pytest.mark.parametrize("part", parts.names())
def test_a_parts_numbers_are_defined(part: str) -> None:
    """By full name, or by the last segment behind the part's own page."""
    found = text("numbers.md")
    for spec in parts.load(part).numbers:
        last = spec.name.rsplit(".", 1)[-1]
        assert f"`{spec.name}`" in found or f".{last}`" in found, spec.name


def test_a_card_for_every_server() -> None:
    assert {read_card(path).engine.server for path in CARDS.glob("*.toml")} == set(servers.names()) - {"attach"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{target} in {page.name}"
