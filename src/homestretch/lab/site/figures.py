"""Numbers as a page prints them: digits by name, one rounding, labels, and why a figure is not shown."""

from __future__ import annotations

from dataclasses import dataclass

from homestretch.lab.doubts import DOUBTS
from homestretch.lab.types import Number, Result

ONE_DIGIT = ("_per_s", "_pct", "_s", "_pts", "mean_accepted_length")
PROMPT_WORD = {"code": "code prompt", "prose": "prose prompt"}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One printed figure. value: its digits without the unit, "" when there is none; note: why there is none, or its doubts.

    run and link: the run it is of and the raw line it was counted from, filled in when a page is made.
    """

    name: str
    label: str
    value: str
    unit: str
    note: str = ""
    link: str = ""
    run: str = ""
    low: str = ""
    high: str = ""

    @property
    def text(self) -> str:
        """Value and unit, or "not measured"."""
        return f"{self.value} {self.unit}" if self.value else "not measured"


def digits(name: str) -> int:
    """Digits after the point of a number of that name: 2 for GiB, 1 for rates, times and shares, 0 for counts."""
    if name.endswith("_gib"):
        return 2
    return 1 if name.endswith(ONE_DIGIT) else 0


def printed(name: str, value: float | int | None) -> str:
    """The digits a page shows for a value: rounded once, as given; whole numbers with thousands separated."""
    if value is None:
        return ""
    places = digits(name)
    return f"{value:.{places}f}" if places else f"{round(value):,}"


def depth(tokens: int) -> str:
    """2048 -> "2K", 131072 -> "128K", others in full."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def refused(number: Number) -> bool:
    """Whether a doubt keeps the number out of headlines and rankings (an unknown one does), or it has no value at all."""
    return number.value is None or any(doubt not in DOUBTS or DOUBTS[doubt].refuses for doubt in number.doubts)


def headline(result: Result | None, name: str) -> float | None:
    """The value of a number that may stand in a headline or ranking, else None."""
    number = result.numbers.get(name) if result else None
    return None if number is None or refused(number) else number.value


def figure(result: Result | None, name: str, label: str, link: str = "") -> Figure:
    """The figure of a number; without value when the run has none of that name."""
    number = result.numbers.get(name) if result else None
    if number is None or number.value is None:
        return Figure(name=name, label=label, value="", unit="", note="not measured" if number is None else doubts(number))
    return Figure(
        name=name,
        label=label,
        value=printed(name, number.value),
        unit=number.unit,
        note=doubts(number),
        link=link,
        low=printed(name, number.low),
        high=printed(name, number.high),
    )


def doubts(number: Number) -> str:
    """The doubts of a number in words: `spread over limit, short run`."""
    return ", ".join(doubt.replace("_", " ") for doubt in number.doubts)


def keys(result: Result | None, prefix: str) -> list[int]:
    """The whole numbers that follow `prefix.` in a result's number names, sorted: depths, levels, sizes."""
    found: set[int] = set()
    for name in result.numbers if result else ():
        head, _, rest = name.partition(f"{prefix}.")
        key = rest.partition(".")[0]
        if head == "" and key.isdigit():
            found.add(int(key))
    return sorted(found)


def prompts(result: Result | None) -> list[str]:
    """The prompt names of the decode part, code before prose before others."""
    found = {
        name.split(".")[1]
        for name in (result.numbers if result else ())
        if name.startswith("decode.") and name.count(".") == 2 and name.endswith(".tokens_per_s") and ".window1." not in name
    }
    order = {"code": 0, "prose": 1}
    return sorted(found, key=lambda name: (order.get(name, 2), name))


def prompt_label(prompt: str) -> str:
    """ "code prompt" for the two known prompts, the prompt's own name in quotes otherwise."""
    return PROMPT_WORD.get(prompt, f"“{prompt}” prompt")


def seconds(milliseconds: int | float) -> str:
    """Milliseconds as seconds with one digit."""
    return f"{milliseconds / 1000:.1f}"


def size(count: int) -> str:
    """Bytes for people: 512 B, 1.4 kB, 17.8 GB (powers of 1,000)."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{count} B"
