"""A grammar of JSON objects over bytes: which tokens may come next so that the reply parses. `response_format: json_object`.

States are (mode, stack): the stack is a text of open brackets, the mode says what may come. RFC 8259, sections 2 to 7.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from homestretch.engine.tokenizer import Tokenizer

State = tuple[str, str]

START: State = ("start", "")
DONE: State = ("done", "")
SPACE = b" \t\n\r"
HEX = b"0123456789abcdefABCDEF"
ESCAPES = b'"\\/bfnrt'
LITERALS = {ord("t"): "rue", ord("f"): "alse", ord("n"): "ull"}
DEEPEST = 64
"""Open brackets at most."""

NUMBERS: dict[str, tuple[bytes, dict[int, str]]] = {
    "-": (b"", {ord("0"): "0", **dict.fromkeys(b"123456789", "1")}),
    "0": (b"", {ord("."): ".", ord("e"): "e", ord("E"): "e"}),
    "1": (b"0123456789", {ord("."): ".", ord("e"): "e", ord("E"): "e"}),
    ".": (b"", dict.fromkeys(b"0123456789", ".1")),
    ".1": (b"0123456789", {ord("e"): "e", ord("E"): "e"}),
    "e": (b"", {**dict.fromkeys(b"0123456789", "e1"), ord("+"): "e+", ord("-"): "e+"}),
    "e+": (b"", dict.fromkeys(b"0123456789", "e1")),
    "e1": (b"0123456789", {}),
}
"""Parts of a number: bytes that stay in the part, and bytes that lead to another."""
WHOLE = frozenset({"0", "1", ".1", "e1"})
"""Parts at which a number may end."""


def step(state: State, byte: int) -> State | None:
    """The state after one more byte; None when no JSON object goes on like that."""
    mode, stack = state
    if mode in NUMBERS:
        stay, leads = NUMBERS[mode]
        if byte in stay:
            return state
        if byte in leads:
            return leads[byte], stack
        return step(("after", stack), byte) if mode in WHOLE else None
    if mode in ("key string", "value string"):
        if byte == ord('"'):
            return ("colon" if mode == "key string" else "after"), stack
        return (f"{mode} \\", stack) if byte == ord("\\") else state if byte >= 0x20 else None
    if "string \\" in mode:
        return _escaped(mode, stack, byte)
    if mode.startswith("word "):
        rest = mode[5:]
        if byte != ord(rest[0]):
            return None
        return (f"word {rest[1:]}" if rest[1:] else "after"), stack
    if byte in SPACE and mode not in ("start", "done"):
        return state
    return _structure(mode, stack, byte)


def _escaped(mode: str, stack: str, byte: int) -> State | None:
    """Inside an escape: after the backslash, or with hexadecimal digits to come (one `u` in the mode for each)."""
    string, _, left = mode.partition(" \\")
    if not left:
        if byte == ord("u"):
            return f"{string} \\uuuu", stack
        return (string, stack) if byte in ESCAPES else None
    if byte not in HEX:
        return None
    return (f"{string} \\{left[1:]}" if left[1:] else string), stack


def _structure(mode: str, stack: str, byte: int) -> State | None:
    """Between the values: brackets, commas, colons, and how values begin."""
    character = chr(byte)
    if mode == "start":
        return ("first key", "{") if character == "{" else None
    if mode in ("key", "first key"):
        if character == '"':
            return "key string", stack
        return _closed(stack) if character == "}" and mode == "first key" else None
    if mode == "colon":
        return ("value", stack) if character == ":" else None
    if mode == "after":
        if character == ",":
            return ("key" if stack[-1] == "{" else "value"), stack
        return _closed(stack) if character == {"{": "}", "[": "]"}[stack[-1]] else None
    if mode not in ("value", "first value"):
        return None
    if character == "]" and mode == "first value":
        return _closed(stack)
    if character in "{[":
        return None if len(stack) >= DEEPEST else ("first key" if character == "{" else "first value", stack + character)
    if character == '"':
        return "value string", stack
    if byte in LITERALS:
        return f"word {LITERALS[byte]}", stack
    if character == "-" or character == "0":
        return character, stack
    return ("1", stack) if byte in b"123456789" else None


def _closed(stack: str) -> State:
    return ("after", stack[:-1]) if len(stack) > 1 else DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The vocabulary as the grammar sees it. bytes of each id; ids by first byte; ids with a byte that is special in a string."""

    texts: tuple[bytes, ...]
    by_first: tuple[tuple[int, ...], ...]
    special: tuple[int, ...]
    plain: np.ndarray


