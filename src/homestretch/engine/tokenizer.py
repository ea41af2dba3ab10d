"""Text to ids and back: control tokens only where they are meant, and streams of text that never split a character."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from homestretch.engine.errors import CheckpointError


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level BPE writes for bytes: printable Latin-1 stands for itself, the rest is moved past U+00FF."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(moved)}


BYTE_OF = _byte_letters()


LONG = 2000
"""Characters from which on a text is read as a batch of one: alone among the ways to read it, that lets other threads run."""

MARKUP = re.compile(r"[<\[{|].*[A-Za-z].*[>\]}|]", re.DOTALL)


def _is_markup(token: Any) -> bool:
    """An added token such as `<think>`, which some files do not call special: it too must not come out of plain text."""
    return not token.special and MARKUP.fullmatch(token.content) is not None


def _plain(core: Any, markup: list[str]) -> Any:
    """A copy that reads control tokens as text, and `markup` too."""
    held = core.to_str()
    if markup:
        changed = json.loads(held)
        for token in changed["added_tokens"]:
            token["special"] = token["special"] or token["content"] in markup
        held = json.dumps(changed)
    made = type(core).from_str(held)
    made.encode_special_tokens = True
    return made


class Tokenizer:
    """A `tokenizers.Tokenizer` with byte-level decoding, and with two ways to read text that looks like a control token.

    control: the texts and ids of control tokens, which are no part of a reply's text. spoken: these and markup such as `<think>`,
    which only a trusted text may say. begin, end: ids that the files put around a plain prompt (usually none or BOS).
    Safe to call from several threads.
    """

    def __init__(self, core: Any) -> None:
        kind = type(core.decoder).__name__
        if kind != "ByteLevel":
            raise CheckpointError(f"the tokenizer decodes with {kind}; supported: ByteLevel (byte-level BPE)")
        added = core.get_added_tokens_decoder()
        self._core = core
        markup = {token.content: number for number, token in added.items() if _is_markup(token)}
        self._plain = _plain(core, list(markup))
        self.control: Mapping[str, int] = {token.content: number for number, token in added.items() if token.special}
        self.spoken: Mapping[str, int] = {**self.control, **markup}
        self._control_ids = frozenset(self.control.values())
        self._literal: dict[int, bytes] = {number: token.content.encode() for number, token in added.items()}
        self._bytes: dict[int, bytes] = {}
        self.size: int = max((core.get_vocab_size(with_added_tokens=True), *(number + 1 for number in added)))
        around = core.encode("a", add_special_tokens=True).ids
        bare = core.encode("a", add_special_tokens=False).ids
        at = next((place for place in range(len(around)) if around[place : place + len(bare)] == bare), 0)
        self.begin: tuple[int, ...] = tuple(around[:at])
        self.end: tuple[int, ...] = tuple(around[at + len(bare) :])

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Every token as the tokenizer spells it, and its id."""
        found: dict[str, int] = self._core.get_vocab(with_added_tokens=True)
        return found

    def fewest(self, text: str) -> int:
        """Tokens that `text` becomes at least, told from its length before the slow reading; 0 where that tells nothing."""
        shrinks = {"NoneType": 1, "NFC": 3}.get(type(self._core.normalizer).__name__, 0)
        longest, mute = self._longest
        if not shrinks or not longest:
            return 0
        return -(-len(text.encode("utf-8", "replace").translate(None, mute)) // (shrinks * longest))

    @cached_property
    def _longest(self) -> tuple[int, bytes]:
        """Bytes of the longest token, 0 where one swallows all the spaces around it; and the bytes that no token stands for."""
        added = self._core.get_added_tokens_decoder().values()
        known = self.vocabulary
        greedy = any(token.lstrip or token.rstrip for token in added)
        mute = bytes(byte for letter, byte in BYTE_OF.items() if letter not in known)
        return 0 if greedy else max(len(text.encode()) for text in known), mute

    def encode(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        """Ids of `text` alone. special: control tokens written in the text become their ids; else they stay text."""
        core = self._core if special else self._plain
        clean = text.encode("utf-8", "replace").decode()
        if len(clean) > LONG:
            return tuple(core.encode_batch_fast([clean], add_special_tokens=False)[0].ids)
        return tuple(core.encode(clean, add_special_tokens=False).ids)

    def encode_batch(self, texts: list[str], *, special: bool = False) -> list[tuple[int, ...]]:
        """`encode` of many texts at once."""
        core = self._core if special else self._plain
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        return [tuple(item.ids) for item in core.encode_batch_fast(clean, add_special_tokens=False)]

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for an id without a text."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._find_bytes(token)
        return known

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. special: write control tokens out; else they are left out."""
        skip = frozenset() if special else self._control_ids
        return b"".join(self.bytes_of(token) for token in ids if token not in skip).decode("utf-8", "replace")

    def stream(self, *, special: bool = False) -> TextStream:
        """A decoder for tokens that come one by one."""
        return TextStream(self, frozenset() if special else self._control_ids)

    def _find_bytes(self, token: int) -> bytes:
        if token in self._literal:
            return self._literal[token]
        text = self._core.id_to_token(token) if 0 <= token < 2**32 else None
        if text is None:
            return b""
        if all(letter in BYTE_OF for letter in text):
            return bytes(BYTE_OF[letter] for letter in text)
        return str(text).encode()


class TextStream:
    """Text of tokens as they come. The pieces, joined, are what `Tokenizer.decode` gives for all of them."""

    def __init__(self, tokenizer: Tokenizer, skip: frozenset[int]) -> None:
        self._tokenizer, self._skip = tokenizer, skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is whole with this token: empty while a character's bytes are still to come."""
        if token in self._skip:
            return ""
        return self._decoder.decode(self._tokenizer.bytes_of(token))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character whose bytes never came, else empty."""
        return self._decoder.decode(b"", final=True)
