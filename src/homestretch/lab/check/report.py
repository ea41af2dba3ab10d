"""The report of a recount: one row a point looked at, as JSON for programs and as a table for people."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["recounted", "differs", "cannot be recounted"]


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A point: a number, a hash, a setting, a verdict. page: the printed or stored form; recount: what came out here.

    place: the file (and line) in which the difference stands, as far as it can be told.
    """

    run: str
    name: str
    outcome: Outcome
    page: str = ""
    recount: str = ""
    place: str = ""
    note: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The recount of one run, or of a site's pages."""

    schema: Literal[1] = 1
    run: str
    checked_by: str
    passed: bool
    signature: str = ""
    rows: list[Row]

    def counts(self) -> dict[str, int]:
        """How many rows had each outcome."""
        out: dict[str, int] = {}
        for row in self.rows:
            out[row.outcome] = out.get(row.outcome, 0) + 1
        return out
