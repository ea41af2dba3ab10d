"""Climbs the memory test's ladder: waits for a stable idle value, starts the server, fills the window, watches memory, stops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from homestretch.lab import fitting, memory, prompts, tokenizing
from homestretch.lab.client import try_json
from homestretch.lab.context import Retry, Step
from homestretch.lab.errors import ServerFailed, Undecided
from homestretch.lab.exchange import Ask, Body, Outcome
from homestretch.lab.fitting import Foreign, Try, prompt_size
from homestretch.lab.memory import GIB, MIB, Idle, Watch
from homestretch.lab.progress import Progress
from homestretch.lab.records import now
from homestretch.lab.seen import setting

if TYPE_CHECKING:
    from homestretch.lab.client import Target
    from homestretch.lab.context import Context
    from homestretch.lab.servers import ManagedServer

TASK = "Say in one short sentence what the log above is about."
REPLY_TOKENS = 64
ATTEMPTS = 3
GONE_S = 60.0
STILL_S = 2.0
STILL_BYTES = 32 * MIB
IDLE_S = 120.0
WORTH_NAMING = 32 * MIB
DISTURBED_PCT = 3
LOG_LINES = 40


@dataclass(kw_only=True)
class Ladder:
    """All windows of the contract, smallest first, until one fails. The server of a step is gone before the next begins."""

    context: Context
    server: ManagedServer
    _before: dict[int, float] = field(default_factory=dict)
    _first_idle: int | None = None

    def climb(self) -> None:
        """Every window that is not answered yet. A failed one ends the ladder; Undecided when memory never came to rest."""
        context = self.context
        sizes = [int(size) for size in context.setting("sizes")]
        self.server.stop()
        done = [one for one in fitting.counting(fitting.tries(context.folder.path)).values() if one.outcome == "answered"]
        for size in sizes:
            if any(one.size == size for one in done):
                context.progress.advance("fit", str(size), resumed=True)
                continue
            one = self._size(size, done)
            if one.outcome == "failed":
                context.folder.log(f"part fit: the ladder ends at {size} tokens: {one.reason}")
                context.progress.note(f"fit: {size} tokens failed: {one.reason}; the ladder ends here")
                return
            done.append(one)
            context.progress.advance("fit", str(size))

    def _size(self, size: int, done: list[Try]) -> Try:
        """Tries of one window: repeated while other programs disturb it, the last one counts with its doubt."""
        context = self.context
        first = 1 + max((one.attempt for one in fitting.tries(context.folder.path) if one.size == size), default=0)
        last = first + int(context.setting("attempts")) - 1
        for attempt in range(first, last + 1):
            context.progress.start("fit", str(size), attempt - first + 1)
            one = self._refused(size, attempt, done) or self._try(size, attempt, last=attempt == last)
            fitting.append(context.folder.path, one)
            for note in one.notes:
                context.folder.log(f"part fit, {size} tokens: {note}")
            if not one.discarded:
                return one
            context.progress.note(f"fit {size}: {one.discarded}; again")
        raise Undecided(f"part fit: {size} tokens could not be measured undisturbed")

    def _refused(self, size: int, attempt: int, done: list[Try]) -> Try | None:
        """A failed try without a start, when the windows before say that this one would pass the limit."""
        expected = fitting.expected_rise(done, size)
        limit, left = self._ceiling(), memory.room().left - spared()
        if expected is None or (expected < left and (limit is None or expected < limit)):
            return None
        bound = f"--limit-gib {limit / GIB:.2f}" if limit is not None and limit <= left else f"{left / GIB:.2f} GiB to spare"
        reason = f"not started: by the windows before it needs about {expected / GIB:.2f} GiB, over the limit of {bound}"
        return Try(size=size, attempt=attempt, at=now(), outcome="failed", reason=reason)

    def _ceiling(self) -> int | None:
        limit = self.context.setting("limit_gib")
        return None if limit is None else int(float(limit) * GIB)

    def _try(self, size: int, attempt: int, *, last: bool) -> Try:
        """One start, one prompt, one stop. What fails becomes the reason of a failed try."""
        context, notes = self.context, self._gone()
        idle = memory.wait_idle(
            window_s=STILL_S,
            tolerance=STILL_BYTES,
            patience_s=IDLE_S,
            say=lambda text: context.progress.say(f"fit {size}: {text}"),
        )
        if idle is None:
            raise Undecided(f"part fit: used memory did not come to rest within {IDLE_S:g} s; close other programs, then --resume")
        notes += self._idle_notes(idle)
        watch = Watch(idle=idle, pid=lambda: self.server.pid, ceiling=self._ceiling(), spare=spared())
        made = Try(size=size, attempt=attempt, at=now(), outcome="answered", idle=idle.used, waited_s=round(idle.waited_s, 2))
        began, ready_s, tokens, reason = time.monotonic(), 0.0, 0, ""
        answer = Judgement(disturbed="", wrong="")

        def disturbance() -> str:
            watch.look()
            return "" if last else disturbed(seen(made, watch))

        with context.guard.watch(f"fit/{size}"):
            watch.start()
            try:
                target = self.server.start(size)
                ready_s = time.monotonic() - began
                context.guard.server([self.server.pid] if self.server.pid else [])
                tokens = prompt_size(size)
                answer = self._ask(target, size, tokens, disturbance)
                reason = answer.wrong
            except (ServerFailed, Undecided) as error:
                reason = shortened(str(error))
            finally:
                watch.stop()
                log_tail = "\n".join(self.server.log_text().splitlines()[-LOG_LINES:]) if reason or watch.stopped else ""
                self.server.stop()
        self._before = dict(watch.tree)
        if watch.longest_gap_s > 0.1:
            notes.append(f"The machine was so busy that memory was sampled with gaps of up to {watch.longest_gap_s:.2f} s.")
        if watch.mapped:
            held = ", ".join(f"{name} {held / GIB:.2f} GiB" for name, held in list(watch.mapped.items())[:4])
            notes.append(f"Mapped files, which the rise of used memory does not count: {held}.")
        return msgspec.structs.replace(
            seen(made, watch),
            outcome="failed" if reason or watch.stopped else "answered",
            reason=watch.stopped or reason,
            discarded="" if reason or watch.stopped else answer.disturbed,
            prompt_tokens=tokens,
            ready_s=round(ready_s, 2),
            notes=notes,
            log_tail=log_tail,
        )

    def _gone(self) -> list[str]:
        """Wait until no process of the server before is left; ServerFailed names those that stay."""
        began = told = time.monotonic()
        while left := memory.still_alive(self._before):
            if time.monotonic() - began > GONE_S:
                raise ServerFailed(
                    f"part fit: after {GONE_S:g} s processes {', '.join(map(str, left))} of the server before still run; "
                    "end them, then go on with --resume"
                )
            if time.monotonic() - told > 2.0:
                told = time.monotonic()
                self.context.progress.say(f"waiting for the server before: processes {', '.join(map(str, left))} still run")
            time.sleep(0.1)
        waited = time.monotonic() - began
        return [f"Waited {waited:.1f} s until the processes of the server before were gone."] if waited > 1.0 else []

    def _idle_notes(self, idle: Idle) -> list[str]:
        """What a reader should know of the idle value: a long wait, or one that lies above the first."""
        notes = []
        if idle.waited_s > 3.0:
            notes.append(f"Waited {idle.waited_s:.1f} s for a stable idle value.")
        if self._first_idle is None:
            self._first_idle = idle.used
        elif idle.used - self._first_idle >= 64 * MIB:
            notes.append(
                f"The idle value lies {(idle.used - self._first_idle) / MIB:.0f} MiB above the one before the first window."
            )
        return notes

    def _ask(self, target: Target, size: int, tokens: int, disturbance: Callable[[], str]) -> Judgement:
        """Send the prompt and judge the answer; one that is wrong or disturbed is recorded as discarded."""
        context = replace(
            self.context,
            target=target,
            progress=Progress(quiet=True),
            retry=Retry(attempts=1, wait_s=0.0, idle_s=self.context.retry.idle_s, total_s=self.context.retry.total_s),
        )
        counter = tokenizing.by_route(target, context.contract.model) or context.tokens
        if counter.source == "/tokenize":
            counter.begin(f"{context.contract.run}-fit-{size}", 0)
        builder = prompts.Builder(measure(context, counter), counter.source if counter.counts else "usage")
        made = builder.exact(TASK, tokens)
        limit = min(int(context.setting("max_tokens")), size - tokens)
        judged = Judgement(wrong="", disturbed="")

        def body() -> Body:
            return context.body(messages=prompts.messages(counter.nonce(), made.user), max_tokens=limit)

        def accept(outcomes: Sequence[Outcome]) -> str:
            judged.wrong = wrong_answer(outcomes[0], tokens, limit)
            judged.disturbed = "" if judged.wrong else disturbance()
            return judged.wrong or judged.disturbed

        ask = Ask(
            body=body,
            prompt_id="fit",
            prompt_tokens=made.tokens,
            prompt_tokens_source=made.source,
            detail={"size": size, "max_tokens": limit},
        )
        try:
            context.step(Step(id=str(size), asks=(ask,), guarded=False, accept=accept, target=target))
        except Undecided:
            if not judged.wrong and not judged.disturbed:
                raise
        return judged


@dataclass(kw_only=True)
class Judgement:
    """Of an answer: why it is none, or what moved memory meanwhile; both "" when it counts."""

    wrong: str
    disturbed: str


def seen(one: Try, watch: Watch) -> Try:
    """A try with what the watch has seen so far."""
    return msgspec.structs.replace(
        one,
        peak=watch.peak,
        samples=watch.samples,
        longest_gap_s=round(watch.longest_gap_s, 4),
        used=list(watch.used),
        tree=watch.tree_peak,
        tree_file=watch.tree_file,
        mapped=dict(watch.mapped),
        gpu=watch.gpu_peak,
        own_only=not memory.accelerated(),
        intruders=[Foreign(name=who.name, pid=who.pid, bytes=who.bytes) for who in watch.intruders(WORTH_NAMING)],
    )


def shortened(reason: str) -> str:
    """First and last line of a reason that carries a log's end; the whole end is kept beside it."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


