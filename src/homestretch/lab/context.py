"""What a part is given: the contract, the server, and steps that are guarded, recorded, repeated when disturbed, and resumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from homestretch.lab.errors import LabError, ServerFailed, Undecided
from homestretch.lab.exchange import Ask, Body, Outcome, fire
from homestretch.lab.prompts import Builder, Exact, messages
from homestretch.lab.types import Contract, StepSummary

if TYPE_CHECKING:
    from homestretch.lab.client import Target
    from homestretch.lab.guard import Guard
    from homestretch.lab.progress import Progress
    from homestretch.lab.records import RunFolder
    from homestretch.lab.servers import ManagedServer
    from homestretch.lab.tokenizing import TokenCounter


@dataclass(frozen=True, kw_only=True)
class Retry:
    """attempts: how often a step is tried in all, after waits that double from wait_s up to longest_wait_s.

    idle_s: a stream that is silent for so long has stalled. total_s: the longest reply.
    """

    attempts: int = 4
    idle_s: float = 1800.0
    total_s: float = 7200.0
    wait_s: float = 1.0
    longest_wait_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the guard can discard and repeat: requests sent together at a barrier.

    guarded: foreign load discards it (timed figures); quality questions are only watched. accept: sees the outcomes and says
    why they cannot count ("" = they can); after the last attempt the outcome is kept when `keep_last`, else the part is undecided.
    """

    id: str
    asks: tuple[Ask, ...]
    guarded: bool = True
    accept: Callable[[Sequence[Outcome]], str] | None = None
    keep_last: bool = False
    target: Target | None = None


class DraftSource(Protocol):
    """Where drafts are counted when the reply does not tell: the server's metrics or its log, read before and after a request."""

    def mark(self) -> Any: ...

    def since(self, mark: Any) -> dict[str, Any] | None: ...


