"""From the core's events to JSON: choices, chunks of a stream, usage, and the extras of the last event."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from homestretch.engine.chat import Delta, Reply
from homestretch.engine.server.requests import Job
from homestretch.engine.server.schema import ChatRequest
from homestretch.engine.tokenizer import Tokenizer
from homestretch.engine.types import Event, RowOut, Summary

Json = dict[str, Any]


class Choice:
    """One reply while it grows."""

    def __init__(self, job: Job, index: int, tokenizer: Tokenizer) -> None:
        self.index = index
        self._job, self._tokenizer = job, tokenizer
        self._reply = Reply(tokenizer, stops=job.stops, thinking=job.thinking, tools=job.tools)
        self._calls = 0
        self._said = ""
        self.tokens = 0
        self.begun = False
        self.summary: Summary | None = None

    @property
    def chat(self) -> bool:
        return isinstance(self._job.body, ChatRequest)

    @property
    def reasoning_tokens(self) -> int:
        return self._reply.reasoning_tokens

    @property
    def finish_reason(self) -> str | None:
        if self.summary is None:
            return None
        return "tool_calls" if self._reply.called and self.summary.finish == "stop" else self.summary.finish

    def take(self, event: Event) -> tuple[Delta, Json | None]:
        """What the event adds: text, and log probabilities if they were asked for."""
        self.tokens += len(event.tokens)
        self.summary = event.summary
        delta = self._reply.push(event.tokens)
        if event.summary is not None:
            last = self._reply.finish()
            delta = Delta(
                content=delta.content + last.content, reasoning=delta.reasoning + last.reasoning, calls=delta.calls + last.calls
            )
        return delta, self._logprobs(event) if self._job.logprobs else None

    def message(self, delta: Delta) -> Json:
        """A delta as the chat API writes it."""
        made: Json = {}
        if not self.begun:
            made["role"] = "assistant"
            self.begun = True
        if delta.content or not delta.reasoning:
            made["content"] = delta.content
        if delta.reasoning:
            made["reasoning_content"] = delta.reasoning
        if delta.calls:
            made["tool_calls"] = [
                {
                    "index": self._calls + place,
                    "id": f"call_{self._job.id.rpartition('-')[2]}_{self.index}_{self._calls + place}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for place, call in enumerate(delta.calls)
            ]
            self._calls += len(delta.calls)
            if not delta.content:
                made.pop("content", None)
        return made

    def _logprobs(self, event: Event) -> Json:
        ends = self._job.ends
        rows = [row for row in event.rows if row.token not in ends]
        if self.chat:
            wanted = getattr(self._job.body, "top_logprobs", None) or 0
            return {"content": [{**self._entry(row.token, row.logprob), "top_logprobs": self._top(row, wanted)} for row in rows]}
        texts = [self._text(row.token) for row in rows]
        offsets = []
        for text in texts:
            offsets.append(len(self._said))
            self._said += text
        wanted = getattr(self._job.body, "logprobs", None) or 0
        return {
            "tokens": texts,
            "token_logprobs": [row.logprob for row in rows],
            "top_logprobs": [{self._text(token): value for token, value in row.top[:wanted]} for row in rows],
            "text_offset": offsets,
        }

    def _top(self, row: RowOut, wanted: int) -> list[Json]:
        return [self._entry(token, value) for token, value in row.top[:wanted]]

    def _entry(self, token: int, value: float) -> Json:
        raw = self._tokenizer.bytes_of(token)
        return {"token": self._text(token), "logprob": max(value, -9999.0), "bytes": list(raw)}

    def _text(self, token: int) -> str:
        return self._tokenizer.bytes_of(token).decode("utf-8", "replace")


class Replies:
    """All choices of a job, and the JSON around them."""

    def __init__(self, job: Job, tokenizer: Tokenizer, model: str) -> None:
        self.job, self._model, self._created = job, model, int(time.time())
        self.choices = tuple(Choice(job, index, tokenizer) for index in range(job.choices))
        self._chat = isinstance(job.body, ChatRequest)

    @property
    def done(self) -> bool:
        return all(choice.summary is not None for choice in self.choices)

    # A plain reply.

    def whole(self, events: Sequence[tuple[int, Event]]) -> Json:
        """The JSON of a reply that was not streamed."""
        deltas: list[list[Delta]] = [[] for _ in self.choices]
        logprobs: list[list[Json]] = [[] for _ in self.choices]
        for index, event in events:
            delta, said = self.choices[index].take(event)
            deltas[index].append(delta)
            if said is not None:
                logprobs[index].append(said)
        choices = []
        for choice, parts, rows in zip(self.choices, deltas, logprobs, strict=True):
            all_of_it = Delta(
                content="".join(part.content for part in parts),
                reasoning="".join(part.reasoning for part in parts),
                calls=tuple(call for part in parts for call in part.calls),
            )
            made: Json = {"index": choice.index, "finish_reason": choice.finish_reason, "logprobs": _joined(rows)}
            if self._chat:
                message = choice.message(all_of_it)
                for call in message.get("tool_calls", ()):
                    del call["index"]
                made["message"] = {"role": "assistant", "content": message.pop("content", None), **message}
            else:
                made["text"] = all_of_it.content
            choices.append(made)
        return {**self._head("chat.completion", "text_completion"), "choices": choices, "usage": self.usage(), **self.extras()}

    # A stream.

    def chunks(self, index: int, event: Event) -> list[Json]:
        """The chunks that an event becomes: the role first, text, the end; after the last choice's end the usage."""
        choice = self.choices[index]
        fresh = self._chat and not choice.begun
        delta, logprobs = choice.take(event)
        made = []
        if fresh:
            made.append(self._chunk({"index": index, "delta": choice.message(Delta()), "logprobs": None, "finish_reason": None}))
        if not delta.empty or (logprobs is not None and event.rows):
            body: Json = {"index": index, "logprobs": logprobs, "finish_reason": None}
            body |= {"delta": choice.message(delta)} if self._chat else {"text": delta.content}
            made.append(self._chunk(body))
        elif self.job.usage_so_far and event.summary is None and not fresh:
            body = {"index": index, "logprobs": None, "finish_reason": None}
            made.append(self._chunk(body | self._nothing()))
        if event.summary is not None:
            body = {"index": index, "logprobs": None, "finish_reason": choice.finish_reason}
            body |= self._nothing()
            if len(self.choices) > 1:
                body["token_sha"] = event.summary.token_sha
            made.append(self._chunk(body))
            if self.done:
                if self.job.include_usage:
                    made.append({**self._head(), "choices": [], "usage": self.usage()})
                made[-1] |= self.extras()
        return made

    def _chunk(self, choice: Json) -> Json:
        made = {**self._head(), "choices": [choice]}
        if self.job.usage_so_far:
            made["usage"] = self.usage()
        elif self.job.include_usage:
            made["usage"] = None
        return made

    def _nothing(self) -> Json:
        return {"delta": {}} if self._chat else {"text": ""}

    def _head(self, chat: str = "chat.completion.chunk", text: str = "text_completion") -> Json:
        return {"id": self.job.id, "object": chat if self._chat else text, "created": self._created, "model": self._model}

    # The numbers.

    def usage(self) -> Json:
        """Tokens so far; a prompt counts once however many replies it got."""
        summaries = [choice.summary for choice in self.choices if choice.summary is not None]
        prompt = sum(len(ids) for ids in self.job.prompts)
        reply = sum(choice.tokens for choice in self.choices)
        cached = max((summary.cached_tokens for summary in summaries), default=0)
        if len(self.job.prompts) > 1:
            cached = sum(summary.cached_tokens for summary in summaries[:: self.job.body.n or 1])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": reply,
            "total_tokens": prompt + reply,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in self.choices)},
        }

    def extras(self) -> Json:
        """timings, speculative and token_sha (docs/api.md); several choices are added up, the longest times count."""
        summaries = [choice.summary for choice in self.choices if choice.summary is not None]
        if not summaries:
            return {}
        decode_s = max(summary.decode_s for summary in summaries)
        after_first = sum(max(0, summary.completion_tokens - 1) for summary in summaries)
        names = ("rounds", "drafted", "accepted", "accepted_copies", "accepted_mtp")
        made: Json = {
            "timings": {
                "prompt_s": max(summary.prompt_s for summary in summaries),
                "decode_s": decode_s,
                "tokens_per_s": after_first / decode_s if decode_s > 0 else 0.0,
                "cached_tokens": self.usage()["prompt_tokens_details"]["cached_tokens"],
            },
            "speculative": {name: sum(getattr(summary.drafts, name) for summary in summaries) for name in names},
        }
        if len(summaries) == 1:
            made["token_sha"] = summaries[0].token_sha
        return made


def _joined(parts: Sequence[Json]) -> Json | None:
    """Log probabilities of several events as one."""
    if not parts:
        return None
    made: Json = {key: [] for key in parts[0]}
    for part in parts:
        for key, values in part.items():
            made[key].extend(values)
    return made
