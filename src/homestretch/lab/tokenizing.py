"""Counting tokens as the served model does: by its /tokenize, by a tokenizer.json, or by its usage; and nonces."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from homestretch.lab.client import Target, call, try_json
from homestretch.lab.errors import WrongUse

# Short words of different first letters and sounds: most vocabularies hold each as one token, so nonces have one length.
WORDS: list[str] = (resources.files("homestretch.lab") / "texts" / "nonce-words.txt").read_text("utf-8").split()


class TokenCounter:
    """Counts tokens of a text. `source` names how; `count` gives None where nothing can count.

    kinds of source: "/tokenize", "tokenizer.json", "usage" (texts measured through requests by `calibrate`), "none".
    """

    def __init__(self, source: str, count: Callable[[str], int | None]) -> None:
        self.source = source
        self._count = count
        self._lock = threading.Lock()
        self._random = random.Random()
        self._next = 0
        self._nonce_words: tuple[list[str], list[str]] | None = None

    def count(self, text: str) -> int | None:
        """Tokens of `text` alone, without any template or start token."""
        return self._count(text) if text else 0

    @property
    def counts(self) -> bool:
        return self.source in ("/tokenize", "tokenizer.json")

    def begin(self, run: str, requests: int) -> None:
        """Nonces of a run: shuffled by its name, going on after those that `requests` requests have used before a resume."""
        with self._lock:
            self._random = random.Random(run)
            self._nonce_words = None
            self._next = requests

    def nonce(self) -> str:
        """Five words whose first is new for each request of a run while words last; each one token where that can be checked."""
        with self._lock:
            firsts, others = self._words()
            first = firsts[self._next % len(firsts)]
            self._next += 1
            return " ".join([first, *self._random.choices(others, k=4)])

    def _words(self) -> tuple[list[str], list[str]]:
        """Words that are one token at the start of a text, and words that are one token after a space."""
        if self._nonce_words is None:
            firsts, others = list(WORDS), list(WORDS)
            if self.counts:
                firsts = self._single(WORDS, "\n", "") or firsts
                others = self._single(WORDS, " ", "a ") or others
            self._random.shuffle(firsts)
            self._nonce_words = firsts, others
        return self._nonce_words

    def _single(self, words: list[str], between: str, lead: str) -> list[str]:
        """Words that are one token each; counted many at a time, halved where the count is over, four with an odd one left out."""
        extra = self.count(lead.rstrip()) or 0
        gaps = len(words) - 1 if between.strip(" ") else 0
        if self.count(lead + between.join(words)) == len(words) + gaps + extra:
            return list(words)
        if len(words) <= 4:
            return []
        middle = len(words) // 2
        return self._single(words[:middle], between, lead) + self._single(words[middle:], between, lead)


def by_route(target: Target, model: str) -> TokenCounter | None:
    """A counter by the server's own /tokenize, at its root or under the base; None when it has none that counts."""
    for path in ("//tokenize", "/tokenize"):
        for form in ("content", "prompt", "text"):
            body = _form(model, form, "one two three")
            answer = try_json(target, path, body, timeout_s=20.0)
            if _length(answer) is not None and _length(
                try_json(target, path, _form(model, form, "one " * 40), timeout_s=20.0)
            ) != _length(answer):
                return TokenCounter("/tokenize", _route(target, path, model, form))
    return None


def _form(model: str, form: str, text: str) -> dict[str, Any]:
    return {"model": model, form: text, "add_special": False, "add_special_tokens": False}


def _length(answer: Any) -> int | None:
    if not isinstance(answer, dict):
        return None
    tokens = answer.get("tokens", answer.get("ids"))
    if isinstance(tokens, list):
        return len(tokens)
    count = answer.get("count")
    return count if isinstance(count, int) else None


def _route(target: Target, path: str, model: str, form: str) -> Callable[[str], int | None]:
    def count(text: str) -> int | None:
        return _length(try_json(target, path, _form(model, form, text), timeout_s=120.0))

    return count


def by_file(path: Path) -> TokenCounter:
    """A counter by a tokenizer.json; WrongUse when it cannot be read or the package `tokenizers` is not installed."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise WrongUse("--tokenizer-json needs the package tokenizers: pip install 'homestretch[quality]'") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for every fault of the file
        raise WrongUse(f"--tokenizer-json {path} is no readable tokenizer.json: {error}") from None
    return TokenCounter("tokenizer.json", lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))


def by_usage(prompt_tokens: Callable[[str], int | None]) -> TokenCounter:
    """No tokenizer at hand: lengths are found by sending the text and reading the usage (see lab/prompts.py)."""
    return TokenCounter("usage", lambda text: prompt_tokens(text) if len(text) < 1 << 22 else None)


def nothing() -> TokenCounter:
    return TokenCounter("none", lambda text: None)


def alive(target: Target) -> bool:
    """Whether anything answers at the address."""
    return call(target, "/models", timeout_s=10.0).status > 0
