"""Asks the server, before the contract, what it honours: token counts in events, ignore_eos, caching, the template's length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from homestretch.lab import rates
from homestretch.lab.context import Context, Step
from homestretch.lab.errors import LabError, ServerFailed
from homestretch.lab.exchange import Ask, Body, Outcome
from homestretch.lab.types import Sourced

SOURCE = "probe (requests-probe.jsonl)"
COUNTS: tuple[tuple[str, Any], ...] = (
    ("stream_options.continuous_usage_stats", True),
    ("return_token_ids", True),
    ("timings_per_token", True),
)
SWITCH = "chat_template_kwargs.enable_thinking"
EARLY_TASKS = ("Answer with the one word yes.", "What is two plus two? Answer with the number alone.", "Say hello.")
EARLY_LIMIT = 64
LONGEST_PREFIX = 64  # tokens of a chat template before the first message
CACHE_DEPTHS = (1024, 4096, 16384)
SHORTEST_TTFT_S = 0.02
ALIKE = 0.75


@dataclass(kw_only=True)
class Probed:
    """What came out. request: fields each request carries from now on; settings: what the contract keeps of it."""

    request: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Sourced] = field(default_factory=dict)
    overhead: int | None = None


class Prober:
    """Runs the probes as steps of the part `probe`, so that they are recorded and resumed like any other."""

    def __init__(self, context: Context, window: int | None) -> None:
        self.context, self.window = context, window
        self.found = Probed()
        self.cached: list[int] = []  # as reported, by every probe so far; each had a fresh nonce
        self.on_overhead: Callable[[int], None] = lambda tokens: None

    def run(self, say: Callable[[str], None]) -> Probed:
        say("asking the server what it honours")
        self._plain()
        self._counts()
        self.found.settings["probe.stream_options"] = Sourced(value=dict(self.context.stream_options), source=SOURCE)
        self._thinking()
        self._overhead()
        self._ignore_eos()
        self._cache()
        return self.found

    def _try(self, name: str, body: Callable[[], Body], **detail: Any) -> Outcome:
        """One probe; a refusal is an outcome, not a failure."""
        step = Step(id=name, asks=(Ask(body=body, detail={"probe": name, **detail}),), guarded=False)
        outcome = self.context.attempt_once(step)
        usage = outcome.record.usage
        if usage is not None and usage.cached_tokens is not None:
            self.cached.append(usage.cached_tokens)
        return outcome

    def _body(self, task: str, limit: int, **extra: Any) -> Body:
        body = self.context.body(messages=self.context.chat(task), max_tokens=limit, **self.found.request)
        for path, value in extra.items():
            place_dotted(body, path.replace("__", "."), value)
        return body

    def _plain(self) -> None:
        outcome = self._try("plain", lambda: self._body("Count from one to twenty.", 16))
        if outcome.record.error.startswith("status 4"):
            self.context.system_role = False
            outcome = self._try("plain-without-system", lambda: self._body("Count from one to twenty.", 16))
        if outcome.record.error.startswith("status 4"):
            self.context.system_role, self.context.stream_options = True, {}
            outcome = self._try("plain-without-options", lambda: self._body("Count from one to twenty.", 16))
        if outcome.record.error:
            raise ServerFailed(f"the server answers no request: {outcome.record.error}")
        where = outcome.record.usage_where
        self.found.settings["prompt.system_role"] = Sourced(value=self.context.system_role, source=SOURCE)
        self.found.settings["probe.usage"] = Sourced(value=where or "never", source=SOURCE)

    def _counts(self) -> None:
        """The first of the fields that makes the server tell tokens of events, tried one at a time, is sent from now on."""
        kept = "none"
        for path, value in COUNTS:
            if path.startswith("stream_options") and not self.context.stream_options:
                continue

            def body(path: str = path, value: Any = value) -> Body:
                made = self._body("Count from one to twenty.", 16)
                made.setdefault("stream_options", dict(self.context.stream_options))
                place_dotted(made, path, value)
                return made

            outcome = self._try(f"counts-{path.split('.')[-1]}", body)
            if not outcome.record.error and outcome.record.k1_source in ("usage", "ids", "timings"):
                kept = path
                if path.startswith("stream_options."):
                    self.context.stream_options = {**self.context.stream_options, path.split(".")[1]: value}
                else:
                    self.found.request[path] = value
                break
        self.found.settings["probe.event_counts"] = Sourced(value=kept, source=SOURCE)

    def _thinking(self) -> None:
        """Without a card nothing says how thinking is switched; the usual switch is sent when the server takes it."""
        if "thinking.field" in self.context.contract.settings:
            return
        off = {SWITCH.replace(".", "__"): False}
        outcome = self._try("thinking", lambda: self._body("Count from one to twenty.", 16, **off))
        taken = "" if outcome.record.error else SWITCH
        self.found.settings["thinking.field"] = Sourced(value=taken, source=SOURCE)

    def _overhead(self) -> None:
        """Tokens of the prompt that are neither of our two messages: the chat template's own."""
        context, task = self.context, "Count from one to twenty."
        outcome = self._try("overhead", lambda: self._body(task, 4))
        usage = outcome.record.usage
        if not context.tokens.counts or usage is None or usage.prompt_tokens is None or outcome.record.usage_where == "tokenizer":
            return
        ours = sum(context.tokens.count(message["content"]) or 0 for message in context.chat(task))
        self.found.overhead = usage.prompt_tokens - ours
        self.on_overhead(self.found.overhead)
        self.found.settings["prompt.template_tokens"] = Sourced(value=self.found.overhead, source=SOURCE)

    def _ignore_eos(self) -> None:
        """Where a reply ends early by itself and with ignore_eos does not, the field works; where none ends, nothing is shown."""
        verdict: bool | str = "not shown: no reply ended early"
        for number, task in enumerate(EARLY_TASKS, 1):
            plain = self._try(f"ends-{number}", lambda task=task: self._body(task, EARLY_LIMIT))  # type: ignore[misc]
            if plain.record.error or plain.record.finish_reason == "length":
                continue
            forced = self._try(f"ignores-{number}", lambda task=task: self._body(task, EARLY_LIMIT, ignore_eos=True))  # type: ignore[misc]
            tokens = forced.record.usage.completion_tokens if forced.record.usage else None
            works = not forced.record.error and forced.record.finish_reason == "length" and tokens in (None, EARLY_LIMIT)
            verdict = True if works else "refused or without effect"
            break
        self.found.settings["probe.ignore_eos"] = Sourced(value=verdict, source=SOURCE)

    def _cache(self) -> None:
        """Reported counts settle it; else fresh A, fresh B and B again are timed, and B must not be faster than A."""
        verdict, prefix = "unknown: prompts could not be counted", 0
        if self.cached:
            verdict, prefix = (
                "reported: the server counts cached prompt tokens in each reply",
                min(max(self.cached), LONGEST_PREFIX),
            )
        for depth in CACHE_DEPTHS:
            if self.cached or (self.window is not None and depth + 16 > self.window):
                break
            try:
                made = self.context.exact("Count from one to twenty.", depth)
            except LabError:
                break
            verdict, settled = self._pairs(made.user, depth)
            if settled:
                break
        self.found.settings["cache.check"] = Sourced(value=verdict, source=SOURCE)
        self.found.settings["cache.template_prefix_tokens"] = Sourced(value=prefix, source=SOURCE)

    def _pairs(self, user: str, depth: int) -> tuple[str, bool]:
        """(verdict, settled) at one depth; a pair that does not agree is measured again, three in all."""
        verdict = "unknown: too quick to time"
        for pair in (1, 2, 3):
            first, second, again = self._triple(user, depth, pair)
            failed = next((outcome.record.error for outcome in (first, second, again) if outcome.record.error), "")
            if failed:
                return f"unknown: {failed}", True
            times = [rates.ttft_s(outcome.record) for outcome in (first, second, again)]
            a, b, replay = (time if time is not None else 0.0 for time in times)
            if min(a, b) < SHORTEST_TTFT_S:
                return verdict, False
            if b >= ALIKE * a:
                if replay < ALIKE * b:
                    return "timed: fresh prompts take equal time, a repeated one less: nonces keep the cache out", True
                return "timed: fresh and repeated prompts take equal time: no cache", True
            verdict = f"cached: a second fresh prompt took {b:.3f} s after {a:.3f} s for the first"
        return verdict, True

    def _triple(self, user: str, depth: int, pair: int) -> tuple[Outcome, Outcome, Outcome]:
        fresh = self.context.chat(user)

        def body(messages: list[dict[str, str]]) -> Body:
            return self.context.body(messages=messages, max_tokens=4, **self.found.request)

        outcomes = [
            self._try(f"cache-{depth}-{pair}-{role}", lambda chat=chat: body(chat), role=role, depth=depth)  # type: ignore[misc]
            for role, chat in (("A", self.context.chat(user)), ("B", fresh), ("B-again", fresh))
        ]
        return outcomes[0], outcomes[1], outcomes[2]


def place_dotted(body: Body, path: str, value: Any) -> None:
    from homestretch.lab.context import place

    place(body, path, value)
