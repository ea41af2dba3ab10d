"""Small grammar for sentences: lists, plurals, counts as words."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[str], joiner: str = "and") -> str:
    """ "a", "a and b", "a, b and c"; "" for none."""
    items = [item for item in items if item]
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {joiner} {items[-1]}"


def several(count: int, noun: str, plural: str = "") -> str:
    """ "1 request", "4 requests"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def none_or(count: int) -> str:
    """ "none" for 0, the number otherwise."""
    return f"{count:,}" if count else "none"


WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def word(count: int) -> str:
    """Small counts as words: 2 -> "two"; larger ones as digits."""
    return WORDS[count] if 0 <= count < len(WORDS) else f"{count:,}"
