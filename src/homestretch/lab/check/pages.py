"""Checks a built site: every run of its raw tree, and every printed figure of its pages against the recount."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

from homestretch import __version__
from homestretch.lab.check.arithmetic import printed, prints_as
from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.report import Report, Row
from homestretch.lab.check.run import check_run, recount
from homestretch.lab.errors import WrongUse

VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])


class Figures(HTMLParser):
    """Collects (run, number name, printed text, line) of every element that carries `data-number`."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, str, str, int]] = []
        self._open: list[tuple[str, str, list[str], int, int]] = []
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        self._depth += 1
        values = dict(attrs)
        if values.get("data-number"):
            self._open.append((str(values.get("data-run")), str(values["data-number"]), [], self._depth, self.getpos()[0]))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if self._open and self._open[-1][3] == self._depth:
            run, name, texts, _, line = self._open.pop()
            self.found.append((run, name, "".join(texts).strip(), line))
        self._depth -= 1

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1][2].append(data)


def check_site(site: Path, say: Callable[[str], None] | None = None) -> list[Report]:
    """One report for each run in `raw/v2`, and one for each setup page. WrongUse when `site` is no built site."""
    tree = site / "raw" / "v2"
    if not tree.is_dir():
        raise WrongUse(f"{site} is no built site: it has no raw/v2; give the folder that `homestretch site build` wrote")
    reports = []
    for folder in sorted(path for path in tree.iterdir() if path.is_dir() and not path.is_symlink()):
        runs = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
        ledgers: dict[str, Ledger] = {}
        for run in runs:
            if say is not None:
                say(f"{folder.name}: {run.name}")
            ledgers[run.name] = recount(run)
            reports.append(check_run(run))
        page = site / "setup" / folder.name / "index.html"
        reports.append(check_page(page, folder.name, ledgers))
    return reports


def check_page(page: Path, slug: str, ledgers: dict[str, Ledger]) -> Report:
    """Each printed figure of a setup page: the digits that its run gives by the recount, else by `result.json`."""
    rows: list[Row] = []
    if not page.is_file():
        rows.append(Row(run=slug, name="page", outcome="differs", place=f"setup/{slug}/index.html", note="the page is missing"))
        return Report(run=slug, checked_by=f"homestretch {__version__}", passed=False, rows=rows)
    parser = Figures()
    parser.feed(page.read_text(encoding="utf-8"))
    for run, name, text, line in parser.found:
        place = f"setup/{slug}/index.html: line {line}"
        ledger = ledgers.get(run)
        if ledger is None:
            rows.append(
                Row(
                    run=run, name=name, outcome="differs", page=text, place=place, note="the page names a run that is not published"
                )
            )
            continue
        shown = text.removeprefix("≈ ")
        if name in ledger.values:
            value = ledger.values[name]
            fine = prints_as(name, shown, value)
            rows.append(
                Row(
                    run=run,
                    name=name,
                    outcome="recounted" if fine else "differs",
                    page=text,
                    recount=printed(name, value),
                    place=place,
                    note="" if fine else "the page prints other digits",
                )
            )
        else:
            value = (ledger.numbers.get(name) or {}).get("value")
            fine = prints_as(name, shown, value)
            rows.append(
                Row(
                    run=run,
                    name=name,
                    outcome="cannot be recounted" if fine else "differs",
                    page=text,
                    place=place,
                    note="its raw records are not published" if fine else "the page prints other digits than result.json",
                )
            )
    return Report(
        run=slug, checked_by=f"homestretch {__version__}", passed=not any(row.outcome == "differs" for row in rows), rows=rows
    )
