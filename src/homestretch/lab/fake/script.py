"""What one request of `fake` will send and when: the schedule of a reply, event by event, with the tokens each carries."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from homestretch.lab.fake.behaviour import Behaviour, FakeReply
from homestretch.lab.fake.words import asked_text, babble, tokens


@dataclass(kw_only=True)
class Planned:
    """One event: seconds after the prompt began to be read, its kind, tokens it stands for, its bytes."""

    at: float
    kind: str
    tokens: int
    data: bytes


@dataclass(kw_only=True)
class Script:
    events: list[Planned]
    text: str
    reasoning: str
    finish_reason: str
    completion_tokens: int
    usage: dict[str, Any]
    extras: dict[str, Any] = field(default_factory=dict)


def thinking_on(body: dict[str, Any]) -> bool:
    switch = (body.get("chat_template_kwargs") or {}).get("enable_thinking", body.get("enable_thinking"))
    return bool(switch) if switch is not None else False


def write(
    behaviour: Behaviour, body: dict[str, Any], number: int, prompt: int, cached: int, answers: tuple[FakeReply, ...]
) -> Script:
    """The schedule for request `number` of a behaviour: prompt and cached tokens decide when the first token comes."""
    limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 256)
    said = next((answer for answer in answers if answer.match in asked_text(body)), None)
    reasoning, content, finish = _words(behaviour, body, number, limit, said)
    long = limit > 64
    turn = max(0, number - 1)
    rate = behaviour.rates[turn % len(behaviour.rates)] if behaviour.rates and long else behaviour.decode_tokens_per_s
    first_at = (prompt - cached) / behaviour.prefill_tokens_per_s
    chat = "messages" in body
    pieces = [("reasoning", word) for word in reasoning] + [("content" if chat else "text", word) for word in content]
    total = len(pieces)
    textless = behaviour.textless_end and finish == "stop"
    completion = total + (1 if textless else 0)
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if behaviour.cache == "reported":
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    extras = _extras(behaviour, turn, long)
    events = _events(behaviour, body, pieces, rate, first_at, number)
    options = body.get("stream_options") or {}
    every = behaviour.usage == "every event" and bool(options.get("continuous_usage_stats"))
    wants_ids = behaviour.token_ids and bool(body.get("return_token_ids"))
    count, planned = 0, []
    identity = {
        "id": f"fake-{number}",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "model": body.get("model", "fake"),
    }
    for at, kind, words in events:
        count += len(words)
        if kind == "comment":
            planned.append(Planned(at=at, kind=kind, tokens=0, data=b": keep-alive\n\n"))
            continue
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        if chat:
            name = "reasoning_content" if kind == "reasoning" else "content"
            choice["delta"] = {"role": "assistant", "content": ""} if kind == "role" else {name: "".join(words)}
        else:
            choice["text"] = "".join(words)
        if wants_ids and kind != "role":
            choice["token_ids"] = [1000 + i for i in range(len(words))]
        chunk: dict[str, Any] = {**identity, "choices": [choice]}
        if every:
            chunk["usage"] = {**usage, "completion_tokens": count, "total_tokens": prompt + count}
        planned.append(Planned(at=at, kind=kind, tokens=len(words), data=_line(chunk)))
    last_at = (planned[-1].at if planned else first_at) + (1.0 / rate if textless else 0.0)
    ending: dict[str, Any] = {"index": 0, "finish_reason": finish, **({"delta": {}} if chat else {"text": ""})}
    if wants_ids:
        ending["token_ids"] = [2] if textless else []
    final: dict[str, Any] = {**identity, "choices": [ending]}
    asked = bool(options.get("include_usage"))
    if behaviour.usage == "finish event" or every:
        final |= {"usage": usage, **extras}
    planned.append(Planned(at=last_at, kind="finish", tokens=1 if textless else 0, data=_line(final)))
    if behaviour.usage in ("own chunk", "every event") and asked:
        planned.append(
            Planned(at=last_at, kind="usage", tokens=0, data=_line({**identity, "choices": [], "usage": usage, **extras}))
        )
    elif extras and behaviour.usage not in ("finish event",) and not every:
        planned.append(Planned(at=last_at, kind="other", tokens=0, data=_line({**identity, "choices": [], **extras})))
    planned.append(Planned(at=last_at, kind="done", tokens=0, data=b"data: [DONE]\n\n"))
    return Script(
        events=planned,
        text="".join(content),
        reasoning="".join(reasoning),
        finish_reason=finish,
        completion_tokens=completion,
        usage=usage,
        extras=extras,
    )


def _words(
    behaviour: Behaviour, body: dict[str, Any], number: int, limit: int, said: FakeReply | None
) -> tuple[list[str], list[str], str]:
    """(reasoning tokens, content tokens, finish reason) under the limit."""
    if said is not None:
        reasoning, content, finish = tokens(said.reasoning), tokens(said.text), said.finish_reason
        if len(reasoning) + len(content) > limit:
            return reasoning[:limit], content[: max(0, limit - len(reasoning))], "length"
        return reasoning, content, finish
    thinks = behaviour.thinks if thinking_on(body) or not behaviour.obeys_thinking else 0
    thinks = min(thinks, max(0, limit - 1))
    length, finish = limit - thinks, "length"
    stays = behaviour.ignore_eos and bool(body.get("ignore_eos"))
    if behaviour.ends_after is not None and behaviour.ends_after < limit and not stays:
        length, finish = max(1, behaviour.ends_after - thinks), "stop"
    elif behaviour.textless_end and not stays:
        length, finish = max(1, length - 1), "stop"
    return babble(thinks, number), babble(length, number + 7919), finish


def _events(
    behaviour: Behaviour, body: dict[str, Any], pieces: list[tuple[str, str]], rate: float, first_at: float, number: int
) -> list[tuple[float, str, list[str]]]:
    """(time, kind, words). The k-th token exists at first_at + (k - k1)/rate; an event leaves when its last token exists."""
    source = random.Random(number)
    events: list[tuple[float, str, list[str]]] = []
    if "messages" in body and behaviour.role != "none":
        events.append((0.0 if behaviour.role == "early" else first_at, "role", []))
    if behaviour.comments:
        events += [(first_at * share, "comment", []) for share in (0.25, 0.5, 0.75)]
    done, k1 = 0, 0
    while done < len(pieces):
        kind = pieces[done][0]
        size = source.choice(behaviour.tokens_per_event)
        words = [word for other, word in pieces[done : done + size] if other == kind]
        done += len(words)
        k1 = k1 or len(words)
        events.append((first_at + (done - k1) / rate, kind, words))
    return events


def _extras(behaviour: Behaviour, turn: int, long: bool) -> dict[str, Any]:
    if not behaviour.draft_extras or not behaviour.drafts or not long:
        return {}
    accepted, drafted = behaviour.drafts[turn % len(behaviour.drafts)]
    if behaviour.draft_extras == "timings":
        return {"timings": {"draft_n": drafted, "draft_n_accepted": accepted}}
    return {"speculative": {"rounds": max(1, drafted - accepted), "drafted": drafted, "accepted": accepted}}


def _line(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
