"""The raw tree as pages: a folder list with sizes and hashes, and each file line by line, long ones in part."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from homestretch.lab.site.words import several
from homestretch.lab.types import FileEntry

HEAD_LINES, TAIL_LINES = 300, 100
LINE_CHARACTERS = 600
PAGE_CHARACTERS = 400_000
LOST = {
    "requests-": "The numbers of that part cannot be recounted by a reader.",
    "replies-": "Words and verdicts of that part cannot be graded again by a reader.",
    "answers-": "The counts of that part cannot be counted again by a reader.",
    "guard": "The guard's samples cannot be counted again by a reader.",
    "quiet": "The quiet check's samples cannot be counted again by a reader.",
    "contract": "The settings of the run cannot be compared with its requests by a reader.",
    "result": "The run's own figures cannot be read by a program.",
    "gauntlet/io": "The race cannot be judged again by a reader.",
    "gauntlet/result": "The race cannot be recounted by a reader.",
}


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """A raw file as pages link to it. link: its line-by-line page, "" when held back."""

    run: str
    name: str
    title: str
    bytes: int
    sha256: str
    published_bytes: int
    published_sha256: str
    link: str
    reason: str
    changed: str
    lost: str

    @property
    def plain(self) -> str:
        return self.name.rsplit("/", 1)[-1]


def raw_file(run: str, entry: FileEntry, base: str) -> RawFile:
    """base: the address of the run's folder in the raw tree, seen from the page that links."""
    held = entry.state == "held"
    return RawFile(
        run=run,
        name=entry.name,
        title=entry.name,
        bytes=entry.bytes,
        sha256=entry.sha256,
        published_bytes=entry.published_bytes,
        published_sha256=entry.published_sha256,
        link="" if held else f"{base}{entry.name}.html",
        reason=entry.reason,
        changed=", ".join(f"{name} ({several(count, 'line')})" for name, count in entry.replaced.items()),
        lost=next((text for head, text in LOST.items() if entry.name.startswith(head)), "") if held else "",
    )


def shown_lines(path: Path) -> tuple[list[tuple[int, str, int]], int, str]:
    """Lines to show as (number, text, characters left out), how many there are, and what is left out ("" for nothing).

    A gap is a line with number 0.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    total = len(lines)
    out: list[tuple[int, str, int]] = []
    used = 0
    for number, text in enumerate(lines, 1):
        if total > HEAD_LINES + TAIL_LINES and number == HEAD_LINES + 1:
            out.append((0, f"{total - HEAD_LINES - TAIL_LINES:,} lines left out", 0))
        if total > HEAD_LINES + TAIL_LINES and HEAD_LINES < number <= total - TAIL_LINES:
            continue
        cut = text[:LINE_CHARACTERS]
        used += len(cut)
        if used > PAGE_CHARACTERS:
            out.append((0, f"lines {number:,} to {total:,} left out", 0))
            return out, total, f"the first {number - 1:,} lines"
        out.append((number, cut, len(text) - len(cut)))
    if total > HEAD_LINES + TAIL_LINES:
        return out, total, f"the first {HEAD_LINES} and the last {TAIL_LINES} lines"
    return out, total, ""


def lines_html(shown: list[tuple[int, str, int]]) -> Markup:
    """The table rows of a raw page; its text has passed the filter already."""
    out = []
    for number, text, more in shown:
        if not number:
            out.append(f'<tr class="gap"><th></th><td><em>{escape(text)}</em></td></tr>')
            continue
        rest = f"<em> … {more:,} more characters</em>" if more else ""
        out.append(f'<tr id="L{number}"><th scope="row"><a href="#L{number}">{number}</a></th><td>{escape(text)}{rest}</td></tr>')
    return Markup("\n".join(out))


SOURCE = re.compile(r"([\w./-]+\.\w+)(?::\s*(?:lines?\s*)?(\d+))?")


def line_link(files: dict[str, RawFile], source: str) -> str:
    """The address of the raw line a number was counted from: `requests-decode.jsonl: lines 2, 3` links to line 2.

    "" when the file is held back or the source names none. Lines that the page leaves out link to the page.
    """
    found = SOURCE.match(source)
    file = files.get(found[1]) if found else None
    if found is None or file is None or not file.link:
        return ""
    return f"{file.link}#L{found[2]}" if found[2] and int(found[2]) <= HEAD_LINES else file.link