@dataclass(kw_only=True)
class Context:
    """Everything `Part.run` needs. `setting("runs")` reads `PART.runs` of the contract; dotted names are read as they stand.

    tokens counts as the server does; at_once: requests a quality part may keep running; server: present when the lab started
    it and may start it again (`fit`); data: folder of question sets.
    """

    part: str
    contract: Contract
    target: Target
    folder: RunFolder
    tokens: TokenCounter
    guard: Guard
    progress: Progress
    retry: Retry = field(default_factory=Retry)
    at_once: int = 8
    server: ManagedServer | None = None
    data: Path | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    stream_options: Mapping[str, Any] = field(default_factory=lambda: {"include_usage": True})
    system_role: bool = True
    drafts: DraftSource | None = None
    builder: Builder = field(default_factory=lambda: Builder(lambda user: None, "none"))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def setting(self, name: str) -> Any:
        """Value of a setting of this part, or of a dotted one; LabError when the contract does not hold it."""
        for full in (f"{self.part}.{name}", name):
            if full in self.contract.settings:
                return self.contract.settings[full].value
        raise LabError(
            f"part {self.part} reads setting {name!r}, which its contract does not hold; add it to the part's settings()"
        )

    def body(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        prompt: str | Sequence[int] | None = None,
        max_tokens: int,
        thinking: bool = False,
        **extra: Any,
    ) -> Body:
        """A request body with all that the contract sends in each request: model, sampling, seed, thinking switch, streaming."""
        body: dict[str, Any] = {"model": self.contract.model}
        if messages is not None:
            body["messages"] = [dict(message) for message in messages]
        if prompt is not None:
            body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        body["max_tokens"] = max_tokens
        for name, sourced in self.contract.settings.items():
            if name.startswith("sampling."):
                body[name.removeprefix("sampling.")] = sourced.value
            elif name.startswith("request."):
                place(body, name.removeprefix("request."), sourced.value)
        switch = self.contract.settings.get("thinking.field")
        if switch is not None and switch.value and messages is not None:
            place(body, switch.value, thinking)
        body.update(extra)
        return body

    def chat(self, user: str) -> list[dict[str, str]]:
        """The messages of a speed request, with a nonce of its own in front."""
        return messages(self.nonce(), user, system=self.system_role)

    def exact(self, task: str, depth: int) -> Exact:
        """The task behind a filler log, so that the whole prompt has exactly `depth` tokens; Undecided when nothing can count."""
        return self.builder.exact(task, depth)

    def nonce(self) -> str:
        """A word group whose first token is new for each request; put it first in the first message."""
        return self.tokens.nonce()

    def step(self, step: Step) -> list[Outcome]:
        """Outcomes of a step: from the raw files when it is there already, else measured, repeated while disturbed.

        Undecided: disturbed or refused in every attempt. ServerFailed: the server answered none of them.
        """
        done = self.folder.outcomes(self.part, step.id)
        if done:
            self.progress.advance(self.part, step.id, resumed=True)
            return done
        first = self.folder.attempts(self.part, step.id) + 1
        reason = ""
        for attempt in range(first, first + self.retry.attempts):
            last = attempt == first + self.retry.attempts - 1
            self.progress.start(self.part, step.id, attempt)
            with self.guard.watch(f"{self.part}/{step.id}") as watched:
                outcomes = fire(self, step, attempt)
            reason, wait_s = self._judge(step, outcomes, watched.verdict() if step.guarded else "", last)
            discarded = [outcome.discarded(reason) for outcome in outcomes] if reason else outcomes
            with self._lock:
                self.folder.append(self.part, discarded)
            if not reason:
                self.progress.advance(self.part, step.id)
                return outcomes
            self.folder.log(f"step {self.part}/{step.id}, attempt {attempt}: discarded: {reason}")
            self.progress.note(f"{self.part} {step.id}: {reason}; {'giving up' if last else 'again'}")
            if not last:
                time.sleep(min(wait_s * 2 ** (attempt - first), self.retry.longest_wait_s))
        message = f"part {self.part}: step {step.id} could not be measured in {self.retry.attempts} attempts; last: {reason}"
        raise ServerFailed(message) if reason.startswith("error") else Undecided(message)

    def attempt_once(self, step: Step) -> Outcome:
        """One request, recorded whatever comes back and never repeated: for probes, where a refusal is an answer."""
        done = self.folder.outcomes(self.part, step.id)
        if done:
            return done[0]
        outcomes = fire(self, step, self.folder.attempts(self.part, step.id) + 1)
        with self._lock:
            self.folder.append(self.part, outcomes)
        return outcomes[0]

    def steps(self, steps: Sequence[Step], at_once: int | None = None) -> list[list[Outcome]]:
        """Many steps, several at a time (quality questions); each is recorded as it ends; the first that fails stops the rest."""
        width = max(1, self.at_once if at_once is None else at_once)
        if width == 1:
            return [self.step(step) for step in steps]
        with ThreadPoolExecutor(max_workers=width) as pool:
            futures = [pool.submit(self.step, step) for step in steps]
            try:
                return [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    def _judge(self, step: Step, outcomes: Sequence[Outcome], load: str, last: bool) -> tuple[str, float]:
        """Why the attempt does not count ("" = it does), and how long to wait before the next."""
        failed = next((outcome for outcome in outcomes if outcome.record.error), None)
        if failed is not None:
            wait_s = min(max(failed.retry_after_s, self.retry.wait_s), self.retry.longest_wait_s)
            return f"error: {failed.record.error}", wait_s
        if load:
            return load, self.retry.wait_s
        refusal = step.accept(outcomes) if step.accept is not None else ""
        return ("" if last and step.keep_last else refusal), 0.0

    def summary(self) -> StepSummary:
        """How the guard judged this part so far."""
        return self.folder.step_summary(self.part)


def place(body: dict[str, Any], path: str, value: Any) -> None:
    """Set `a.b.c` of a body, making the objects between."""
    *outer, last = path.split(".")
    for name in outer:
        body = body.setdefault(name, {})
    body[last] = value
