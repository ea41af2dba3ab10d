"""What the independent check found, in the words of the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from homestretch.lab.check.report import Report, Row
from homestretch.lab.site.words import several


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """state: passed, partly (something is held back), failed, unchecked; short for the chips, text for its section."""

    state: str
    short: str
    text: str
    rows: list[Row] = field(default_factory=list)


def verdict(reports: list[Report]) -> Verdict:
    """One verdict over the reports of a setup's counting runs."""
    rows = [row for report in reports for row in report.rows]
    if not rows:
        return Verdict(state="unchecked", short="not checked", text="No run of this setup has been recounted yet.")
    counted = [row for row in rows if row.outcome == "recounted"]
    wrong = [row for row in rows if row.outcome == "differs"]
    unseen = [row for row in rows if row.outcome == "cannot be recounted"]
    if wrong:
        first = wrong[0]
        text = (
            f"The recount disagrees in {several(len(wrong), 'place')} of {len(rows)}: first {first.name} of {first.run}"
            f"{' (' + first.note + ')' if first.note else ''}. Do not rely on the figures named below."
        )
        return Verdict(state="failed", short="independent check failed", text=text, rows=[*wrong, *unseen, *counted])
    rest = (
        f" {several(len(unseen), 'point')} cannot be recounted, because a file is held back or a record is missing."
        if unseen
        else ""
    )
    text = (
        f"Code that shares nothing with the code that made the numbers read the raw files and counted again: "
        f"{several(len(counted), 'point')} "
        f"of {len(rows)} agree to the printed digit, none differs.{rest}"
    )
    short = "independent check passed" if not unseen else f"independent check passed, {len(unseen)} not recountable"
    return Verdict(state="partly" if unseen else "passed", short=short, text=text, rows=[*unseen, *counted])
