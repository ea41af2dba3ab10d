"""Renders one setup: its page, its raw tree, its history. Everything below `setup/SLUG` and `raw/v2/SLUG`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from homestretch.lab.publish.filter import Filter
from homestretch.lab.publish.tree import write_run
from homestretch.lab.setups import GROUPS, PARTS, QUALITY, SPEED, LoadedSetup, Run
from homestretch.lab.site import rawpages, sentences
from homestretch.lab.site.dress import safe
from homestretch.lab.site.figures import Figure, figure
from homestretch.lab.site.memory import memory
from homestretch.lab.site.quality import Row, quality
from homestretch.lab.site.race import Standing, race
from homestretch.lab.site.rawpages import RawFile
from homestretch.lab.site.speed import Speed, speed
from homestretch.lab.site.start import commands, engine_text, start
from homestretch.lab.site.verdict import Verdict
from homestretch.lab.site.words import several
from homestretch.lab.types import UnusedRun

ROOT = "../../"
CONTRACT_TITLES = {"contract.json": "contract", "result.json": "result", "log.txt": "log", "server.log": "server log"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a setup is written: the site's folder, the style stamp, the environment and the filter.

    signers: an ssh `allowed_signers` file beside the setups, None when there is none.
    """

    out: Path
    stamp: str
    env: Environment
    what: Filter
    signers: Path | None = None


def raw_tree(setup: LoadedSetup, place: Place) -> dict[str, dict[str, RawFile]]:
    """Write `raw/v2/SLUG` anew through the filter, with its pages. Returns run -> file name -> file as pages link it."""
    top = place.out / "raw" / "v2" / setup.slug
    shutil.rmtree(top, ignore_errors=True)
    out: dict[str, dict[str, RawFile]] = {}
    folders = []
    for run in setup.runs():
        name = safe(run.name, place.what)
        entries = write_run(run.folder, top / name, place.what)
        base = f"{ROOT}raw/v2/{setup.slug}/{name}/"
        files = {entry.name: rawpages.raw_file(name, entry, base) for entry in entries}
        out[run.name] = files
        here = [replace(item, link=item.link.removeprefix(base)) for item in files.values()]
        write(
            place,
            top / name / "index.html",
            "rawfolder.html.jinja",
            root="../../../../",
            path=f"raw/v2/{setup.slug}/{name}",
            slug=setup.slug,
            title=setup.card.title,
            parent=True,
            folders=[],
            files=[FolderFile(item, item.name) for item in here],
        )
        for item in files.values():
            if item.link:
                raw_page(setup, place, top / name, name, item)
        held = sum(not item.link for item in files.values())
        about = f"{several(len(files), 'file')}{f', {held} held back' if held else ''}{', ' + run.date if run.date else ''}"
        folders.append({"name": name, "about": about})
    write(
        place,
        top / "index.html",
        "rawfolder.html.jinja",
        root="../../../",
        path=f"raw/v2/{setup.slug}",
        slug=setup.slug,
        title=setup.card.title,
        parent=False,
        folders=folders,
        files=[],
    )
    return out


class FolderFile:
    """A raw file as its own folder's list links it."""

    def __init__(self, item: RawFile, plain: str) -> None:
        self.title, self.bytes, self.sha256 = item.title, item.bytes, item.sha256
        self.published_bytes, self.published_sha256 = item.published_bytes, item.published_sha256
        self.link, self.plain, self.reason, self.changed = item.link, plain, item.reason, item.changed


def raw_page(setup: LoadedSetup, place: Place, folder: Path, run: str, item: RawFile) -> None:
    """The line-by-line page of one published file."""
    shown, total, part = rawpages.shown_lines(folder / item.name)
    deep = item.name.count("/")
    write(
        place,
        folder / f"{item.name}.html",
        "rawfile.html.jinja",
        root="../" * (4 + deep),
        up="../" * deep,
        slug=setup.slug,
        title=setup.card.title,
        run=run,
        name=item.name,
        plain=item.plain,
        size=item.published_bytes,
        sha256=item.published_sha256,
        lines_text=several(total, "line"),
        part=part,
        rows=rawpages.lines_html(shown),
    )


