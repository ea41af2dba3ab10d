"""Reads a run folder's files as plain JSON for the recount: no types of the lab, symbolic links and oversized files refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

MAX_BYTES = 512 * 1024 * 1024
SPOKEN = ("content", "reasoning", "text", "tool")


class Unreadable(Exception):
    """A file that is not what its name says; `str` is the reason, with the line where there is one."""


def plain_file(root: Path, name: str) -> Path | None:
    """The path of a regular file inside root, None when there is none or a link stands in its way."""
    path = root
    for piece in name.split("/"):
        path = path / piece
        if piece in ("", ".", "..") or path.is_symlink():
            return None
    return path if path.is_file() else None


def load(text: str) -> Any:
    """JSON with the constants that JSON has not (NaN, Infinity) refused."""

    def refuse(constant: str) -> Any:
        raise Unreadable(f"holds {constant}, which is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {str(error).splitlines()[0]}") from error


@dataclass(frozen=True)
class Request:
    """A line of `requests-PART.jsonl` as a plain dict, with its line number and what is counted from it."""

    line: int
    row: dict[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        return self.row.get(name, default)

    @property
    def detail(self) -> dict[str, Any]:
        return self.row.get("detail") or {}

    @property
    def tokens(self) -> int | None:
        """N: completion tokens by usage."""
        value = (self.row.get("usage") or {}).get("completion_tokens")
        return value if isinstance(value, int) else None

    @property
    def cached(self) -> int | None:
        value = (self.row.get("usage") or {}).get("cached_tokens")
        return value if isinstance(value, int) else None

    @cached_property
    def spoken(self) -> list[tuple[float, int | None]]:
        """Time and tokens of every event that carries text."""
        return [(event[0], event[2]) for event in self.row.get("events") or [] if event[1] in SPOKEN]

    @property
    def first(self) -> float | None:
        """When the first text came, seconds after sending."""
        return self.spoken[0][0] if self.spoken else None

    @property
    def last(self) -> float | None:
        """When the last token came: the last text, or a finish event that carries a token without text."""
        if not self.spoken:
            return None
        late = [event[0] for event in self.row.get("events") or [] if event[1] == "finish" and event[2]]
        return float(max([self.spoken[-1][0], *late]))


@dataclass
class Raw:
    """A run folder. Files that the publisher held back are in `held` (name -> reason)."""

    folder: Path
    held: dict[str, str] = field(default_factory=dict)

    def path(self, name: str) -> Path | None:
        return plain_file(self.folder, name)

    def text(self, name: str) -> str | None:
        """The text of a file, None when it is not there."""
        path = self.path(name)
        if path is None:
            return None
        if path.stat().st_size > MAX_BYTES:
            raise Unreadable(f"larger than {MAX_BYTES:,} bytes")
        try:
            return path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Unreadable(f"cannot be read ({type(error).__name__})") from error

    def json(self, name: str) -> dict[str, Any] | None:
        text = self.text(name)
        value = None if text is None else load(text)
        if value is not None and not isinstance(value, dict):
            raise Unreadable("holds no JSON object")
        return value

    def lines(self, name: str) -> list[tuple[int, dict[str, Any]]] | None:
        """Line number and object of each line, None when the file is not there."""
        text = self.text(name)
        if text is None:
            return None
        out = []
        pieces = text.split("\n")
        for number, piece in enumerate(pieces, 1):
            if not piece and number == len(pieces):
                continue
            try:
                value = load(piece)
            except Unreadable as error:
                raise Unreadable(f"line {number}: {error}") from error
            if not isinstance(value, dict):
                raise Unreadable(f"line {number} holds no JSON object")
            out.append((number, value))
        return out

    def requests(self, part: str) -> list[Request] | None:
        found = self.lines(f"requests-{part}.jsonl")
        return None if found is None else [Request(line, row) for line, row in found]


def counting(requests: list[Request]) -> list[Request]:
    """Requests that count: per step those of the first attempt that is complete and not discarded; warm-ups left out."""
    steps: dict[str, dict[int, list[Request]]] = {}
    for request in requests:
        if not str(request.get("step", "")).startswith("warmup"):
            steps.setdefault(str(request.get("step")), {}).setdefault(int(request.get("attempt", 1)), []).append(request)
    out = []
    for attempts in steps.values():
        for number in sorted(attempts):
            group = attempts[number]
            if any(request.get("discarded") for request in group) or len(group) != int(group[0].get("of", 1)):
                continue
            out += group
            break
    return out
