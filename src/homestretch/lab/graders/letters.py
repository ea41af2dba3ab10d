"""Reads the chosen letter out of a reply to a question with options A to J; gives none rather than guess.

A reply counts when it is essentially one letter (`B`, `**B**`, `(b)`, `$B$`, `\\boxed{B}`, `B) Paris`), or says which it is
("the answer is B"); of several such sayings the last one counts. A letter that the row has no option for is no letter.
The table of shapes with their outcomes is tests/lab/test_letters.py.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

VERSION = 1
LETTERS = "ABCDEFGHIJ"
DENIALS = ("≠", "¬", "✗", "✘", "❌", "×")

# What may stand around a letter without changing its meaning: markdown, LaTeX, brackets, quotes.
COMMANDS = r"\\(?:boxed|fbox|textbf|textit|textsf|text|mathrm|mathbf|mathit|mathsf|bf|rm|displaystyle)\b"
OPEN = rf"(?:[*_`\"'“”‘’«»„~$\s]|\\\(|\\\[|[(\[{{<]|{COMMANDS}){{0,40}}"
CLOSE = r"[*_`\"'“”‘’«»„~$)\]}>]"
SAYING = (
    r"\b(?:answers?|options?|choices?)\b(?:\s+(?:to|for)\s+(?:this|the|that)\s+[\w ]{1,40}?)?(?:\s+letter)?"
    r"\s*(?:[*_`\"'”]{0,3}\s*(?:\bis\b|\bwould\s+be\b|\bwill\s+be\b|\bshould\s+be\b|\bmust\s+be\b|[:=→⇒]|->|=>)\s*:?)"
)
FOREIGN = (
    r"(?:答案|正解|正确选项|选项|选择)\s*(?:是|为|選|应为|应该是|は)?\s*[:：]?|答えは|解答は|(?:정답|답)\s*(?:은|:)|"
    r"\b(?:antwort|réponse|respuesta|risposta|resposta|lösung)\b(?:\s+\w+){0,2}?\s*(?:\b(?:ist|lautet|est|es)\b|è|é|:)\s*:?|\bответ\b\s*[:—–-]?"
)
BETWEEN = (
    r"(?:\s*\b(?:therefore|thus|hence|clearly|probably|likely|most\s+likely|definitely|indeed|simply|just|then|surely))?"
    r"(?:\s*\b(?:the\s+)?(?:option|choice|letter|answer))?\s*:?"
)
ANCHOR = re.compile(rf"(?:{SAYING}|{FOREIGN}){BETWEEN}", re.IGNORECASE)
BOXED = re.compile(rf"\\(?:boxed|fbox)\s*\{{{OPEN}([A-Za-z])(?![A-Za-z])")
LETTER_AFTER = re.compile(rf"({OPEN})([A-Za-z])(?![A-Za-z0-9])({CLOSE}*)")
# Words that may follow an unmarked capital "A" or "I" which is a letter and not the article or the pronoun.
GOES_ON = re.compile(
    r"\s*(?:$|[.,;:!?)\]—–\n-]|\((?!s\))|because\b|since\b|as\b|for\b|due\b|which\b|that\b|based\b|given\b|with\b)", re.IGNORECASE
)
ALSO = re.compile(
    r"\s*(?:[,/&+]\s*|(?<=\s)(?:or|and|und|ou|et|o|y)\s+|(?:或者|或|和)\s*)(?:also\s+|option\s+)?[(\[*_$`\"']*([A-J])(?![A-Za-z])",
    re.IGNORECASE,
)
LABEL = re.compile(r"^[(\[*_`\"'$\s]*([A-Ja-j])(?:[*_`\"'$]*[)\]:]|[*_`$]*\.[*_`$]*(?=\s|$))[*_`\"'$)\]]*")
LATEX = re.compile(rf"{COMMANDS}|\\(?:quad|,|;|!)|\\[()\[\]]")
NAMED = re.compile(r"^(?:option|choice|letter)\s+", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """letter: None when none can be read. how: the rule that decided, or why none did."""

    letter: str | None
    how: str


def read_letter(answer: str, options: int) -> Reading:
    """The letter that `answer` (thinking already stripped) chooses among the first `options` letters, 3 to 10 of them."""
    allowed = LETTERS[:options]
    text = unicodedata.normalize("NFKC", answer).strip()
    if not text:
        return Reading(letter=None, how="empty")
    alone = _alone(text)
    if alone:
        return _checked(alone, allowed, "one letter")
    said = _said(text, allowed)
    if said is not None:
        return said
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line, where in ((lines[0], "first line"), (lines[-1], "last line")):
        if len(lines) > 1 and (letter := _alone(line)) and (letter != "I" or "I" in allowed):
            others = {other for other in map(_alone, lines) if other}
            return _checked(letter, allowed, where) if len(others) == 1 else Reading(letter=None, how="several letters")
    labels = {label[1].upper() for line in lines if (label := LABEL.match(line))}
    label = LABEL.match(text)
    if label is not None and len(labels) == 1 and not ALSO.match(text[label.end() :]):
        if label[1].islower() and ")" not in label[0]:
            return Reading(letter=None, how="no letter")
        return _checked(label[1].upper(), allowed, "option label")
    return Reading(letter=None, how="several letters" if len(labels) > 1 else "no letter")


def _checked(letter: str, allowed: str, how: str) -> Reading:
    if letter not in allowed:
        return Reading(letter=None, how=f"letter {letter} has no option")
    return Reading(letter=letter, how=how)


def _alone(text: str) -> str:
    """The letter when nothing else of weight stands in the text: "B" for `**(b)**.`; "" otherwise. Repeats of one count once."""
    if len(text) > 200 or any(mark in text for mark in DENIALS):
        return ""
    plain = NAMED.sub("", re.sub(r"^[^\w\\]+", "", LATEX.sub(" ", text)))
    words = {word.upper() for word in re.findall(r"\w+", plain.replace("_", " "))}
    return words.pop() if len(words) == 1 and (word := next(iter(words))) and len(word) == 1 and "A" <= word <= "Z" else ""


def _said(text: str, allowed: str) -> Reading | None:
    """The last saying that names a letter; None when there is none."""
    found: list[tuple[int, Reading]] = [
        (match.start(), _checked(match[1].upper(), allowed, "boxed")) for match in BOXED.finditer(text)
    ]
    for anchor in ANCHOR.finditer(text):
        reading = _after(text, anchor.end(), allowed)
        if reading is not None:
            found.append((anchor.start(), reading))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _after(text: str, at: int, allowed: str) -> Reading | None:
    """The letter right after an anchor; None when what stands there is a word."""
    match = LETTER_AFTER.match(text, at)
    if match is None:
        return None
    before, letter, after = match.groups()
    rest = text[match.end() :]
    if re.match(r"['’-]?[A-Za-z]", after[-1:] + rest if after[-1:] in ("'", "’") else rest):
        return None  # I'm, A-level
    marked = bool(before.strip()) or bool(after.strip())
    if not marked:
        if letter.islower() and not re.match(r"\s*(?:$|[.,;:!?)\n])", rest):
            return None
        if letter in "AI" and not GOES_ON.match(rest) and not ALSO.match(rest):
            return None
    also = ALSO.match(rest)
    if also is not None and also[1].upper() != letter.upper() and (also[1].isupper() or letter.islower()) and also[1] not in "aI":
        return Reading(letter=None, how="several letters")
    return _checked(letter.upper(), allowed, "answer named")
