"""The JSON that comes in: one struct per route, every field with its limits, and errors that name field, value and limits."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from homestretch.engine.errors import Refused

Json = Any
"""A value as JSON has it."""

Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Count = Annotated[int, Meta(ge=1)]
Id = Annotated[int, Meta(ge=0, le=2**31)]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
ROLES = Literal["system", "developer", "user", "assistant", "tool", "function"]


class StreamOptions(Struct, kw_only=True):
    """`stream_options`: usage in its own last chunk; usage so far on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TextPart(Struct, kw_only=True):
    """A part of a message's content; only text can be read."""

    type: str
    text: str | None = None


class CalledFunction(Struct, kw_only=True):
    """The function of a tool call in the history; arguments as the model wrote them."""

    name: str | None = None
    arguments: Json = None


class PastCall(Struct, kw_only=True):
    """A tool call in the history."""

    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None


class Message(Struct, kw_only=True):
    """One message of a conversation."""

    role: ROLES
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Function(Struct, kw_only=True):
    """A function that a model may call; parameters is a JSON schema."""

    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    """An entry of `tools`."""

    type: Literal["function"]
    function: Function


class ResponseFormat(Struct, kw_only=True):
    """`response_format`: text, or json_object (the reply is one JSON object)."""

    type: str
    json_schema: Json = None


class Sampled(Struct, kw_only=True):
    """Fields that both completion routes share. None is the same as absent."""

    model: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: Probability | None = None
    seed: int | None = None
    n: Annotated[int, Meta(ge=1, le=64)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    stop_token_ids: list[Id] | None = None
    ignore_eos: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    draft: bool | None = None
    cache: bool | None = None
    cache_prompt: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None


class ChatRequest(Sampled, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Json] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Json] | None = None
    reasoning_effort: Effort | None = None
    metadata: dict[str, Json] | None = None
    store: bool | None = None
    functions: Json = None
    function_call: Json = None
    audio: Json = None
    modalities: list[str] | None = None


class CompletionRequest(Sampled, kw_only=True):
    """`POST /v1/completions`: text or token ids, one prompt or several."""

    prompt: str | list[str | Id | list[Id]]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Count | None = None


class TokenizeRequest(Struct, kw_only=True):
    """`POST /tokenize`: a prompt, or messages through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Json] | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[Id]


Body = TypeVar("Body", bound=Struct)


def parse(body: bytes, kind: type[Body]) -> tuple[Body, dict[str, Json], tuple[str, ...]]:
    """The request, the same as plain JSON, and the top-level fields that this server does not know. Refused if it is bad."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(raw, dict):
        raise Refused(f"the body must be a JSON object, not {_kind(raw)}")
    try:
        made = msgspec.convert(raw, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _explained(str(error), raw) from None
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    return made, raw, tuple(sorted(set(raw) - known))


def _explained(text: str, raw: Json) -> Refused:
    """msgspec's message with the field as clients write it and the value that was sent."""
    reason, _, path = text.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if not path:
        missing = re.search(r"required field `(\w+)`", reason)
        return Refused(reason if missing else f"the body is refused: {reason}", param=missing.group(1) if missing else None)
    value = raw
    for step in re.findall(r"\w+|\[\d+\]|\[\.\.\.\]", path):
        try:
            value = value[int(step[1:-1])] if step[1:-1].isdigit() and step[0] == "[" else value[step]
        except (KeyError, IndexError, TypeError):
            return Refused(f"{path}: {reason}", param=path)
    shown = repr(value)
    if reason.startswith("Invalid enum value"):
        allowed = get_args(ALLOWED.get(re.split(r"\W", path)[-1]))
        reason = f"not an allowed value ({', '.join(allowed)})" if allowed else "not an allowed value"
    return Refused(f"{path}: {reason}; got {shown if len(shown) <= 100 else shown[:100] + '…'}", param=path)


ALLOWED = {"role": ROLES, "type": Literal["function"], "reasoning_effort": Effort}
"""What a field of this name may hold, for the error that says so."""


def _kind(value: Json) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