def write(place: Place, path: Path, template: str, /, **context: Any) -> None:
    """Render one page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(place.env.get_template(template).render(stamp=place.stamp, **context), encoding="utf-8")


Places = dict[tuple[str, str], str]
"""(run, number) -> the raw file and lines it was counted from, as the recount names them."""


def linked(figures: list[Figure], runs: list[Run], raw: dict[str, dict[str, RawFile]], places: Places) -> list[Figure]:
    """The figures with their run and a link to the raw line each was counted from."""
    out = []
    for item in figures:
        run = next((run for run in runs if run.result is not None and item.name in run.result.numbers), None)
        if run is None or run.result is None:
            out.append(item)
            continue
        where = places.get((run.name, item.name)) or run.result.numbers[item.name].source
        out.append(replace(item, run=run.name, link=rawpages.line_link(raw.get(run.name, {}), where)))
    return out


def files_of(setup: LoadedSetup, raw: dict[str, dict[str, RawFile]], parts: tuple[str, ...]) -> list[RawFile]:
    """The raw files a section links to: result, contract and log of each run, and the parts' own files."""
    out: dict[tuple[str, str], RawFile] = {}
    runs = {setup.counting[part].name: part for part in parts if part in setup.counting}
    for run in runs:
        mine = [part for part in parts if part in setup.counting and setup.counting[part].name == run]
        for name, file in raw.get(run, {}).items():
            known = name in CONTRACT_TITLES
            own = any(name in (f"{kind}-{part}.jsonl" for kind in ("requests", "replies", "answers", "memory")) for part in mine)
            game = "gauntlet" in mine and name.startswith("gauntlet/")
            if known or own or game:
                title = CONTRACT_TITLES.get(name, name.removesuffix(".jsonl").removeprefix("gauntlet/").replace("-", " ", 1))
                if len(parts) == 1:
                    title = title.removesuffix(f" {parts[0]}")
                out[run, name] = replace(file, title=title if len(runs) == 1 else f"{title} ({file.run})")
    order = list(CONTRACT_TITLES)
    return sorted(out.values(), key=lambda file: (order.index(file.name) if file.name in order else len(order), file.name))


def bar(row: Row) -> Markup:
    """Result and margin as a small picture; the numbers stand beside it."""
    try:
        value, margin = float(row.result.value), float(row.margin.value)
    except ValueError:
        return Markup("")
    low, high = max(0.0, value - margin), min(100.0, value + margin)
    return Markup(
        '<svg class="bar" viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        f'<rect class="track" width="100" height="8" y="3"/><rect class="fill" width="{value:.1f}" height="8" y="3"/>'
        f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="7" y2="7" vector-effect="non-scaling-stroke"/></svg>'
    )


def settings_rows(run: Run | None) -> list[tuple[str, str, str]]:
    """Every setting of a contract: name, value, source."""
    settings = run.contract.settings if run and run.contract else {}
    return [(name, str(item.value), item.source) for name, item in sorted(settings.items())]


def render(
    setup: LoadedSetup,
    raw: dict[str, dict[str, RawFile]],
    standings: list[Standing],
    verdict: Verdict,
    signed: Any,
    place: Place,
    race_page: str,
) -> None:
    """Write `setup/SLUG/index.html`."""
    places = {(row.run, row.name): row.place for row in verdict.rows if row.place}
    found, answers, fits, game = speed(setup), quality(setup), memory(setup), race(setup, standings, race_page)
    found = with_links(found, setup, raw, places, place.what) if found else None
    if answers:
        rows = [replace(row, result=linked([row.result], [row.run], raw, places)[0]) for row in answers.rows]
        answers = replace(answers, rows=rows)
    if fits:
        fits = replace(fits, rows=[replace(row, cells=linked(row.cells, [fits.run], raw, places)) for row in fits.rows])
    files = {part: files_of(setup, raw, (part,)) for part in PARTS} | {
        group: files_of(setup, raw, parts) for group, parts in GROUPS.items()
    }
    every = [file for run in raw.values() for file in run.values()]
    held = [file for file in every if not file.link]
    sections = [
        (ident, name)
        for ident, name, present in (
            ("speed", "Speed", found),
            ("quality", "Quality", answers),
            ("memory", "Memory", fits),
            ("game", "Game", game),
            ("credits", "Credits", True),
            ("setup", "Setup", True),
            ("check", "Check", True),
            ("raw", "Raw files", True),
        )
        if present
    ]
    card = setup.card
    about = {run.name: run.date for run in setup.runs()}
    write(
        place,
        place.out / "setup" / setup.slug / "index.html",
        "setup.html.jinja",
        root=ROOT,
        card=card,
        date=setup.date,
        engine_line=engine_text(setup),
        verdict=verdict,
        signed=signed,
        reports=[
            {"run": safe(run, place.what), "href": f"{ROOT}raw/v2/{setup.slug}/{safe(run, place.what)}/check.json"}
            for run in dict.fromkeys(row.run for row in verdict.rows)
        ],
        problems=list(setup.problems),
        sections=sections,
        speed=found,
        quality=answers,
        bars={row.prefix: bar(row) for row in answers.rows} if answers else {},
        memory=fits,
        race=game,
        start=start(setup),
        machines=sentences.machines(setup),
        recipe=sentences.recipe(setup),
        unused=[
            {"text": sentences.unused(setup, entries, run), "files": unused_files(raw, run)}
            for entries, run in unused_by_run(setup)
        ],
        differences_short=bool(card.differences),
        contracts=[
            {"run": file.run, "href": file.link.removesuffix(".html")}
            for run in dict.fromkeys(setup.counting[part].name for part in PARTS if part in setup.counting)
            if (file := raw.get(run, {}).get("contract.json")) is not None and file.link
        ],
        contract_rows=settings_rows(setup.counting.get("decode")),
        files=files,
        scored={
            name: scored_notes(setup, parts) for name, parts in (*GROUPS.items(), ("fit", ("fit",)), ("gauntlet", ("gauntlet",)))
        },
        commands={
            "speed": commands(setup, SPEED),
            "quality": commands(setup, QUALITY),
            "fit": commands(setup, ("fit",)),
            "gauntlet": commands(setup, ("gauntlet",)),
            "all": commands(setup, PARTS),
        },
        raw_total=f"{several(len(every), 'file')} in {several(len(raw), 'run')}",
        raw_runs=[
            {
                "name": safe(name, place.what),
                "about": f"{several(len(run), 'file')}{', ' + about[name] if about.get(name) else ''}",
                "files": list(run.values()),
            }
            for name, run in raw.items()
        ],
        held=held,
        earlier=bool(setup.earlier),
    )


