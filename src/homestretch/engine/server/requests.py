"""From a parsed body to what the core runs: prompts as ids, sampling with its defaults resolved, what the reply is read by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from homestretch.engine.chat import JsonGrammar, JsonVocabulary, StopWatch, Template, text_stream
from homestretch.engine.chat import Prompt as Rendered
from homestretch.engine.chat.template import THINK_CLOSE
from homestretch.engine.config import ServerOptions
from homestretch.engine.draws import choice_seed, prompt_seed
from homestretch.engine.errors import ContextOverflow, NotFound, Refused
from homestretch.engine.server.schema import ChatRequest, CompletionRequest, Message, Sampled
from homestretch.engine.tokenizer import Tokenizer
from homestretch.engine.types import Event, Request, Sampling

Json = Any
"""A value as JSON has it."""


MOST_CHOICES = 128
"""Replies that one request may ask for, over all its prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request as the server keeps it while it runs: one or more prompts, `n` replies to each."""

    id: str
    prompts: tuple[tuple[int, ...], ...]
    body: Sampled
    stops: tuple[str, ...]
    ends: frozenset[int]
    sampling: Sampling
    logprobs: int
    marks: tuple[int, ...] = ()
    thinking: bool | None = None
    tools: tuple[Json, ...] = field(default=())

    @property
    def choices(self) -> int:
        return len(self.prompts) * (self.body.n or 1)

    @property
    def tagged(self) -> bool:
        """Whether the reply's text may hold reasoning or calls in tags."""
        return self.thinking is not None or bool(self.tools)

    @property
    def include_usage(self) -> bool:
        return bool(self.body.stream_options and self.body.stream_options.include_usage)

    @property
    def usage_so_far(self) -> bool:
        return bool(self.body.stream_options and self.body.stream_options.continuous_usage_stats)

    @property
    def max_tokens(self) -> int | None:
        body = self.body
        return (body.max_completion_tokens if isinstance(body, ChatRequest) else None) or body.max_tokens


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Understands requests for one model. Everything here is immutable and may be used from any thread."""

    options: ServerOptions
    tokenizer: Tokenizer
    template: Template | None
    ends: frozenset[int]
    vocab: int

    def render(
        self,
        messages: Sequence[Message],
        raw: Sequence[Mapping[str, Json]],
        tools: Sequence[Json],
        options: Mapping[str, Json] | None,
        *,
        reply: bool = False,
    ) -> Rendered:
        """A conversation as the model reads it. reply: refuse early what is certainly too long for one."""
        if self.template is None:
            raise Refused("this model has no chat template; use /v1/completions", param="messages")
        for place, message in enumerate(messages):
            for part in message.content if isinstance(message.content, list) else ():
                if part.type not in ("text", "input_text", "output_text") or part.text is None:
                    what = f"a part of type {part.type!r}" + (" without text" if part.text is None and "text" in part.type else "")
                    raise Refused(
                        f"messages[{place}] holds {what}; this model reads text alone",
                        param=f"messages[{place}].content",
                    )
        if tools and not self.template.takes_tools:
            raise Refused("this model's chat template has no place for tools; leave `tools` out", param="tools")
        kwargs = dict(options or {})
        if self.options.defaults.thinking is not None:
            kwargs.setdefault("enable_thinking", self.options.defaults.thinking)
        if reply:
            return self.template.prompt(raw, tools=tools, options=kwargs, check=self._may_fit)
        return self.template.prompt(raw, tools=tools, options=kwargs)

    def chat(self, id: str, body: ChatRequest, raw: Mapping[str, Json]) -> Job:
        """A chat request, or Refused."""
        for name in ("functions", "function_call", "audio"):
            if getattr(body, name) is not None:
                raise Refused(f"{name} cannot be honoured by this server; use `tools` or leave it out", param=name)
        if body.modalities is not None and body.modalities != ["text"]:
            raise Refused(f"modalities {body.modalities} cannot be honoured; this server writes text", param="modalities")
        if body.tool_choice not in (None, "auto", "none"):
            raise Refused(f"tool_choice {body.tool_choice!r} cannot be enforced; allowed: 'auto', 'none'", param="tool_choice")
        if body.top_logprobs and not body.logprobs:
            raise Refused("top_logprobs needs logprobs to be true", param="top_logprobs")
        tools = raw.get("tools") or [] if body.tool_choice != "none" else []
        kwargs = dict(body.chat_template_kwargs or {})
        if body.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", body.reasoning_effort)
            if body.reasoning_effort == "none":
                kwargs.setdefault("enable_thinking", False)
        prompt = self.render(body.messages, raw["messages"], tools, kwargs, reply=True)
        thinks = self.template is not None and self.template.thinks
        return self._job(
            id,
            (prompt.ids,),
            body,
            logprobs=max(1, body.top_logprobs or 0) if body.logprobs else 0,
            marks=prompt.marks,
            thinking=prompt.thinking if thinks else None,
            tools=tuple(tools),
        )

    def completion(self, id: str, body: CompletionRequest) -> Job:
        """A completion request, or Refused."""
        if body.echo:
            raise Refused("echo cannot be honoured; put the prompt before the reply yourself", param="echo")
        if body.suffix:
            raise Refused("suffix cannot be honoured: this server writes only what follows a prompt", param="suffix")
        if (body.best_of or 1) > (body.n or 1):
            raise Refused(f"best_of {body.best_of} cannot be honoured; ask for n replies and choose", param="best_of")
        prompts = self._prompts(body.prompt)
        return self._job(id, prompts, body, logprobs=max(1, body.logprobs) if body.logprobs is not None else 0)

    def encode(self, text: str, *, around: bool = True) -> tuple[int, ...]:
        """Ids of a plain prompt; control tokens written in it are meant. around: with the ids that the files put around a text."""
        ids = self.tokenizer.encode(text, special=True)
        return (*self.tokenizer.begin, *ids, *self.tokenizer.end) if around else ids

    def _prompts(self, prompt: Any) -> tuple[tuple[int, ...], ...]:
        for text in (prompt,) if isinstance(prompt, str) else prompt:
            if isinstance(text, str):
                self._may_fit(text)
        if isinstance(prompt, str):
            return (self.encode(prompt),)
        if not prompt:
            raise Refused("the prompt is empty; at least one token is needed", param="prompt")
        kinds = {type(each) for each in prompt}
        if len(kinds) > 1:
            raise Refused("the prompt mixes texts, ids and lists of ids; send one kind", param="prompt")
        if str in kinds:
            return tuple(self.encode(text) for text in prompt)
        lists: Sequence[Sequence[int]] = prompt if list in kinds else [prompt]
        for ids in lists:
            for token in ids:
                if token >= self.vocab:
                    raise Refused(f"token id {token} is outside the vocabulary; allowed: 0 to {self.vocab - 1}", param="prompt")
        return tuple(tuple(ids) for ids in lists)

    def _job(self, id: str, prompts: tuple[tuple[int, ...], ...], body: Sampled, **more: Any) -> Job:
        if body.model not in (None, "", self.options.name):
            raise NotFound(
                f"there is no model {body.model!r} here; this server has {self.options.name!r}",
                param="model",
                code="model_not_found",
            )
        if body.repetition_penalty not in (None, 1.0):
            raise Refused(
                "repetition_penalty cannot be honoured; use presence_penalty or frequency_penalty", param="repetition_penalty"
            )
        stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        ends = frozenset() if body.ignore_eos else self.ends
        job = Job(
            id=id,
            prompts=prompts,
            body=body,
            stops=stops,
            ends=ends | frozenset(body.stop_token_ids or ()),
            sampling=self._sampling(body),
            **more,
        )
        self._check_format(job)
        if job.choices > MOST_CHOICES:
            raise Refused(
                f"{len(prompts)} prompts with n = {body.n or 1} are {job.choices} replies; at most {MOST_CHOICES} a request",
                param="n",
            )
        for prompt in prompts:
            self._room(len(prompt), job.max_tokens)
        return job

    def _check_format(self, job: Job) -> None:
        """Refuse a response_format that cannot be promised."""
        wanted = job.body.response_format
        if wanted is None or wanted.type == "text":
            return

        def refused(why: str) -> Refused:
            return Refused(f"response_format {wanted.type!r} cannot be honoured{why}", param="response_format")

        if wanted.type != "json_object":
            raise refused("; allowed: 'text', 'json_object'")
        if job.tools:
            raise refused(" together with tools; send one of the two, or tool_choice 'none'")
        if not job.ends:
            raise refused(" without end tokens; leave ignore_eos out")
        if job.thinking and self._closes is None:
            raise refused(" after reasoning with this model; switch thinking off")

    @property
    def _closes(self) -> int | None:
        """The token that ends the reasoning, if it is one token."""
        ids = self.tokenizer.encode(THINK_CLOSE, special=True)
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def _words(self) -> JsonVocabulary:
        return JsonVocabulary(self.tokenizer, self.vocab)

    def _grammar(self, job: Job) -> JsonGrammar | None:
        if job.body.response_format is None or job.body.response_format.type == "text":
            return None
        return JsonGrammar(self._words, ends=job.ends, opens=self._closes if job.thinking else None)

    def _may_fit(self, text: str) -> None:
        """ContextOverflow for a text that has too many tokens however it is read, before a minute is spent on reading it."""
        window, fewest = self.options.window, self.tokenizer.fewest(text)
        if fewest >= window:
            raise ContextOverflow(
                f"the prompt has at least {fewest} tokens and the window holds {window}, one of them at least for the reply; "
                f"shorten the prompt, or start the server with a larger --context"
            )

    def _room(self, length: int, wanted: int | None) -> int:
        """Reply tokens that a prompt of `length` may get; ContextOverflow when what is wanted does not fit."""
        window = self.options.window
        if length == 0:
            raise Refused("the prompt has no tokens; at least one is needed", param="prompt")
        if length >= window:
            raise ContextOverflow(
                f"the prompt has {length} tokens and the window holds {window}, one of them at least for the reply; "
                f"shorten the prompt by {length - window + 1} tokens or more, or start the server with a larger --context"
            )
        if wanted is None:
            most = self.options.defaults.max_tokens
            return min(most, window - length) if most else window - length
        if length + wanted > window:
            raise ContextOverflow(
                f"the window holds {window} tokens; the prompt has {length} and the reply may have {wanted}, "
                f"{length + wanted} in all; "
                f"ask for at most {window - length} reply tokens"
            )
        return wanted

    def _sampling(self, body: Sampled) -> Sampling:
        defaults = self.options.defaults
        return Sampling(
            temperature=defaults.temperature if body.temperature is None else body.temperature,
            top_k=max(0, defaults.top_k if body.top_k is None else body.top_k),
            top_p=defaults.top_p if body.top_p is None else body.top_p,
            min_p=defaults.min_p if body.min_p is None else body.min_p,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            bias=self._bias(body.logit_bias or {}),
        )

    def _bias(self, wanted: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        made = {}
        for name, value in wanted.items():
            if not (name.isascii() and name.isdigit() and len(name) < 12 and int(name) < self.vocab):
                raise Refused(f"logit_bias names token {name[:40]!r}; allowed: ids from 0 to {self.vocab - 1}", param="logit_bias")
            made[int(name)] = float(value)
        return tuple(sorted(made.items()))

    def requests(self, job: Job, emit: Callable[[int, Event], None]) -> tuple[Request, ...]:
        """What the core runs for a job, one request a choice; emit gets the choice's number and each event."""
        body, made = job.body, []
        seed = self.options.defaults.seed if body.seed is None else body.seed
        for index in range(job.choices):
            prompt = job.prompts[index // (body.n or 1)]
            choice = index % (body.n or 1)
            own = seed if seed is None and choice == 0 else choice_seed(prompt_seed(prompt) if seed is None else seed, choice)
            made.append(
                Request(
                    id=f"{job.id}/{index}",
                    prompt=prompt,
                    max_tokens=self._room(len(prompt), job.max_tokens),
                    sampling=job.sampling,
                    seed=own,
                    ends=job.ends,
                    emit=partial(emit, index),
                    watch=StopWatch(text_stream(self.tokenizer, tags=job.tagged), job.stops) if job.stops else None,
                    grammar=self._grammar(job),
                    logprobs=job.logprobs,
                    draft=body.draft is not False,
                    cache=body.cache is not False and body.cache_prompt is not False,
                    marks=job.marks,
                    priority=body.priority or 0,
                )
            )
        return tuple(made)