def wrong_answer(outcome: Outcome, prompt: int, limit: int) -> str:
    """Why a reply is no answer: nothing said, more than asked for, or another prompt length read than was sent."""
    record = outcome.record
    usage = record.usage
    if not outcome.reply.text.strip() and not outcome.reply.reasoning.strip():
        return f"no answer: the reply is empty (finish reason {record.finish_reason})"
    if usage is not None and usage.completion_tokens is not None and usage.completion_tokens > limit:
        return f"wrong answer length: {usage.completion_tokens} tokens came, at most {limit} were asked for"
    read = usage.prompt_tokens if usage and record.usage_where != "tokenizer" else None
    if read is not None and read != prompt:
        return f"the server read {read} tokens of a prompt of {prompt}"
    return ""


def measure(context: Context, counter: tokenizing.TokenCounter) -> Callable[[str], int | None]:
    """Length of the whole prompt for a user message: counted with the template's own tokens, or read from a request's usage."""
    template = setting(context.contract, "prompt.template_tokens")

    def count(user: str) -> int | None:
        counts = [counter.count(message["content"]) for message in prompts.messages(counter.nonce(), user)]
        known = [one for one in counts if one is not None]
        return sum(known) + int(str(template)) if len(known) == len(counts) else None

    def ask(user: str) -> int | None:
        body = context.body(messages=prompts.messages(counter.nonce(), user), max_tokens=1, stream=False)
        answer = try_json(context.target, "/chat/completions", body, timeout_s=context.retry.total_s)
        usage = answer.get("usage") if isinstance(answer, dict) else None
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return tokens if isinstance(tokens, int) else None

    return count if counter.counts and template is not None else ask


