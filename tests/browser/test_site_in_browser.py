"""The built site in Chromium: no overflow, no console error, links resolve, keyboard and axe clean, with and without script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.browser
WIDTHS = (390, 768, 1280)
SLUG = "nemotron35-lightning-1spark-tensorfold-125-official-ash"
PAGES = {
    "home": "index.html",
    "class": "class/128/index.html",
    "setup": f"setup/{SLUG}/index.html",
    "compare": "compare/128/index.html",
    "chart": "chart/index.html",
    "method": "method/index.html",
    "raw folder": f"raw/v2/{SLUG}/nea2-1110-speed-r0/index.html",
    "raw file": f"raw/v2/{SLUG}/nea2-1110-speed-r0/result.json.html",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_no_overflow_and_no_console_error(browser: Any, site_folder: Path, width: int, scheme: str, script: bool) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(f"{request.url} failed"))
    for name, path in PAGES.items():
        page.goto((site_folder / path).as_uri())
        wide = page.locator("html").evaluate("e => e.scrollWidth - e.clientWidth")
        assert wide <= 0, f"{name} at {width} is {wide} px too wide"
        assert not said, (name, said)
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser: Any, site_folder: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    for name, path in PAGES.items():
        if name == "raw file":
            continue
        page.goto((site_folder / path).as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        found = [item for item in axe.run(page).response["violations"] if item["impact"] in ("serious", "critical")]
        told = [(item["id"], item["nodes"][0]["html"][:200], item["nodes"][0]["failureSummary"][:300]) for item in found]
        assert not told, (name, told)
    context.close()


def test_every_link_of_the_site_resolves(site_folder: Path) -> None:
    ids: dict[Path, set[str]] = {}
    seen = 0
    for page in site_folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        ids[page.resolve()] = set(re.findall(r'\bid="([^"]+)"', text))
    for page in site_folder.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8")):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                continue
            assert not parts.scheme, link
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
            assert target.is_file(), f"{page.relative_to(site_folder)} links to {link}"
            if parts.fragment and target.suffix == ".html":
                assert parts.fragment in ids[target], f"{page.relative_to(site_folder)} links to {link}"
            seen += 1
    assert seen > 1000


def test_the_keyboard_reaches_everything(browser: Any, site_folder: Path) -> None:
    """Every link, summary, box and scrolling table is reached by Tab, in order, and the focus is seen."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    for name in ("home", "class", "setup", "compare"):
        page.goto((site_folder / PAGES[name]).as_uri())
        wanted = page.evaluate(
            """() => [...document.querySelectorAll('a[href], summary, button, input, [tabindex="0"]')]
                 .filter((e) => e.checkVisibility() && !(e.closest('details:not([open])') && e.tagName !== 'SUMMARY')).length"""
        )
        reached = set()
        for _ in range(wanted + 5):
            page.keyboard.press("Tab")
            at = page.evaluate(
                """() => { const e = document.activeElement;
                     if (!e || e === document.body) return null;
                     window.order ??= new Map(); if (!window.order.has(e)) window.order.set(e, window.order.size);
                     return window.order.get(e); }"""
            )
            if at is not None:
                reached.add(at)
        assert len(reached) >= wanted, (name, len(reached), wanted)
    page.goto((site_folder / PAGES["home"]).as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    context.close()


def test_sorting_search_and_comparison(browser: Any, site_folder: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto((site_folder / PAGES["class"]).as_uri())

    def column(at: int) -> list[float]:
        texts = page.locator(f"table.sortable tbody tr td:nth-child({at})").all_inner_texts()
        return [float(text.replace(",", "")) for text in texts if text != "—"]

    decode = column(3)
    assert decode == sorted(decode, reverse=True)
    page.locator("table.sortable thead button").nth(2).click()
    assert column(3) == sorted(decode)
    assert page.locator("th[aria-sort=ascending]").count() == 1
    page.locator("table.sortable thead button").nth(2).click()
    assert column(3) == decode
    page.goto((site_folder / PAGES["home"]).as_uri())
    page.fill("#q", "tensorfold")
    assert page.locator("table.searchable tbody tr:visible").count() == 1
    assert page.locator("output").inner_text() == "1 of 4"
    page.goto((site_folder / PAGES["compare"]).as_uri())
    assert page.locator("thead th.c:visible").count() == 2
    page.check("#p3")
    assert page.locator("thead th.c:visible").count() == 3
    context.close()


def test_comparison_needs_no_script(browser: Any, site_folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site_folder / PAGES["compare"]).as_uri())
    page.check("#p3")
    assert page.locator("thead th.c:visible").count() == 3
    context.close()


def test_a_comparison_holds_to_four(browser: Any, site_folder: Path) -> None:
    script = (site_folder / "assets" / "site.js").read_text(encoding="utf-8")
    boxes = "".join(f'<label><input type="checkbox" id="p{i}">{i}</label>' for i in range(1, 7))
    page = browser.new_page()
    page.set_content(f'<fieldset class="picks">{boxes}</fieldset><script>{script}</script>')
    for i in range(1, 5):
        page.check(f"#p{i}")
    assert page.locator(".picks input:disabled").count() == 2
    page.uncheck("#p1")
    assert page.locator(".picks input:disabled").count() == 0
    page.close()