def scored_notes(setup: LoadedSetup, parts: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """Notes that scoring made from counts, by part."""
    out = []
    for part in parts:
        run = setup.counting.get(part)
        state = run.result.parts.get(part) if run is not None and run.result is not None else None
        if state is not None and state.notes:
            out.append((sentences.NAMES.get(part, part).removeprefix("the "), state.notes))
    return out


def with_links(found: Speed, setup: LoadedSetup, raw: dict[str, dict[str, RawFile]], places: Places, what: Filter) -> Speed:
    """The Speed section with each figure linked to the raw line it was counted from; its charts through the filter."""
    runs = [setup.counting[part] for part in SPEED if part in setup.counting]
    return replace(
        found,
        charts=[replace(item, svg=Markup(what.scrub(item.svg))) for item in found.charts],
        tiles=[replace(item, link="") for item in linked(found.tiles, runs, raw, places)],
        rows=linked(found.rows, runs, raw, places),
        long_rows=[replace(row, cells=linked(row.cells, runs, raw, places)) for row in found.long_rows],
    )


def unused_by_run(setup: LoadedSetup) -> list[tuple[list[UnusedRun], Run]]:
    """Entries of runs that do not count, those of one run together."""
    seen: dict[str, tuple[list[UnusedRun], Run]] = {}
    for entry, run in setup.unused:
        seen.setdefault(run.name, ([], run))[0].append(entry)
    return list(seen.values())


def unused_files(raw: dict[str, dict[str, RawFile]], run: Run) -> list[RawFile]:
    files = raw.get(run.name, {})
    return [replace(files[name], title=title) for name, title in CONTRACT_TITLES.items() if name in files]


def history(setup: LoadedSetup, place: Place) -> None:
    """Write `history/SLUG/index.html` when earlier runs are kept."""
    if not setup.earlier:
        return
    rows = []
    seen = [(part, run, "counts now") for part, run in setup.counting.items()]
    seen += [(entry.part, run, f"replaced {entry.replaced}") for entry, run in setup.earlier]
    for part, run, state in seen:
        for name in GROUPS.get(part, (part,)):
            headline = {
                "decode": "decode.tokens_per_s",
                "fit": "fit.largest_tokens",
                "gauntlet": "gauntlet.finish_s",
            }.get(name, f"{name}.right_pct")
            shown = figure(run.result, headline, "")
            if not shown.value:
                continue
            engine = run.contract.card.engine if run.contract and run.contract.card else setup.card.engine
            link = f"{ROOT}raw/v2/{setup.slug}/{safe(run.name, place.what)}/index.html"
            rows.append(
                {
                    "date": run.date,
                    "part": sentences.NAMES.get(name, name).removeprefix("the "),
                    "engine": f"{engine.name} {engine.version}",
                    "value": shown.value,
                    "unit": shown.unit,
                    "run": run.name,
                    "link": link,
                    "state": state,
                }
            )
    rows.sort(key=lambda row: (row["part"], row["date"]), reverse=True)
    write(place, place.out / "history" / setup.slug / "index.html", "history.html.jinja", root=ROOT, card=setup.card, rows=rows)
