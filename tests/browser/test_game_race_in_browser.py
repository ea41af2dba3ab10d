"""Race pages in Chromium: phone and desktop, light and dark: no overflow, one drawing shown, nothing cut off, axe clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def races(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import racesetups
    from racesetups import Wish

    from homestretch.lab import site
    from homestretch.lab.publish import Filter

    root = tmp_path_factory.mktemp("races")
    racesetups.make(root / "setups", 1, Wish(solved=("ferry",)))
    racesetups.make(root / "setups", 2, Wish(solved=("ferry", "seating"), thinking_ms=(59_900, 3_000, 4_000, 181_000)))
    site.build(root / "setups", root / "public", what=Filter(["sparkhost"]))
    return root / "public" / "race" / "small-001"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "shown"), [(360, "tall"), (768, "wide"), (1280, "wide")])
def test_the_track_fits_the_screen(browser: Any, races: Path, width: int, shown: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("requestfailed", lambda request: said.append(f"{request.url} failed"))
    for path in ("index.html", "against/small-002/index.html"):
        page.goto((races / path).as_uri())
        assert page.locator("html").evaluate("e => e.scrollWidth - e.clientWidth") <= 0
        for kind in ("wide", "tall"):
            assert page.locator(f"svg.course.{kind}").first.is_visible() == (kind == shown)
        cut = page.evaluate(
            """() => [...document.querySelectorAll('svg.course')].filter(s => s.getBoundingClientRect().width).flatMap(s => {
                const frame = s.getBoundingClientRect();
                return [...s.querySelectorAll('text')].filter(t => {
                    const box = t.getBoundingClientRect();
                    return box.left < frame.left || box.right > frame.right || box.top < frame.top || box.bottom > frame.bottom;
                }).map(t => t.textContent)})"""
        )
        assert cut == []
        small = page.evaluate(
            """() => Math.min(...[...document.querySelectorAll('svg.course')].filter(s => s.getBoundingClientRect().width)
                .flatMap(s => [...s.querySelectorAll('text')].map(t => t.getBoundingClientRect().height)))"""
        )
        assert small >= 9.5, "words of the drawing can be read"
    assert said == []
    context.close()


def test_axe_finds_no_serious_fault(browser: Any, races: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    for path in ("index.html", "against/small-002/index.html"):
        page.goto((races / path).as_uri())
        found = [entry for entry in axe.run(page).response["violations"] if entry["impact"] in ("serious", "critical")]
        assert not [(entry["id"], entry["nodes"][0]["html"][:200]) for entry in found]
    context.close()
