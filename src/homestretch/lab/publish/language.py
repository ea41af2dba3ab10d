"""Tells whether a line is in another language than the site's English: script, telling words, and common words."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

WORD = re.compile(r"(?<!\w)[^\W\d_]{2,}(?!\w)")
WORDS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))


def words(name: str) -> frozenset[str]:
    """A list of `words.toml`."""
    return frozenset(WORDS[name].split())


ENGLISH = words("english")
TELL: dict[str, str] = {word: language for language, text in WORDS["telling"].items() for word in text.split()}
USUAL: dict[str, frozenset[str]] = {language: frozenset(text.split()) for language, text in WORDS["common"].items()}


@lru_cache(maxsize=4096)
def script(char: str) -> str:
    """LATIN, GREEK, CYRILLIC, CJK, ... of a letter, "" when Unicode has no name for it."""
    return unicodedata.name(char, "").split(" ")[0]


def foreign(line: str, allowed: frozenset[str] = frozenset()) -> str:
    """The language of a line that is not English, "" otherwise. allowed: words (lower case) that say nothing."""
    if line.isascii() and len(line) < 6:
        return ""
    found = [word.lower() for word in WORD.findall(line)]
    found = [word for word in found if word not in allowed]
    others = sum(
        1 for char in line if char > "\u024f" and char.isalpha() and script(char) not in ("LATIN", "GREEK", "MODIFIER", "MICRO")
    )
    if others >= 4 and others * 4 > sum(map(len, found)):
        return "another script"
    english = sum(word in ENGLISH for word in found)
    for language, usual in USUAL.items():
        hits = {word for word in found if word in usual}
        tells = {word for word in found if TELL.get(word) == language}
        if (tells and len(tells) * 2 + len(hits) > english) or (len(hits) >= 3 and len(hits) > english):
            return language
        if len(hits) >= 2 and len(hits) > english and len(found) <= 8 and hits - ENGLISH - {"se", "in", "en", "de"}:
            return language
    return ""
