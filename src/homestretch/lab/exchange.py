"""One request as a part wants it and as it came out: the ask, the outcome, and firing a step's asks at one barrier."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from homestretch.lab.client import Connection, Raw, Target, undisturbed
from homestretch.lab.stream import Reply, as_usage, parse_plain, parse_stream, settle
from homestretch.lab.types import ReplyRecord, RequestRecord

if TYPE_CHECKING:
    from homestretch.lab.context import Context, Step
    from homestretch.lab.tokenizing import TokenCounter

Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request. body: made anew for each attempt, so that its nonce is fresh (`lambda: context.body(...)`), or fixed.

    detail: what the part needs to score it. prompt_tokens: what the lab counted while building the prompt, None if it did not.
    """

    body: Callable[[], Body] | Body
    prompt_id: str = ""
    prompt_tokens: int | None = None
    prompt_tokens_source: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came back: the record and the reply as the raw files hold them."""

    record: RequestRecord
    reply: ReplyRecord
    retry_after_s: float = 0.0

    def discarded(self, reason: str) -> Outcome:
        return Outcome(record=msgspec.structs.replace(self.record, discarded=reason), reply=self.reply)


def fire(context: Context, step: Step, attempt: int) -> list[Outcome]:
    """Send all asks of a step at once, one thread a stream; parse when the last stream has ended."""
    target = step.target or context.target
    bodies = [dict(ask.body() if callable(ask.body) else ask.body) for ask in step.asks]
    for body in bodies:
        body.setdefault("stream", True)
        if body["stream"]:
            body.setdefault("stream_options", dict(context.stream_options))
    mark = context.drafts.mark() if context.drafts and len(bodies) == 1 else None
    began, raws = send_together(target, bodies, [ask.path for ask in step.asks], context.retry.idle_s, context.retry.total_s)
    drafts = context.drafts.since(mark) if context.drafts and mark is not None else None
    outcomes = []
    for number, (ask, body, raw) in enumerate(zip(step.asks, bodies, raws, strict=True)):
        reply = read_reply(raw, streamed=bool(body["stream"]))
        count(reply, context.tokens)
        name = f"{context.part}-{step.id}-a{attempt}" + (f"-{number}" if len(bodies) > 1 else "")
        record = make_record(raw, reply, body, ask, name, began)
        record = msgspec.structs.replace(record, part=context.part, step=step.id, attempt=attempt, of=len(bodies))
        if drafts is not None and "drafts" not in record.extras:
            record = msgspec.structs.replace(record, extras={**record.extras, "drafts": drafts})
        said = ReplyRecord(id=name, text=reply.text, reasoning=reply.reasoning, tool_calls=reply.tool_calls)
        outcomes.append(Outcome(record=record, reply=said, retry_after_s=raw.retry_after_s))
    return outcomes


def send_together(
    target: Target, bodies: list[Body], paths: list[str], idle_s: float, total_s: float
) -> tuple[tuple[float, str], list[Raw]]:
    """Raw exchanges of all bodies, sent at one barrier; (perf_counter, wall clock) of the barrier's fall comes first."""
    from homestretch.lab.records import now

    connections = [Connection(target, idle_s=idle_s, total_s=total_s) for _ in bodies]
    requests = [
        connection.encode("POST", path or ("/chat/completions" if "messages" in body else "/completions"), body)
        for connection, body, path in zip(connections, bodies, paths, strict=True)
    ]
    with undisturbed():
        if len(bodies) == 1:
            began = (time.perf_counter(), now())
            return began, [connections[0].exchange(requests[0])]
        raws: list[Raw] = [Raw() for _ in bodies]
        barrier = threading.Barrier(len(bodies) + 1)

        def run(number: int) -> None:
            barrier.wait()
            raws[number] = connections[number].exchange(requests[number])

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(bodies))]
        for thread in threads:
            thread.start()
        began = (time.perf_counter(), now())
        barrier.wait()
        for thread in threads:
            thread.join()
    return began, raws


def read_reply(raw: Raw, *, streamed: bool) -> Reply:
    """The parsed reply; its `error` says what makes it no reply: a broken connection, a status, a stream without an end."""
    if raw.status != 200:
        return Reply(error=raw.error or "dropped: no answer came")
    is_stream = "text/event-stream" in raw.headers.get("content-type", "")
    reply = parse_stream(raw.pieces) if is_stream else parse_plain(raw.body(), raw.end)
    if raw.error:
        reply.error = raw.error
    elif streamed and is_stream and not reply.error and not reply.done and reply.finish_reason is None:
        reply.error = "dropped: the stream ended without a finish reason and without [DONE]"
    return reply


def count(reply: Reply, tokens: TokenCounter) -> None:
    """Fill in by the tokenizer what the server did not tell: N without usage, k1 of the first event, the textless end token."""
    counting = reply.counting()
    if not counting:
        return
    whole = first = None
    told = reply.k1 is not None
    if tokens.counts and (not told or reply.usage is None or reply.usage.completion_tokens is None):
        whole = tokens.count(reply.reasoning + reply.text) if not reply.tool_calls else None
        first = None if told else tokens.count(counting[0].text)
    if whole is not None and (reply.usage is None or reply.usage.completion_tokens is None):
        prompt = reply.usage.prompt_tokens if reply.usage else None
        reply.usage, reply.usage_where = as_usage(prompt, whole), "tokenizer"
        whole = None
    settle(reply, whole if not reply.reasoning else None, first)


def make_record(raw: Raw, reply: Reply, body: Body, ask: Ask, name: str, began: tuple[float, str]) -> RequestRecord:
    """The line of `requests-PART.jsonl` for one exchange; part and step are put in by the caller."""
    prompt = body.get("messages", body.get("prompt"))
    digest = hashlib.sha256(json.dumps(prompt, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
    by_server = reply.usage.prompt_tokens if reply.usage and reply.usage_where != "tokenizer" else None
    return RequestRecord(
        id=name,
        part="",
        step="",
        at=began[1],
        prompt_id=ask.prompt_id,
        prompt_sha256=digest,
        prompt_tokens=by_server if by_server is not None else ask.prompt_tokens,
        prompt_tokens_source="usage" if by_server is not None else ask.prompt_tokens_source,
        settings={key: value for key, value in body.items() if key not in ("messages", "prompt")},
        offset_s=round(raw.t0 - began[0], 6),
        events=[(round(event.at - raw.t0, 6), event.kind, event.tokens) for event in reply.events],
        end_s=round(raw.end - raw.t0, 6),
        usage=reply.usage,
        usage_where=reply.usage_where,
        k1=reply.k1,
        k1_source=reply.k1_source,
        finish_reason=reply.finish_reason,
        status=raw.status,
        error=reply.error or raw.error,
        extras=with_drafts(reply.extras),
        detail=dict(ask.detail),
    )


def with_drafts(extras: Mapping[str, Any]) -> dict[str, Any]:
    """The server's extras, and where they tell of drafts the same in one form: `drafts: {drafted, accepted, source}`."""
    found = dict(extras)
    own, timings = extras.get("speculative"), extras.get("timings")
    if isinstance(own, dict) and isinstance(own.get("drafted"), int) and isinstance(own.get("accepted"), int):
        found["drafts"] = {"drafted": own["drafted"], "accepted": own["accepted"], "source": "reply: speculative"}
    elif isinstance(timings, dict) and isinstance(timings.get("draft_n"), int) and isinstance(timings.get("draft_n_accepted"), int):
        found["drafts"] = {"drafted": timings["draft_n"], "accepted": timings["draft_n_accepted"], "source": "reply: timings"}
    return found
