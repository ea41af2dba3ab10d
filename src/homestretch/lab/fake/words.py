"""The tokenizer of `fake`: a word with the space before it, a white-space character, or a sign is one token."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

TOKEN = re.compile(r" ?\w+|\s|[^\w\s]")
TEMPLATE_PREFIX = ("<|begin|>", "<|system|>")
REPLY_WORDS = ("the", "steady", "river", "turns", "a", "quiet", "mill", "and", "every", "wheel", "keeps", "its")


def tokens(text: str) -> list[str]:
    return TOKEN.findall(text)


def prompt_tokens(body: dict[str, Any]) -> list[str]:
    """Tokens of the rendered prompt: two before the first message, two around each, one that opens the reply."""
    messages = body.get("messages")
    if messages is None:
        prompt = body.get("prompt", "")
        return [str(item) for item in prompt] if isinstance(prompt, list) else tokens(prompt)
    found: list[str] = list(TEMPLATE_PREFIX)
    for number, message in enumerate(messages):
        if number:
            found.append(f"<|{message.get('role', 'user')}|>")
        found += tokens(message_text(message))
        found.append("<|end|>")
    found.append("<|assistant|>")
    return found


def message_text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(str(piece.get("text", "")) for piece in content)


def asked_text(body: dict[str, Any]) -> str:
    if "messages" in body:
        return "\n".join(message_text(message) for message in body["messages"])
    return str(body.get("prompt", ""))


def babble(count: int, seed: int) -> list[str]:
    """`count` tokens of plain words that tokenize back to themselves."""
    source = random.Random(seed)
    words = source.choices(REPLY_WORDS, k=count)
    return [word if number == 0 else f" {word}" for number, word in enumerate(words)]


def common_prefix(left: Sequence[str], right: Sequence[str]) -> int:
    if left == right:
        return len(left)
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
