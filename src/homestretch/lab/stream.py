"""Parses a finished reply: server-sent events with their stamps, what each carries, and how many tokens it stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from homestretch.lab.types import EventKind, Usage

COUNTING: frozenset[EventKind] = frozenset({"content", "reasoning", "text", "tool"})
EXTRAS = ("timings", "speculative", "token_sha", "system_fingerprint", "usage")


@dataclass(kw_only=True)
class Event:
    """One stream event. at: stamp of the piece that completed it; total: tokens so far, where the server says."""

    at: float
    kind: EventKind
    text: str = ""
    total: int | None = None
    total_source: str = ""
    tokens: int | None = None


@dataclass(kw_only=True)
class Reply:
    """A parsed reply. k1: tokens up to and with the first counting event, None where nothing tells; see `count_tokens`."""

    events: list[Event] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    usage: Usage | None = None
    usage_where: str = ""
    finish_reason: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    error: str = ""
    k1: int | None = None
    k1_source: str = ""

    def counting(self) -> list[Event]:
        return [event for event in self.events if event.kind in COUNTING]


def split_events(pieces: Iterable[tuple[float, bytes]]) -> list[tuple[float, str | None]]:
    """(stamp, data) of each server-sent event; data is None for a comment. The stamp is that of the piece with its blank line.

    Line ends may be LF, CRLF or CR; several `data:` lines of one event join with a newline.
    """
    found: list[tuple[float, str | None]] = []
    rest, after_cr = b"", False
    data: list[bytes] = []
    for stamp, piece in pieces:
        if after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        after_cr = False
        buffer = rest + piece
        if buffer.endswith(b"\r"):
            after_cr = True
        *lines, rest = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if not line:
                if data:
                    found.append((stamp, b"\n".join(data).decode(errors="replace")))
                    data = []
            elif line.startswith(b":"):
                found.append((stamp, None))
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
    if data:
        found.append((stamp, b"\n".join(data).decode(errors="replace")))
    return found


def parse_stream(pieces: Iterable[tuple[float, bytes]]) -> Reply:
    """A streamed chat or text completion."""
    reply = Reply()
    ids = 0
    for at, data in split_events(pieces):
        if data is None:
            reply.events.append(Event(at=at, kind="comment"))
            continue
        if data.strip() == "[DONE]":
            reply.done = True
            reply.events.append(Event(at=at, kind="done"))
            continue
        try:
            chunk = json.loads(data)
        except ValueError:
            reply.events.append(Event(at=at, kind="other"))
            continue
        if not isinstance(chunk, dict):
            reply.events.append(Event(at=at, kind="other"))
            continue
        if chunk.get("error"):
            reply.error = f"the server said in mid-stream: {_words(chunk['error'])}"
        event = _read_chunk(reply, chunk, at)
        ids += _ids(chunk)
        if ids and event.total is None:
            event.total, event.total_source = ids, "ids"
        reply.events.append(event)
    count_tokens(reply)
    return reply


def parse_plain(body: bytes, at: float) -> Reply:
    """A reply that was not streamed: one event."""
    reply = Reply(done=True)
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        reply.error = f"no JSON object came back: {body[:80]!r}"
        return reply
    reply.events.append(_read_chunk(reply, data, at))
    reply.usage_where = "reply" if reply.usage else ""
    return reply


def _read_chunk(reply: Reply, chunk: Mapping[str, Any], at: float) -> Event:
    choice = _choice(chunk)
    delta = _object(choice.get("delta")) or _object(choice.get("message"))
    content, text = _text(delta.get("content")), _text(choice.get("text"))
    reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
    calls = delta.get("tool_calls")
    tools = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    spoken = "".join(_text(_object(call.get("function")).get("arguments")) for call in tools)
    reply.text += content + text
    reply.reasoning += reasoning
    for call in tools:
        _merge_tool(reply.tool_calls, call)
    finish = choice.get("finish_reason")
    if finish is not None:
        reply.finish_reason = str(finish)[:40]
    usage = chunk.get("usage") if isinstance(chunk.get("usage"), dict) else None
    for name, value in chunk.items():
        if name in EXTRAS and name != "usage" and value is not None:
            reply.extras[name] = value
    kind: EventKind = "other"
    if content:
        kind = "content"
    elif reasoning:
        kind = "reasoning"
    elif spoken:
        kind = "tool"
    elif text:
        kind = "text"
    elif finish is not None:
        kind = "finish"
    elif delta.get("role"):
        kind = "role"
    elif usage is not None:
        kind = "usage"
    event = Event(at=at, kind=kind, text=content or reasoning or spoken or text)
    if usage is not None:
        reply.usage = _usage(usage)
        reply.usage_where = "own chunk" if kind == "usage" else "finish event" if finish is not None else "every event"
        event.total, event.total_source = reply.usage.completion_tokens, "usage"
    elif isinstance(timings := chunk.get("timings"), dict) and isinstance(timings.get("predicted_n"), int):
        event.total, event.total_source = timings["predicted_n"], "timings"
    return event


def count_tokens(reply: Reply) -> None:
    """Give each event its tokens where the server tells: per-event usage, else token ids, else its own timings.

    Tokens before the first counting event are folded into it: they too were there when it came. What the last total adds after the
    last counting event is the textless end token, and stands on the finish event.
    """
    counting = reply.counting()
    if not counting:
        return
    totals = [event for event in reply.events if event.total is not None]
    first = counting[0]
    if first.total is not None and len(totals) > 1 and all(event.total is not None for event in counting):
        source = first.total_source
        before = 0
        for event in counting:
            event.tokens = max(0, (event.total or 0) - before)
            before = event.total or 0
        reply.k1, reply.k1_source = first.total, source
        if reply.usage_where and source == "usage":
            reply.usage_where = "every event"
        final = max(event.total or 0 for event in totals)
        finish = next((event for event in reversed(reply.events) if event.kind == "finish"), None)
        if finish is not None and final > before:
            finish.tokens = final - before
        return
    tokens = reply.usage.completion_tokens if reply.usage else None
    if tokens is not None and tokens == len(counting):
        for event in counting:
            event.tokens = 1
        reply.k1, reply.k1_source = 1, "one token an event"


def _usage(data: Mapping[str, Any]) -> Usage:
    prompt, completion = _object(data.get("prompt_tokens_details")), _object(data.get("completion_tokens_details"))
    return Usage(
        prompt_tokens=_int(data.get("prompt_tokens")),
        completion_tokens=_int(data.get("completion_tokens")),
        cached_tokens=_int(prompt.get("cached_tokens")),
        reasoning_tokens=_int(completion.get("reasoning_tokens")),
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _choice(chunk: Mapping[str, Any]) -> dict[str, Any]:
    choices = chunk.get("choices")
    return _object(choices[0]) if isinstance(choices, list) and choices else {}


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _words(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)[:200]


def _ids(chunk: Mapping[str, Any]) -> int:
    """How many token ids a chunk carries (vLLM `token_ids` in the choice, others at the top or in the delta)."""
    choice = _choice(chunk)
    for place in (choice, _object(choice.get("delta")), chunk):
        ids = place.get("token_ids")
        if isinstance(ids, list):
            return len(ids)
    return 0


def _merge_tool(calls: list[dict[str, Any]], piece: Mapping[str, Any]) -> None:
    index = _int(piece.get("index"))
    if index is None or not 0 <= index <= len(calls):  # none is told, or it skips: the next call when it has an id, else the last
        index = len(calls) if piece.get("id") or not calls else len(calls) - 1
    if index == len(calls):
        calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call, function = calls[index], _object(piece.get("function"))
    call["id"] = call["id"] or _text(piece.get("id"))
    call["function"]["name"] += _text(function.get("name"))
    call["function"]["arguments"] += _text(function.get("arguments"))


def settle(reply: Reply, text_tokens: int | None, first_tokens: int | None) -> None:
    """What a tokenizer adds where the server told nothing: k1 by the first event's text, and the textless end token.

    text_tokens: of the whole reply's text; first_tokens: of the first counting event's. Without either k1 is 1, "assumed".
    """
    counting = reply.counting()
    if not counting:
        return
    tokens = reply.usage.completion_tokens if reply.usage else None
    finish = next((event for event in reversed(reply.events) if event.kind == "finish"), None)
    counted = any(event.tokens is not None for event in reply.events)
    if not counted and finish is not None and reply.finish_reason == "stop" and tokens is not None:
        textless = text_tokens == tokens - 1 or (text_tokens is None and len(counting) == tokens - 1)
        if textless:
            finish.tokens = 1
        if len(counting) == tokens - 1 and textless:
            for event in counting:
                event.tokens = 1
            if text_tokens is not None:
                reply.k1, reply.k1_source = 1, "one token an event"
    if reply.k1 is None and first_tokens:
        reply.k1, reply.k1_source = first_tokens, "tokenizer"
        counting[0].tokens = first_tokens
    if reply.k1 is None:
        reply.k1, reply.k1_source = 1, "assumed"


def as_usage(prompt_tokens: int | None, completion_tokens: int | None) -> Usage:
    """Counts of our own making, where the server sends no usage; the record says where they come from."""
    return msgspec.structs.replace(Usage(), prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
