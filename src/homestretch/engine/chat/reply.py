"""A reply's text as it grows: reasoning apart from content, tool calls read where the model writes them in a known form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homestretch.engine.chat.stops import StopText, overlap
from homestretch.engine.chat.template import THINK_CLOSE, THINK_OPEN
from homestretch.engine.tokenizer import TextStream, Tokenizer

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
MARKS = (THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call: arguments is JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one event adds."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.content or self.reasoning or self.calls)


def text_stream(tokenizer: Tokenizer, *, tags: bool) -> TextStream:
    """The text of a reply as it is read here: without control tokens, but with the tags of reasoning and calls if `tags`."""
    shown = {tokenizer.control[mark] for mark in MARKS if tags and mark in tokenizer.control}
    return TextStream(tokenizer, frozenset(tokenizer.control.values()) - shown)


class Reply:
    """Turns tokens into deltas. thinking: None = the model does not reason in tags; else whether the reply begins inside them.

    tools: the request's tool definitions; calls are looked for only when there are some. Nothing here raises on any text: what
    is no well-formed call is content.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, stops: Sequence[str] = (), thinking: bool | None = None, tools: Sequence[Any] = ()
    ) -> None:
        self._stream = text_stream(tokenizer, tags=thinking is not None or bool(tools))
        self._stops = StopText(stops)
        self._state = "content" if thinking is None else "reasoning" if thinking else "open"
        self._kinds = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        self._held = ""
        self._fresh = thinking is not None
        self.reasoning_tokens = 0
        self.called = False

    def push(self, tokens: Sequence[int]) -> Delta:
        """The text that these tokens make whole."""
        piece = ""
        for token in tokens:
            piece += self._stream.push(token)
            if self._state == "reasoning" and THINK_CLOSE not in self._held + piece:
                self.reasoning_tokens += 1
        return self._read(self._stops.push(piece))

    def finish(self) -> Delta:
        """What was held back when the reply ended."""
        delta = self._read(self._stops.push(self._stream.finish()) + self._stops.finish())
        held, self._held = self._held, ""
        if not held and self._state != "call":
            return delta
        if self._state == "reasoning":
            return Delta(content=delta.content, reasoning=delta.reasoning + held, calls=delta.calls)
        if self._state == "call":
            call = parse_call(held, self._kinds)
            if call is not None:
                self.called = True
                return Delta(content=delta.content, reasoning=delta.reasoning, calls=(*delta.calls, call))
            held = CALL_OPEN + held
        return Delta(content=delta.content + held, reasoning=delta.reasoning, calls=delta.calls)

    def _read(self, piece: str) -> Delta:
        self._held += piece
        content, reasoning, calls = "", "", []
        while True:
            state = self._state
            if state == "open":
                self._open()
            elif state == "reasoning":
                said, closed = self._until(THINK_CLOSE)
                reasoning += said
                if closed:
                    self._state, self._fresh = "content", True
            elif state == "content":
                if self._fresh:
                    self._held = self._held.lstrip("\n")
                    self._fresh = not self._held
                if not self._kinds:
                    content, self._held = content + self._held, ""
                else:
                    said, opened = self._until(CALL_OPEN)
                    content += said
                    if opened:
                        self._state = "call"
            elif CALL_CLOSE in self._held:
                body, _, self._held = self._held.partition(CALL_CLOSE)
                call = parse_call(body, self._kinds)
                if call is None:
                    content += CALL_OPEN + body + CALL_CLOSE
                else:
                    calls.append(call)
                    self.called = self._fresh = True
                self._state = "content"
            if self._state == state:
                break
        return Delta(content=content, reasoning=reasoning, calls=tuple(calls))

    def _open(self) -> None:
        """The beginning of a reply whose prompt left the reasoning closed or unopened: it may open it itself."""
        start = self._held.lstrip()
        if start.startswith(THINK_OPEN):
            self._held, self._state = start[len(THINK_OPEN) :], "reasoning"
        elif start and not THINK_OPEN.startswith(start):
            self._state = "content"

    def _until(self, mark: str) -> tuple[str, bool]:
        """Held text before `mark` and whether it was found; what may be its beginning stays held."""
        before, found, after = self._held.partition(mark)
        if found:
            self._held = after
            return before, True
        keep = overlap(self._held, (mark,))
        said = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return said, False


def parse_call(body: str, kinds: Mapping[str, Any]) -> ToolCall | None:
    """A call between the tool_call tags: JSON {"name", "arguments"}, or <function=NAME><parameter=KEY>VALUE</parameter></function>.

    None when it is neither. kinds: JSON schema of each tool's parameters, which says what VALUE is.
    """
    text = body.strip()
    try:
        if text.startswith("{"):
            call = _loads(text)
            name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
            arguments = _loads(arguments) if isinstance(arguments, str) else arguments
            if isinstance(name, str) and name and isinstance(arguments, dict):
                return ToolCall(name=_sendable(name), arguments=_dumps(arguments))
            return None
        head = re.match(r"<function=([^>\s]+)>", text)
        if head is None:
            return None
        values = re.findall(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", text, flags=re.DOTALL)
        types = (kinds.get(head.group(1)) or {}).get("properties")
        made = {key: _typed(value, types.get(key) if isinstance(types, Mapping) else None) for key, value in values}
        return ToolCall(name=head.group(1), arguments=_dumps(made))
    except (ValueError, RecursionError, AttributeError, TypeError):
        return None


def _typed(value: str, schema: Any) -> Any:
    if isinstance(schema, Mapping) and schema.get("type") in ("string", None) and "anyOf" not in schema:
        return value
    try:
        made = _loads(value)
        _dumps(made)
    except (ValueError, RecursionError):
        return value
    return made


def _loads(text: str) -> Any:
    """JSON alone: Python would also read NaN and Infinity."""
    return json.loads(text, parse_constant=_no_number)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _dumps(value: Any) -> str:
    """JSON text that can be sent: half a surrogate pair stays an escape. ValueError for a number too large to be one."""
    return _sendable(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
