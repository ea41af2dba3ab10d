"""Compares two runs: refuses parts whose settings differ and says which, else shows differences beside their spreads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from homestretch.lab import doubts
from homestretch.lab.errors import WrongUse
from homestretch.lab.records import RunFolder
from homestretch.lab.types import Contract, Number

# What may differ: how deep and how wide it was measured is in each number's own name; where a set's bytes came from and in which
# cage programs ran changes no verdict (the set's hash and the grader's version must agree).
FREE = {"depths", "levels", "place", "set_file", "sandbox"}
OURS = ("engine/", "weights/", "card/", "tokenizer.json")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of both runs. difference_pct: of the second against the first; beyond: larger than both spreads."""

    name: str
    first: Number
    second: Number
    difference_pct: float | None
    beyond: bool | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """refusals: part -> the settings in which the runs differ, in words; rows: the numbers of the parts that compare."""

    refusals: dict[str, list[str]]
    rows: list[Row]


def compare(first: Path, second: Path) -> Comparison:
    """Parts that both runs hold, compared or refused. WrongUse when they share none."""
    runs = RunFolder.open(first), RunFolder.open(second)
    contracts = runs[0].contract(), runs[1].contract()
    results = runs[0].result(), runs[1].result()
    shared = [part for part in runs[0].parts() if part in runs[1].parts()]
    if not shared:
        raise WrongUse(
            f"{first} and {second} have no part in common: {', '.join(runs[0].parts())} against {', '.join(runs[1].parts())}"
        )
    refusals = {part: found for part in shared if (found := differences(part, contracts[0], contracts[1]))}
    rows = []
    for name, number in results[0].numbers.items():
        other = results[1].numbers.get(name)
        part = "decode" if name.startswith("drafts.") else name.split(".")[0]
        if other is not None and part in shared and part not in refusals:
            rows.append(row(name, number, other))
    return Comparison(refusals=refusals, rows=rows)


def differences(part: str, first: Contract, second: Contract) -> list[str]:
    """Settings that must be equal for a part's numbers to compare, and are not."""

    def shaping(contract: Contract) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, sourced in contract.settings.items():
            head, _, tail = name.partition(".")
            if (head == part and tail not in FREE) or head == "sampling" or name == "request.seed":
                found[name] = sourced.value
        found |= {f"sha256 of {name}": value for name, value in contract.hashes.items() if not name.startswith(OURS)}
        return found

    mine, yours = shaping(first), shaping(second)
    return [
        f"{name}: {mine.get(name, 'not set')} against {yours.get(name, 'not set')}"
        for name in sorted(mine.keys() | yours.keys())
        if mine.get(name) != yours.get(name)
    ]


def row(name: str, first: Number, second: Number) -> Row:
    if first.value is None or second.value is None or not first.value:
        return Row(name=name, first=first, second=second, difference_pct=None, beyond=None)
    difference = 100.0 * (second.value / first.value - 1.0)
    if first.low is not None and second.low is not None and first.high is not None and second.high is not None:
        beyond = first.high < second.low or second.high < first.low
    else:
        spreads = [number.spread_pct for number in (first, second) if number.spread_pct is not None]
        return Row(
            name=name,
            first=first,
            second=second,
            difference_pct=difference,
            beyond=abs(difference) > max(spreads) if spreads else None,
        )
    return Row(name=name, first=first, second=second, difference_pct=difference, beyond=beyond)


def refused(number: Number) -> bool:
    return doubts.refuses(number.doubts)
