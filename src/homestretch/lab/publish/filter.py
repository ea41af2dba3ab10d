"""The filter: every byte to be published passes it; private text becomes a placeholder or the file is held back. Fails closed."""

from __future__ import annotations

import base64
import binascii
import contextlib
import getpass
import hashlib
import html
import re
import socket
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from homestretch.lab.publish.language import foreign, words
from homestretch.lab.publish.rules import POWER, POWER_CASED, RULES, TRIGGER
from homestretch.lab.types import FileEntry

MAX_BYTES = 64 * 1024 * 1024
TEXT_SUFFIXES = frozenset(
    {".json", ".jsonl", ".txt", ".log", ".toml", ".md", ".csv", ".yaml", ".yml", ".xml", ".sh", ".cfg", ".ini", ".sig"}
)
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
GPQA_REPLIES = ("replies-gpqa.jsonl", "replies-think.jsonl")
UNTOUCHED = re.compile(r"(?:^|/)(?:replies-[^/]*|io\.jsonl|[^/]*\.gen\.jsonl|answers-[^/]*)$")
ORDINARY = words("ordinary")
ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")
POWER_KEY = re.compile(r"power|watt|energy|joule", re.IGNORECASE)
BASE64 = re.compile(r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{16,}={0,2}(?![A-Za-z0-9+/=])")
ALLOWED = words("allowed")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the filter made of a file: the entry, and the bytes to publish (None when held back)."""

    entry: FileEntry
    data: bytes | None
    changes: list[tuple[int, str, str]] = field(default_factory=list)


def names_of_this_machine() -> tuple[str, ...]:
    """Account and host names of the machine the filter runs on, ordinary ones left out."""
    found: set[str] = set()
    with contextlib.suppress(OSError, KeyError):
        found.add(getpass.getuser())
    host = socket.gethostname()
    found |= {host, host.split(".")[0], Path.home().name}
    return tuple(sorted(name for name in found if len(name) >= 3 and name.lower() not in ORDINARY and not name.isdigit()))


class Filter:
    """names: account and host names, replaced wherever they stand as a word. allowed: words that are never private or foreign."""

    def __init__(self, names: Iterable[str] = (), allowed: Iterable[str] = ()) -> None:
        self.allowed = ALLOWED | {word.lower() for word in allowed}
        self.names = tuple(sorted({name for name in names if name and name.lower() not in self.allowed}, key=len, reverse=True))
        pattern = "|".join(re.escape(name) for name in self.names)
        self._names = re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", re.IGNORECASE) if pattern else None
        self._short = lru_cache(maxsize=20000)(self._scrub)
        self._fault = lru_cache(maxsize=20000)(self._fault_of)

    @staticmethod
    def of_this_machine(names: Iterable[str] = (), allowed: Iterable[str] = ()) -> Filter:
        """The filter with this machine's own names and those given."""
        return Filter((*names_of_this_machine(), *names), allowed)

    # --- text ----------------------------------------------------------------------------------------------------------------

    def scrub(self, text: str) -> str:
        """The text with placeholders in the place of everything private."""
        return self._short(text)[0] if len(text) < 200 else self._scrub(text)[0]

    def _scrub(self, text: str) -> tuple[str, tuple[str, ...]]:
        hits: list[str] = []
        for rule in RULES if TRIGGER.search(text) else ():
            before = text
            text = rule.pattern.sub(rule.replace, text)
            if text != before:
                hits.append(rule.name)
        if self._names is not None:
            text, count = self._names.subn("$NAME", text)
            hits += ["account or host name"] * bool(count)
        return text, tuple(hits)

    def _pair(self, text: str) -> tuple[str, tuple[str, ...]]:
        return self._short(text) if len(text) < 200 else self._scrub(text)

    def remains(self, text: str) -> str:
        """The kind of private text that is still in there, also behind escapes, percent signs, entities and base64; "" if none."""
        for view in self._views(text):
            hits = self._pair(view)[1]
            if hits:
                return hits[0]
        return ""

    def _views(self, text: str) -> Iterable[str]:
        yield text
        if "\\" in text:
            plain = ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16)), text).replace("\\/", "/")
            if plain != text:
                yield plain
        if "%" in text and (plain := urllib.parse.unquote(text)) != text:
            yield plain
        if "&" in text and (plain := html.unescape(text)) != text:
            yield plain
        for match in BASE64.finditer(text) if len(text) < 1_000_000 else ():
            try:
                plain = base64.b64decode(
                    match[0] + "=" * (-len(match[0].rstrip("=")) % 4 if not match[0].endswith("=") else 0)
                ).decode()
            except (binascii.Error, UnicodeDecodeError, ValueError):
                continue
            if plain.isprintable():
                yield plain

    # --- files ---------------------------------------------------------------------------------------------------------------

    def judge(self, name: str, data: bytes) -> Judged:
        """Publish, change or hold back one file. name: its path inside the run folder, with forward slashes."""
        digest = hashlib.sha256(data).hexdigest()
        try:
            reason, out, changes, counts = self._judge(name, data)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, nothing is published
            reason, out, changes, counts = f"the filter could not read it ({type(error).__name__})", data, [], {}
        if reason:
            entry = FileEntry(name=name, bytes=len(data), sha256=digest, state="held", reason=reason)
            return Judged(entry=entry, data=None, changes=changes)
        entry = FileEntry(
            name=name,
            bytes=len(data),
            sha256=digest,
            state="changed" if out != data else "published",
            published_bytes=len(out),
            published_sha256=hashlib.sha256(out).hexdigest(),
            replaced=counts,
        )
        return Judged(entry=entry, data=out, changes=changes)

    def _judge(self, name: str, data: bytes) -> tuple[str, bytes, list[tuple[int, str, str]], dict[str, int]]:
        if (reason := refused_name(name)) or (reason := self.remains(name) and "its name holds private text"):
            return reason, data, [], {}
        if len(data) > MAX_BYTES:
            return f"larger than the {MAX_BYTES:,} bytes that the filter reads", data, [], {}
        if PurePosixPath(name).suffix not in TEXT_SUFFIXES:
            return "not a kind of text file that the filter reads", data, [], {}
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return "not UTF-8 text", data, [], {}
        if "\x00" in text:
            return "not text: it holds zero bytes", data, [], {}
        untouched = UNTOUCHED.search(name) is not None
        structured = name.endswith((".json", ".jsonl"))
        lines = [text] if name.endswith(".json") else text.split("\n")
        out: list[str] = []
        changes: list[tuple[int, str, str]] = []
        counts: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            new, hits = self._line(line, structured)
            if hits and untouched:
                return f"line {number}: {hits[0]}; what a model said is published whole or not at all", data, changes, {}
            if reason := self._held(new, structured, language=not untouched):
                return f"line {number}: {reason}" if len(lines) > 1 else reason, data, changes, {}
            if new != line:
                changes.append((number, line, new))
                for hit in hits:
                    counts[hit] = counts.get(hit, 0) + 1
            out.append(new)
        joined = "\n".join(out)
        if reason := self.remains(joined) if "PRIVATE KEY" in joined else "":
            return reason, data, changes, {}
        return "", joined.encode("utf-8") if changes else data, changes, counts

    def _line(self, line: str, structured: bool) -> tuple[str, tuple[str, ...]]:
        """A line with placeholders. JSON is decoded first, so that escapes hide nothing, and written anew only if it changed."""
        if not structured or not line.strip():
            return self._pair(line)
        value = msgspec.json.decode(line)
        hits: list[str] = []
        new = self._value(value, hits, "")
        if not hits:
            return line, ()
        encoded = msgspec.json.encode(new)
        return (msgspec.json.format(encoded, indent=1).decode() + "\n" if "\n" in line else encoded.decode()), tuple(hits)

    def _value(self, value: Any, hits: list[str], key: str) -> Any:
        if isinstance(value, str):
            new, found = self._pair(value)
            if key and not found and new == value:
                joined, found = self._pair(f"{key}: {value}")  # a rule may need the key to see what the value is
                new = joined.removeprefix(f"{key}: ") if found else value
            hits += found
            return new
        if isinstance(value, int | float | None):
            return value
        if isinstance(value, list):
            return [self._value(item, hits, key) for item in value]
        if isinstance(value, dict):
            return {
                self._value(name, hits, ""): self._value(item, hits, name if isinstance(name, str) else "")
                for name, item in value.items()
            }
        return value

    def _held(self, line: str, structured: bool, *, language: bool) -> str:
        """Why a file with this line cannot be published, "" if it can."""
        if not line.strip():
            return ""
        texts = list(strings(msgspec.json.decode(line))) if structured else [line]
        for text in texts:
            judged = self._fault(text, language) if len(text) < 200 else self._fault_of(text, language)
            if judged:
                return judged
        return ""

    def _fault_of(self, text: str, language: bool) -> str:
        """Why this text keeps its file back, "" if it does not."""
        if kind := self.remains(text):
            return f"{kind} remains after the filter"
        if (found := POWER.search(text)) and not POWER_CASED.fullmatch(found[0]):
            return "a power reading, or a number written like one"
        for piece in text.split("\n") if language else ():
            if tongue := foreign(piece, self.allowed):
                return f"text in another language than the site's ({tongue})"
        return ""


def strings(value: Any, key: str = "") -> Iterable[str]:
    """Every string of a JSON value, keys included; a number comes with a key that tells of power: `power_w: 12` is one text."""
    if isinstance(value, str):
        yield f"{key}: {value}" if key else value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item, key if isinstance(item, int | float) and not isinstance(item, bool) else "")
    elif isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str | list | dict):
                yield str(name)
            yield from strings(item, str(name))
    elif isinstance(value, int | float) and not isinstance(value, bool) and POWER_KEY.search(key):
        yield f"{key}: {value}"


def refused_name(name: str) -> str:
    """Why a file may not be published under this name, "" if it may: plain ASCII pieces of at most 120, no climbing."""
    pieces = PurePosixPath(name).parts
    if (
        not pieces
        or name.startswith("/")
        or len(pieces) > 6
        or any(not SAFE_NAME.fullmatch(piece) or ".." in piece for piece in pieces)
    ):
        return "its name is not one that a site can carry"
    if pieces[-1] in GPQA_REPLIES:
        return "replies can quote GPQA's questions, whose authors ask that no example appear in plain text"
    return ""
