"""Prompts of the speed parts: the task texts, a nonce in front, and a filler log that makes a prompt exactly so long."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from homestretch.lab.errors import Undecided, WrongUse

SYSTEM = "{nonce} are the words that mark this request. Leave them aside and do the task that stands last."
LEAD = "Here is a log. Leave it aside; the task stands after it.\n\n"
GAP = "\n\n"
PADDING = " and"
TRIES = 14


def ours() -> bytes:
    return (resources.files("homestretch.lab") / "texts" / "prompts.json").read_bytes()


def read(path: Path | None) -> tuple[dict[str, str], str]:
    """Task prompts by id, and the sha256 of their file. A file is {ID: TEXT}, or a list of objects with id and text or prompt."""
    try:
        data = ours() if path is None else path.read_bytes()
    except OSError as error:
        raise WrongUse(f"--prompts {path} cannot be read: {error.strerror}") from None
    digest = hashlib.sha256(data).hexdigest()
    try:
        found: Any = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise WrongUse(f"--prompts {path} is no JSON: {error}") from None
    entries = found.get("prompts", found) if isinstance(found, dict) else found
    prompts = {}
    if isinstance(entries, dict):
        entries = [{"id": name, "text": text} if isinstance(text, str) else {"id": name, **text} for name, text in entries.items()]
    for entry in entries if isinstance(entries, list) else []:
        text = entry.get("text") or entry.get("prompt") if isinstance(entry, dict) else None
        if isinstance(text, str) and entry.get("id"):
            prompts[str(entry["id"])] = text
    if not prompts:
        raise WrongUse(
            f'--prompts {path} holds no prompts; give {{"code": "…", "prose": "…"}} or a list of objects with id and text'
        )
    return prompts, digest


def messages(nonce: str, user: str, *, system: bool = True) -> list[dict[str, str]]:
    """The chat of every speed request: our own system message that starts with the nonce, then the task.

    system=False, for templates without that role: the same words begin the user's message.
    """
    mark = SYSTEM.format(nonce=nonce)
    if not system:
        return [{"role": "user", "content": f"{mark}\n\n{user}"}]
    return [{"role": "system", "content": mark}, {"role": "user", "content": user}]


def filler(characters: int, seed: int) -> str:
    """At least so many characters of log lines; the same for a seed on every machine."""
    source = random.Random(seed)
    places = ("north pump", "south pump", "boiler", "intake", "mill race", "sluice", "lamp room", "workshop")
    notes = ("all quiet", "seal checked", "oil topped up", "filter cleaned", "reading taken twice", "valve eased", "belt replaced")
    lines, length, minute = [], 0, 0
    while length <= characters:
        minute += source.randint(1, 9)
        place, note = source.choice(places), source.choice(notes)
        when = f"{minute // 1440 + 1:03d} {minute // 60 % 24:02d}:{minute % 60:02d}"
        pressure, level = source.randint(100, 999) / 100, source.randint(1, 99)
        line = f"{when} {place}: pressure {pressure:.2f} bar, level {level} percent, {note}.\n"
        lines.append(line)
        length += len(line)
    return "".join(lines)


@dataclass(frozen=True, kw_only=True)
class Exact:
    """A user message that makes the whole prompt `tokens` long, as `source` counted it."""

    user: str
    tokens: int
    source: str


class Builder:
    """Makes prompts of an exact length. measure(user) = tokens of the whole prompt with our system message and any nonce."""

    def __init__(self, measure: Callable[[str], int | None], source: str) -> None:
        self._measure, self._source = measure, source
        self._made: dict[tuple[str, int], Exact] = {}
        self._lock = threading.Lock()

    def exact(self, task: str, depth: int) -> Exact:
        """The task after so much filler that the prompt has `depth` tokens. Undecided when it cannot be counted or hit."""
        with self._lock:
            if (task, depth) not in self._made:
                self._made[task, depth] = self._make(task, depth)
            return self._made[task, depth]

    def _make(self, task: str, depth: int) -> Exact:
        bare = self._count(LEAD + GAP + task)
        if bare > depth:
            raise Undecided(f"a prompt of {depth} tokens cannot hold the task, which needs {bare}; ask for a greater depth")
        text = filler(8 * depth, depth)
        lines = text.splitlines(keepends=True)
        sample = self._count(LEAD + "".join(lines[:20]) + GAP + task) - bare
        kept, low, high = self._lines(lines, task, depth, max(1.0, sample / 20), bare)
        pads, best = depth - low, (low, "")
        for _ in range(TRIES):
            user = LEAD + "".join(lines[:kept]) + PADDING * pads + GAP + task
            got = self._count(user)
            if got == depth:
                return Exact(user=user, tokens=depth, source=self._source)
            best = (got, user)
            pads = max(0, pads + depth - got)
        raise Undecided(f"no prompt of exactly {depth} tokens could be made (nearest {best[0]}); {high} tokens with one line more")

    def _lines(self, lines: Sequence[str], task: str, depth: int, per_line: float, bare: int) -> tuple[int, int, int]:
        """(lines that fit, tokens with them, tokens with one more), by secant steps with brackets."""
        low, low_tokens, high, high_tokens = 0, bare, len(lines), 0
        for _ in range(40):
            if high - low <= 1:
                break
            guess = low + int((depth - low_tokens) / per_line)
            middle = min(max(low + 1, guess), high - 1)
            tokens = self._count(LEAD + "".join(lines[:middle]) + GAP + task)
            if tokens <= depth:
                if depth - tokens <= per_line:
                    return middle, tokens, int(tokens + per_line)
                low, low_tokens = middle, tokens
            else:
                high, high_tokens = middle, tokens
            if middle > 0 and tokens > bare:
                per_line = (tokens - bare) / middle
        return low, low_tokens, high_tokens

    def _count(self, user: str) -> int:
        tokens = self._measure(user)
        if tokens is None:
            raise Undecided(
                "prompt tokens cannot be counted: the server has no /tokenize and sends no usage; give --tokenizer-json"
            )
        return tokens
