"""Pages over many setups: home, classes, comparison, chart, feed, method, and the same as JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from homestretch.lab.site import charts, rank
from homestretch.lab.site.figures import printed
from homestretch.lab.site.race import Standing, ranked
from homestretch.lab.site.rank import Line, ordered
from homestretch.lab.site.setuppage import Place, write
from homestretch.lab.site.words import several

FEED_ENTRIES = 50


def tables(place: Place, folder: str, columns: list[str], rows: list[list[str]]) -> None:
    """`table.csv` and `table.json` of a page's table, filtered like everything else."""
    target = place.out / folder
    target.mkdir(parents=True, exist_ok=True)
    clean = [[place.what.scrub(cell) for cell in row] for row in rows]
    (target / "table.csv").write_text(as_csv([columns, *clean]), encoding="utf-8")
    data = [dict(zip(columns, row, strict=True)) for row in clean]
    (target / "table.json").write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")


def as_csv(rows: Sequence[Sequence[str]]) -> str:
    """CSV; a cell that a spreadsheet would run as a formula gets an apostrophe in front."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow(
            [f"'{cell}" if cell[:1] in "=+@\t\r" or (cell[:1] == "-" and not cell[1:2].isdigit()) else cell for cell in row]
        )
    return out.getvalue()


def quality_text(line: Line) -> str:
    return printed("right_pct", line.quality)


def home(place: Place, lines: list[Line], refused: list[str]) -> None:
    """`index.html`: classes, and every setup in one table."""
    classes = []
    for gb in sorted({*rank.CLASSES, *(line.gb for line in lines)}):
        mine = [line for line in lines if line.gb == gb]
        best = max((line.decode for line in mine if line.decode is not None), default=None)
        classes.append(
            {"gb": gb, "count": len(mine), "count_text": several(len(mine), "setup"), "best": printed("decode.tokens_per_s", best)}
        )
    rows = [
        {
            "slug": line.slug,
            "title": line.title,
            "engine": line.engine,
            "machine": line.machine,
            "author": line.author,
            "model": "" if line.model in line.title else line.model,
            "decode": line.shown("decode.tokens_per_s"),
            "quality": quality_text(line),
            "gb": line.gb,
            "date": line.date,
        }
        for line in sorted(lines, key=lambda item: (item.date, item.slug), reverse=True)
    ]
    write(place, place.out / "index.html", "home.html.jinja", root="", classes=classes, rows=rows, refused=refused)


def standings_of(lines: Sequence[Line]) -> list[Standing]:
    return [Standing(**race) for line in lines for race in (line.race, *line.past_races) if race]


def classes(place: Place, lines: list[Line]) -> None:
    """`class/GB/index.html` for every class that has a setup."""
    for gb in sorted({line.gb for line in lines}):
        mine = ordered([line for line in lines if line.gb == gb])
        columns = rank.columns(mine)
        rows = []
        for place_, line in enumerate(mine, 1):
            cells = [line.shown(name) for name, _, _ in columns]
            rows.append(
                {
                    "rank": place_ if line.decode is not None else None,
                    "slug": line.slug,
                    "title": line.title,
                    "engine": line.engine,
                    "machine": line.machine,
                    "author": line.author,
                    "cells": cells,
                    "date": line.date,
                    "check": line.check,
                }
            )
        races = [
            {
                "rank": number,
                "slug": item.slug,
                "title": item.title,
                "season": item.season,
                "mode": "on" if item.thinking_on else "off",
                "finish": printed("finish_s", item.finish_s),
                "hits": item.hits,
                "thinking": printed("thinking_s", item.thinking_s),
                "date": item.date,
                "page": item.page,
            }
            for number, item in ranked(standings_of(mine))
        ]
        write(
            place,
            place.out / "class" / str(gb) / "index.html",
            "class.html.jinja",
            root="../../",
            gb=gb,
            rows=rows,
            columns=[(name, unit) for _, name, unit in columns],
            chart=speed_quality(mine, "../../") if len(mine) > 1 else None,
            standings=races,
        )
        heads = ["rank", "setup", "engine", "machine", "author", *(name for name, _, _ in columns), "measured", "check"]
        body = [
            [str(row["rank"] or ""), str(row["title"]), str(row["engine"]), str(row["machine"]), str(row["author"])]
            + [cell.replace(",", "") for cell in texts(row["cells"])]
            + [str(row["date"]), str(row["check"])]
            for row in rows
        ]
        tables(place, f"class/{gb}", heads, body)


def texts(cells: Any) -> list[str]:
    return [str(cell) for cell in cells]


def compare(place: Place, lines: list[Line]) -> None:
    """`compare/index.html` and one page a class with all its setups as columns that boxes switch on."""
    present = sorted({line.gb for line in lines})
    write(
        place,
        place.out / "compare" / "index.html",
        "compare.html.jinja",
        root="../",
        gb=None,
        classes=present,
        columns=[],
        table=[],
    )
    for gb in present:
        mine = ordered([line for line in lines if line.gb == gb])
        wanted = rank.compared(mine)
        table: list[dict[str, Any]] = (
            [{"label": "Mean of the four quality tests", "unit": "%", "cells": [quality_text(line) for line in mine]}]
            if any(line.quality is not None for line in mine)
            else []
        )
        table += [{"label": label, "unit": unit, "cells": [line.shown(name) for line in mine]} for name, label, unit in wanted]
        write(
            place,
            place.out / "compare" / str(gb) / "index.html",
            "compare.html.jinja",
            root="../../",
            gb=gb,
            classes=present,
            columns=mine,
            table=table,
        )
        heads = ["measurement", "unit", *(line.slug for line in mine)]
        tables(
            place,
            f"compare/{gb}",
            heads,
            [[row["label"], row["unit"], *(cell.replace(",", "") for cell in row["cells"])] for row in table],
        )


def speed_quality(lines: list[Line], root: str) -> charts.Chart | None:
    """Decode headline against the mean of four tests."""
    spots = [
        charts.Spot(
            x=line.decode,
            y=line.quality,
            margin=line.quality_margin or 0.0,
            label=line.title,
            href=f"{root}setup/{line.slug}/index.html",
            printed=(
                f"{line.shown('decode.tokens_per_s')} tok/s",
                f"{quality_text(line)} % ± {printed('margin_pts', line.quality_margin)}",
            ),
        )
        for line in lines
        if line.decode is not None and line.quality is not None
    ]
    return charts.spots(
        "Decode speed against right answers",
        spots,
        ident="c-biathlon",
        x_title="decode, tok/s",
        y_title="right, %",
        columns=["Setup", "Decode", "Right"],
    )


def chart(place: Place, lines: list[Line]) -> None:
    """`chart/index.html`."""
    write(place, place.out / "chart" / "index.html", "chart.html.jinja", root="../", chart=speed_quality(ordered(lines), "../"))


def method(place: Place) -> None:
    """`method/index.html`."""
    write(place, place.out / "method" / "index.html", "method.html.jinja", root="../")


def feed(place: Place, lines: list[Line], base: str) -> None:
    """`feed.xml`, newest first."""
    newest = sorted(lines, key=lambda line: (line.date, line.slug), reverse=True)[:FEED_ENTRIES]
    rows = [
        {"title": line.title, "slug": line.slug, "date": line.date or "1970-01-01", "summary": summary(line)} for line in newest
    ]
    updated = f"{newest[0].date or '1970-01-01'}T00:00:00Z" if newest else "1970-01-01T00:00:00Z"
    write(place, place.out / "feed.xml", "feed.xml.jinja", rows=rows, base=base, updated=updated)


def summary(line: Line) -> str:
    speed = f"decode {line.shown('decode.tokens_per_s')} tok/s" if line.decode is not None else "no decode headline"
    right = f", {quality_text(line)} % right over four tests" if line.quality is not None else ""
    return f"{line.model} with {line.engine} on {line.machine}: {speed}{right}."


def data(place: Place, lines: list[Line]) -> None:
    """`data/setups.json` (every number, unrounded) and `data/setups.csv` (printed digits)."""
    folder = place.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "slug": line.slug,
            "title": place.what.scrub(line.title),
            "memory_class_gb": line.gb,
            "model": place.what.scrub(line.model),
            "engine": place.what.scrub(line.engine),
            "machine": place.what.scrub(line.machine),
            "author": place.what.scrub(line.author),
            "measured": line.date,
            "check": line.check,
            "numbers": {name: {"value": value, "unit": line.units.get(name, "")} for name, value in line.values.items()},
        }
        for line in ordered(lines)
    ]
    (folder / "setups.json").write_bytes(msgspec.json.encode(rows) + b"\n")
    names = [name for name, _, _ in rank.compared(lines)] if lines else []
    heads = ["slug", "title", "memory_class_gb", "model", "engine", "machine", "author", "measured", "check", *names]
    body = [
        [
            line.slug,
            *map(place.what.scrub, (line.title, str(line.gb), line.model, line.engine, line.machine, line.author)),
            line.date,
            line.check,
            *(line.shown(name).replace(",", "") for name in names),
        ]
        for line in ordered(lines)
    ]
    (folder / "setups.csv").write_text(as_csv([heads, *body]), encoding="utf-8")
