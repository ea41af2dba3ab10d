"""How `fake` behaves: speeds, what an event carries, what the usage says, caching, faults; presets by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from homestretch.lab.errors import WrongUse
from homestretch.lab.types import Record


class FakeReply(Record, frozen=True, kw_only=True):
    """Said to a request whose messages, joined by newlines, contain `match`; "" fits every request."""

    match: str = ""
    text: str
    reasoning: str = ""
    finish_reason: str = "stop"


class Behaviour(Record, frozen=True, kw_only=True):
    """Speeds are those of one stream. rates and drafts, when given, are taken in turn by requests of more than 64 tokens.

    tokens_per_event: sizes drawn from, evenly, by a generator seeded with the request's number. thinks: reasoning tokens before the
    answer when thinking is on, or always with obeys_thinking=False. ends_after: the model's own end, unless ignore_eos is honoured.
    cache: keeps prompts and skips what it knows; "silent" does not report it. fault: for the first `faults` requests of more than
    64 tokens, after fault_after tokens where it is one in mid-stream. refuses: request fields and roles answered with 400.
    """

    decode_tokens_per_s: float = 100.0
    prefill_tokens_per_s: float = 5000.0
    rates: tuple[float, ...] = ()
    tokens_per_event: tuple[int, ...] = (1,)
    role: Literal["early", "first", "none"] = "first"
    usage: Literal["own chunk", "finish event", "every event", "never"] = "own chunk"
    textless_end: bool = False
    token_ids: bool = False
    tokenize: bool = True
    comments: bool = False
    thinks: int = 0
    obeys_thinking: bool = True
    ends_after: int | None = None
    ignore_eos: bool = True
    cache: Literal["none", "reported", "silent"] = "none"
    drafts: tuple[tuple[int, int], ...] = ()
    draft_extras: Literal["", "speculative", "timings"] = ""
    fault: Literal["", "429", "503", "drop", "stall", "refuse"] = ""
    faults: int = 0
    fault_after: int = 8
    stall_s: float = 30.0
    slots: int = 8
    window: int = 262_144
    refuses: tuple[str, ...] = ()


# The behaviours of docs/speed.md; each is served under the model name `fake-NAME`, the first as `fake` too.
PRESETS: dict[str, Behaviour] = {
    "single": Behaviour(),
    "drafts": Behaviour(decode_tokens_per_s=140.0, tokens_per_event=(1, 2, 3, 4, 5), usage="every event"),
    "drafts-ids": Behaviour(decode_tokens_per_s=140.0, tokens_per_event=(1, 2, 3, 4, 5), token_ids=True),
    "drafts-plain": Behaviour(decode_tokens_per_s=140.0, tokens_per_event=(1, 2, 3, 4, 5)),
    "drafts-blind": Behaviour(decode_tokens_per_s=140.0, tokens_per_event=(1, 2, 3, 4, 5), tokenize=False),
    "early-role": Behaviour(role="early"),
    "reasoning": Behaviour(thinks=16),
    "finish-usage": Behaviour(usage="finish event"),
    "every-usage": Behaviour(usage="every event"),
    "no-usage": Behaviour(usage="never"),
    "textless-end": Behaviour(textless_end=True),
    "comments": Behaviour(comments=True, role="early"),
    "fast": Behaviour(decode_tokens_per_s=2000.0, prefill_tokens_per_s=200_000.0),
    "streams": Behaviour(decode_tokens_per_s=250.0),
    "cached": Behaviour(cache="reported"),
    "cached-silent": Behaviour(cache="silent"),
    "short": Behaviour(ends_after=40, ignore_eos=False),
    "leaks": Behaviour(thinks=16, obeys_thinking=False),
}


def variant(base: Behaviour, **changes: object) -> Behaviour:
    """A behaviour with some fields changed; an unknown field or value is refused by msgspec's message."""
    return msgspec.convert({**msgspec.to_builtins(base), **changes}, Behaviour)


def changed(preset: str, changes: Sequence[str]) -> Behaviour:
    """A preset with `FIELD=JSON` changes; WrongUse names what is not known."""
    if preset not in PRESETS:
        raise WrongUse(f"no behaviour is called {preset!r}; there are: {', '.join(PRESETS)}")
    fields: dict[str, object] = {}
    for text in changes:
        name, sign, value = text.partition("=")
        try:
            fields[name] = msgspec.json.decode(value.encode()) if sign else None
        except msgspec.DecodeError:
            fields[name] = value
    try:
        return variant(PRESETS[preset], **fields)
    except msgspec.ValidationError as error:
        names = ", ".join(Behaviour.__struct_fields__)
        raise WrongUse(f"--set: {error}; fields are: {names}") from None
