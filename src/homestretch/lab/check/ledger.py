"""Collects what the recount finds: numbers against `result.json`, and points that have no number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from homestretch.lab.check.arithmetic import printed, same
from homestretch.lab.check.report import Outcome, Row


@dataclass
class Ledger:
    """numbers: those of `result.json` as plain dicts. values: what was counted here, by number name."""

    run: str
    numbers: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    values: dict[str, float | int | None] = field(default_factory=dict)

    def add(self, name: str, outcome: Outcome, *, page: str = "", recount: str = "", place: str = "", note: str = "") -> None:
        self.rows.append(Row(run=self.run, name=name, outcome=outcome, page=page, recount=recount, place=place, note=note))

    def holds(self, name: str, fine: bool, *, place: str, note: str, page: str = "", recount: str = "") -> None:
        """A point that is right or not; the note is kept only where it is not."""
        self.add(name, "recounted" if fine else "differs", page=page, recount=recount, place=place, note="" if fine else note)

    def number(self, name: str, value: float | int | None, place: str, **fields: float | int | None) -> None:
        """A number counted here against the stored one; fields: n, low, high, spread_pct as counted here."""
        self.values[name] = value
        stored = self.numbers.get(name)
        if stored is None:
            if value is not None:
                self.add(
                    name, "differs", recount=printed(name, value), place="result.json", note="the number is missing in result.json"
                )
            return
        told = stored.get("value")
        if not isinstance(told, int | float | None) or isinstance(told, bool) or not same(told, value):
            note = "the raw files give another value" if value is not None else "the raw files give no value"
            self.add(name, "differs", page=shown(name, told), recount=shown(name, value), place=place, note=note)
            return
        for key, mine in fields.items():
            other = stored.get(key, 0 if key == "n" else None)
            if not same(other, mine):
                note = f"its {key} is {other} in result.json and {mine} by the raw files"
                self.add(name, "differs", page=shown(name, told), recount=shown(name, value), place=place, note=note)
                return
        self.add(name, "recounted", page=shown(name, told), recount=shown(name, value), place=place)

    def skip(self, name: str, note: str, place: str = "") -> None:
        stored = self.numbers.get(name) or {}
        self.add(name, "cannot be recounted", page=shown(name, stored.get("value")), place=place, note=note)

    def rest(self, prefixes: tuple[str, ...], note: str) -> None:
        """Every stored number of these heads that was not counted cannot be."""
        done = {row.name for row in self.rows}
        for name in self.numbers:
            if name.split(".")[0] in prefixes and name not in done:
                self.skip(name, note)


def shown(name: str, value: Any) -> str:
    """Printed digits; more of them where a difference hides behind the rounding."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "" if value is None else str(value)[:40]
    return printed(name, value)