def disturbed(one: Try) -> str:
    """Why other programs make the rise doubtful: together they moved over 3 % of it, at least 32 MiB. "" when they did not.

    A rise far from what the server itself holds tells the same of programs that came and went unseen: below it without mapped
    files, or (where no accelerator can hold more) above it by over 15 %, at least 100 MiB.
    """
    moved = sum(abs(who.bytes) for who in one.intruders)
    least = max(WORTH_NAMING, one.rise * DISTURBED_PCT // 100)
    if moved < least:
        short, over = one.tree - one.tree_file - one.rise, one.rise - one.tree
        if short >= least:
            return f"memory_intruder: the rise is {short / MIB:.0f} MiB below what the server itself held"
        if one.own_only and over > max(100 * MIB, one.tree * 15 // 100):
            return (
                f"memory_intruder: the rise is {over / MIB:.0f} MiB above what the server itself held, and no accelerator is known"
            )
        return ""
    first = one.intruders[0]
    others = f", {len(one.intruders)} programs {moved / MIB:.0f} MiB together" if len(one.intruders) > 1 else ""
    return f"memory_intruder: {first.name} changed by {first.bytes / MIB:+.0f} MiB{others}"


def spared() -> int:
    """What the lab always leaves to the machine."""
    return max(512 * MIB, memory.room().total * 3 // 100)