class JsonVocabulary:
    """Masks of one tokenizer by state, made when first met and kept. Used by one thread at a time for each grammar."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        control = frozenset(tokenizer.control.values())
        texts = tuple(b"" if token in control else tokenizer.bytes_of(token) for token in range(vocab))
        by_first: list[list[int]] = [[] for _ in range(256)]
        plain = np.zeros(vocab, dtype=bool)
        special = []
        for token, text in enumerate(texts):
            if text:
                by_first[text[0]].append(token)
                plain[token] = min(text) >= 0x20 and b'"' not in text and b"\\" not in text
                if not plain[token]:
                    special.append(token)
        self._words = _Words(texts=texts, by_first=tuple(map(tuple, by_first)), special=tuple(special), plain=plain)
        self._masks: OrderedDict[State, np.ndarray] = OrderedDict()

    def after(self, state: State, token: int) -> State | None:
        """The state after a token; None when it cannot follow."""
        text = self._words.texts[token] if 0 <= token < len(self._words.texts) else b""
        now: State | None = state if text else None
        for byte in text:
            if now is None:
                break
            now = step(now, byte)
        return now

    def allowed(self, state: State) -> np.ndarray:
        """Which ids may follow a state, as booleans."""
        known = self._masks.get(state)
        if known is not None:
            self._masks.move_to_end(state)
            return known
        if state[0] in ("key string", "value string"):
            made = self._words.plain.copy()
            tokens = self._words.special
        else:
            made = np.zeros(len(self._words.texts), dtype=bool)
            tokens = tuple(token for first in range(256) if step(state, first) for token in self._words.by_first[first])
        for token in tokens:
            made[token] = self.after(state, token) is not None
        self._masks[state] = made
        if len(self._masks) > 256:
            self._masks.popitem(last=False)
        return made


class JsonGrammar:
    """One reply that must be a JSON object. opens: the token that ends the reasoning before it, or None when there is none."""

    def __init__(self, words: JsonVocabulary, *, ends: frozenset[int], opens: int | None = None) -> None:
        self._words, self._ends, self._opens = words, ends, opens
        self._path: tuple[int, ...] = ()
        self._states: list[State | None] = [START if opens is None else ("thinking", "")]

    def mask(self, path: tuple[int, ...]) -> bytes:
        """Allowed ids after `path` as a bitmap, lowest bit first."""
        state = self._state(path)
        if state is None:
            allowed = np.zeros_like(self._words.allowed(DONE))
        elif state[0] == "thinking":
            allowed = np.ones_like(self._words.allowed(DONE))
        else:
            allowed = self._words.allowed(state).copy()
        allowed[[token for token in self._ends if token < allowed.size]] = state == DONE
        return np.packbits(allowed, bitorder="little").tobytes()

    def allows(self, path: tuple[int, ...], token: int) -> bool:
        """Whether `token` may follow `path`."""
        state = self._state(path)
        return state is not None and (state == DONE if token in self._ends else self._after(state, token) is not None)

    def _after(self, state: State, token: int) -> State | None:
        if state[0] == "thinking":
            return START if token == self._opens else state
        return self._words.after(state, token)

    def _state(self, path: tuple[int, ...]) -> State | None:
        """The state after `path`; only what differs from the path asked for last is walked again."""
        same = min(len(path), len(self._path))
        while path[:same] != self._path[:same]:
            same -= 1
        del self._states[same + 1 :]
        for token in path[same:]:
            state = self._states[-1]
            self._states.append(None if state is None else self._after(state, token))
        self._path = path
        return self._states[-1]
