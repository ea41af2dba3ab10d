"""Messages to prompt ids: the checkpoint's template in a sandbox; what a message says can never become a control token.

Every text that came with the request is searched for control tokens before it is rendered; each is replaced by a placeholder of
private-use characters that no message contains. In the rendered text the control tokens that are left were written by the
template: they become ids. Between them the placeholders are put back and the text is read as plain text.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from homestretch.engine.errors import CheckpointError, Refused
from homestretch.engine.tokenizer import Tokenizer

Json = Any
"""A value as JSON has it."""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
OURS = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "self"})
"""What a template gets from the engine alone."""
PRIVATE = range(0xE000, 0xF900)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A rendered prompt. marks: token positions worth keeping; thinking: the reply begins inside the reasoning."""

    ids: tuple[int, ...]
    text: str
    marks: tuple[int, ...]
    thinking: bool


def _anything(text: str) -> None:
    """Refuses nothing."""


class Template:
    """A checkpoint's chat template. CheckpointError when it cannot be compiled."""

    def __init__(self, source: str, tokenizer: Tokenizer, *, bos: str = "", eos: str = "") -> None:
        self.source, self._tokenizer = source, tokenizer
        self._specials = {"bos_token": bos, "eos_token": eos}
        self._control = re.compile(longest_of(tokenizer.spoken) or "(?!)")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source))
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the chat template cannot be compiled: {error}") from None

    @property
    def takes_tools(self) -> bool:
        return "tools" in self.source

    @property
    def thinks(self) -> bool:
        """Whether the template knows about reasoning."""
        return THINK_CLOSE in self.source

    def prompt(
        self,
        messages: Sequence[Mapping[str, Json]],
        *,
        tools: Sequence[Json] = (),
        options: Mapping[str, Json] | None = None,
        check: Callable[[str], None] = _anything,
    ) -> Prompt:
        """Ids of a conversation that asks for the next reply. Refused when the template refuses the messages.

        check: sees the rendered text before it is read as tokens, and may refuse it.
        """
        bad = next((name for name in options or {} if not name.isidentifier() or name in OURS), None)
        if bad is not None:
            raise Refused(f"chat_template_kwargs cannot set {bad!r}", param="chat_template_kwargs")
        try:
            return self._prompt(messages, tools, options or {}, check)
        except RecursionError:
            raise Refused("the messages, tools or chat_template_kwargs are nested too deeply", param="messages") from None

    def _prompt(
        self,
        messages: Sequence[Mapping[str, Json]],
        tools: Sequence[Json],
        options: Mapping[str, Json],
        check: Callable[[str], None],
    ) -> Prompt:
        prepared = _merge_leading_systems([self._prepare(message) for message in messages])
        given = [prepared, list(tools), dict(options)]
        mask = _Mask(self._control, given)
        prepared, masked_tools, kwargs = mask.hide(given)
        values = {**self._specials, **kwargs, "tools": masked_tools or None}
        text = self._render(prepared, values, ask=True)
        check(mask.show(text))
        ids, ends = self._encode(text, mask)
        users = [place for place, message in enumerate(prepared) if message["role"] == "user"]
        system = next((place for place, message in enumerate(prepared) if message["role"] != "system"), 0)
        marks = {self._shared(text, ends, prepared[:place], values) for place in (system, users[-1] if users else 0) if place}
        shown = text.rstrip()
        return Prompt(
            ids=ids,
            text=mask.show(text),
            marks=tuple(sorted(mark for mark in marks if mark > 0)),
            thinking=self.thinks and shown.rfind(THINK_OPEN) > shown.rfind(THINK_CLOSE) and shown.endswith(THINK_OPEN),
        )

    def _prepare(self, message: Mapping[str, Json]) -> dict[str, Json]:
        """A copy that templates can read: text as one string, tool arguments as objects, reasoning apart from the answer."""
        made: dict[str, Json] = {key: value for key, value in message.items() if value is not None}
        made["role"] = "system" if message["role"] == "developer" else message["role"]
        content = made.get("content")
        made["content"] = "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""
        if made["role"] == "assistant":
            if self.thinks and THINK_CLOSE in made["content"]:
                before, _, after = made["content"].rpartition(THINK_CLOSE)
                made["content"] = after.lstrip("\n")
                made.setdefault("reasoning_content", before.split(THINK_OPEN)[-1].strip("\n"))
            if made.get("tool_calls"):
                made["tool_calls"] = [_readable_call(call) for call in made["tool_calls"]]
        return made

    def _render(self, messages: list[Json], values: Mapping[str, Json], *, ask: bool) -> str:
        try:
            return self._template.render(messages=messages, add_generation_prompt=ask, **values)
        except (Refused, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - a template may fail in any way on what a client sent
            raise Refused(f"the chat template cannot render these messages: {error}", param="messages") from None

    def _encode(self, text: str, mask: _Mask) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
        """Ids, and for each stretch of text (character, token) at its end."""
        ids: list[int] = []
        ends: list[tuple[int, int]] = []
        at = 0
        for found in self._control.finditer(text):
            if found.start() > at:
                ids.extend(self._tokenizer.encode(mask.show(text[at : found.start()])))
                ends.append((found.start(), len(ids)))
            ids.append(self._tokenizer.spoken[found.group()])
            at = found.end()
            ends.append((at, len(ids)))
        if at < len(text):
            ids.extend(self._tokenizer.encode(mask.show(text[at:])))
            ends.append((len(text), len(ids)))
        return tuple(ids), ends

    def _shared(self, text: str, ends: list[tuple[int, int]], messages: list[Json], values: Mapping[str, Json]) -> int:
        """Tokens that the full prompt shares with its first messages alone; 0 when the template will not render those."""
        try:
            part = self._render(messages, values, ask=False)
        except Refused:
            return 0
        same = _shared_length(text, part)
        return max((tokens for character, tokens in ends if character <= same), default=0)


class _Mask:
    """Control-token texts in what a request brought, hidden from the template and shown again afterwards."""

    def __init__(self, control: re.Pattern[str], given: Json) -> None:
        self._control = control
        used = {character for text in _strings(given) for character in text if ord(character) in PRIVATE}
        self._sign = next((chr(code) for code in PRIVATE if chr(code) not in used), None)
        self._texts: list[str] = []

    def hide(self, value: Json) -> Json:
        if isinstance(value, str):
            return self._control.sub(self._placeholder, value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(each) for each in value]
        return value

    def _placeholder(self, found: re.Match[str]) -> str:
        if self._sign is None:
            raise Refused(
                "the messages use every private-use character and control tokens; remove one of the two", param="messages"
            )
        if found.group() not in self._texts:
            self._texts.append(found.group())
        return f"{self._sign}{self._texts.index(found.group())}{self._sign}"

    def show(self, text: str) -> str:
        if not self._texts:
            return text
        return re.sub(f"{self._sign}(\\d+){self._sign}", lambda found: self._texts[int(found.group(1))], text)


def _shared_length(a: str, b: str) -> int:
    """Length of the longest common beginning; halves the rest each time, so that long texts are compared in C."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def longest_of(texts: Iterable[str]) -> str:
    """A pattern for the longest of `texts` at a place. Shared beginnings stand in it once, so that a thousand texts cost little."""
    rests: dict[str, list[str]] = {}
    whole = False
    for text in texts:
        whole = whole or not text
        if text:
            rests.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(first) + longest_of(rest) for first, rest in rests.items()]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if whole else "") if whole or len(branches) > 1 else branches[0]


def _strings(value: Json) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for each in pair for text in _strings(each)]
    if isinstance(value, list | tuple):
        return [text for each in value for text in _strings(each)]
    return []


def _merge_leading_systems(messages: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Leading system messages become one, a blank line between them; later ones stay where they are."""
    count = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return messages
    merged = {**messages[0], "content": "\n\n".join(message["content"] for message in messages[:count])}
    return [merged, *messages[count:]]


def _readable_call(call: Mapping[str, Json]) -> dict[str, Json]:
    """A tool call whose arguments are an object if they are JSON of one; templates walk over objects and print strings."""
    made = dict(call)
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        function["arguments"] = parsed if isinstance(parsed, dict) else arguments
    made["function"] = function
    return made


def _tojson(value: Json, indent: int | None = None, **_: Json) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise Refused(f"the chat template refuses these messages: {message}", param="messages")
