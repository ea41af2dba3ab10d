"""Counts words in capitals the way the Penn Treebank splits words: at punctuation, and inside contractions (CAN NOT, DO N'T)."""

from __future__ import annotations

import re

# Marks that always stand alone. A final period needs no rule here: "WORD." and "WORD" are capital alike.
ALONE = re.compile(r"\.{2,}|--|``|''|[;@#$%&?!*\[\](){}<>\"«»“”‘’„`]")
BEFORE_NO_DIGIT = re.compile(r"([:,])(?=\D|$)")
QUOTE_BEFORE_SPACE = re.compile(r"(?<=[^'])'(?=\s|$)")
QUOTE_ALONE = " ' "
ENDINGS = re.compile(r"(?<=[^' ])(?:'[sS]|'[mM]|'[dD]|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T)(?=\s)")
PAIRS = re.compile(
    r"\b(?:(can)(not)|(d)('ye)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(more)('n))\b|\b(wan)(na)(?=\s)", re.IGNORECASE
)
OPENING_PAIRS = re.compile(r"(?<= )('t)(is|was)\b", re.IGNORECASE)


def capital_words(text: str) -> int:
    """Words without a small letter and with at least one capital."""
    text = ALONE.sub(lambda mark: f" {mark[0]} ", text)
    text = BEFORE_NO_DIGIT.sub(r" \1 ", text)
    text = f" {QUOTE_BEFORE_SPACE.sub(QUOTE_ALONE, text)} "
    text = ENDINGS.sub(lambda ending: f" {ending[0]} ", text)
    text = PAIRS.sub(lambda pair: f" {' '.join(part for part in pair.groups() if part)} ", text)
    text = OPENING_PAIRS.sub(r" \1 \2 ", text)
    return sum(word.isupper() for word in text.split())
