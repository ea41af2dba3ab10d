"""Reading an answer out of a reply: chat around it is allowed, the answer itself is taken exactly as written.

Puzzle: the last JSON object that has at least one of the keys "1" … "5" and stands in a fenced block; if no block holds one, the
last such object anywhere in the reply. Code: the last fenced block marked python (py, python3); else the last block without a
mark; else the whole reply. A block that the reply's end leaves open counts up to that end. Text inside a closed
<think> … </think> is dropped first; what follows an open one is no answer.
"""

from __future__ import annotations

import json
import re
from typing import Any

KEYS = ("1", "2", "3", "4", "5")
LONGEST = 400_000
_FENCE = re.compile(r"^[ \t]{0,3}(?:>[ \t]?)?(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n]*$", re.MULTILINE)
_PYTHON = {"python", "py", "python3"}


def spoken(reply: str) -> str:
    """The reply without thinking blocks, at most its last LONGEST characters. Takes time in proportion to the reply's length."""
    text = reply.replace("\r\n", "\n")
    kept, at = [], 0
    while (start := text.find("<think>", at)) >= 0:
        kept.append(text[at:start])
        end = text.find("</think>", start)
        if end < 0:
            at = len(text)
            break
        at = end + len("</think>")
    kept.append(text[at:])
    said = "".join(kept)
    return said[said.rfind("</think>") + len("</think>") if "</think>" in said else 0 :][-LONGEST:]


def blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks in order as (mark in lower case, body)."""
    found: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[1][0] == opened[1][0] and len(fence[1]) >= len(opened[1]) and not fence[2]:
            found.append((opened[2].lower(), text[opened.end() + 1 : fence.start()]))
            opened = None
    if opened is not None:
        found.append((opened[2].lower(), text[opened.end() + 1 :]))
    return found


def objects(text: str) -> list[dict[str, Any]]:
    """JSON objects at the top level of `text`, in order, that have a key of a target."""
    decoder = json.JSONDecoder()
    found = []
    at = text.find("{")
    tries = 0
    while at >= 0 and tries < 2_000:
        tries += 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            continue
        if isinstance(value, dict) and any(key in value for key in KEYS):
            found.append(value)
        at = text.find("{", end)
    return found


def puzzle(reply: str) -> dict[str, Any] | None:
    """The answered object, or None when the reply holds none."""
    text = spoken(reply)
    inside = [value for _, body in blocks(text) for value in objects(body)]
    found = inside or objects(text)
    return found[-1] if found else None


def program(reply: str) -> str:
    """The answered program; empty when the reply is."""
    text = spoken(reply)
    made = blocks(text)
    marked = [body for mark, body in made if mark in _PYTHON]
    plain = [body for mark, body in made if not mark]
    return (marked or plain or [text if not made else ""])[-1]
