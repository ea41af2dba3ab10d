"""The streams of the backend: admission, prompt pieces, rounds, memory. Called by the loop's thread alone."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from homestretch.engine import prefixes, scheduler
from homestretch.engine.backends import Backend
from homestretch.engine.core.drafting import KNOWN, Drafting
from homestretch.engine.core.live import Live
from homestretch.engine.core.options import Counters, Options
from homestretch.engine.types import Event, FinishReason, PromptPiece, RowOut, Window

log = logging.getLogger(__name__)

AHEAD = 512
"""Positions reserved beyond what is needed now, so that memory is asked for seldom."""


class Streams:
    """Every live request. A request is queued, then open (reading its prompt, then replying), then gone."""

    def __init__(self, backend: Backend, options: Options, *, head: bool) -> None:
        self._backend, self._options = backend, options
        self._drafting = Drafting(backend, options.sources, head=head and options.head, clock=options.clock)
        self._clock = options.clock
        self._quantum = backend.numerics.quantum
        self._prefixes = prefixes.Prefixes(limit_bytes=options.prompt_cache_bytes, quantum=self._quantum, drop=backend.drop)
        self._share = scheduler.Share(options.share)
        self._queue: list[Live] = []
        self._refused: Live | None = None
        self._open: list[Live] = []
        self._read_tokens_per_s = 0.0
        self._finished: Counter[str] = Counter()
        self._drafted: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._seconds: dict[str, float] = {"prompt": 0.0, "step": 0.0}

    # In and out.

    def queue(self, live: Live) -> None:
        self._queue.append(live)
        self._queue.sort(key=lambda each: (each.request.priority, each.arrival))

    def all(self) -> list[Live]:
        return [*self._open, *self._queue]

    @property
    def idle(self) -> bool:
        return not self._queue and not self._open

    def finish(self, live: Live, finish: FinishReason, *, rows: Sequence[RowOut] = (), error: str = "") -> None:
        """Close a request for whatever reason and tell its owner. Never raises."""
        self._close(live)
        if live in self._queue:
            self._queue.remove(live)
        self._finished[finish] += 1
        self._emit(
            live,
            Event(tokens=tuple(row.token for row in rows), rows=tuple(rows), summary=live.summary(finish, self._clock(), error)),
        )

    def fail(self, live: Live, error: Exception) -> None:
        log.error("request %s failed: %s", live.request.id, error, exc_info=error)
        self.finish(live, "error", error=f"{type(error).__name__}: {error}")

    def _close(self, live: Live) -> None:
        if live in self._open:
            self._open.remove(live)
        stream, live.stream = live.stream, None
        self._refused = None
        if stream is not None:
            try:
                self._backend.close(stream)
            except Exception as error:  # noqa: BLE001 - the request is over either way
                log.error("closing stream %s failed: %s", stream, error)

    def _restart(self, live: Live, *, alone: bool) -> None:
        """Give up the stream and begin again: the same prompt, then the same tokens as drafts that are known to stand."""
        self._close(live)
        live.restart()
        live.alone = live.alone or alone
        self._sums["restarts"] += 1
        self.queue(live)

    def _emit(self, live: Live, event: Event) -> None:
        try:
            live.request.emit(event)
        except Exception as error:  # noqa: BLE001 - a broken listener must not stop the others
            log.error("nobody takes the events of request %s: %s", live.request.id, error)
            live.cancelled = True

    def counters(self) -> Counters:
        return Counters(
            running=len(self._open),
            waiting=len(self._queue),
            finished=dict(self._finished),
            prompt_tokens=self._sums["prompt_tokens"],
            cached_tokens=self._sums["cached_tokens"],
            reply_tokens=self._sums["reply_tokens"],
            prompt_s=self._seconds["prompt"],
            steps=self._sums["steps"],
            step_rows=self._sums["step_rows"],
            step_s=self._seconds["step"],
            rounds=self._sums["rounds"],
            drafted=dict(self._drafted),
            accepted=dict(self._accepted),
            restarts=self._sums["restarts"],
            kept_marks=len(self._prefixes),
            kept_bytes=self._prefixes.bytes,
            free_bytes=self._backend.free_bytes(),
        )

    # One turn.

    def turn(self) -> None:
        """Drop what was cancelled, admit, read one prompt piece if it is a prompt's turn, then give every reply a round."""
        for live in self.all():
            if live.cancelled:
                self.finish(live, "cancelled")
        self._admit()
        prompts = [live for live in self._open if live.left]
        replies = [live for live in self._open if live.replying]
        if prompts and self._share.may_read(replies=bool(replies)):
            self._read(prompts, hurry=bool(replies))
        self._round([live for live in self._open if live.replying])
        self._relieve()

    def _admit(self) -> None:
        while self._queue and len(self._open) < self._options.streams and not any(live.stalled for live in self._open):
            live = self._queue[0]
            if live is self._refused:
                return
            try:
                if not self._opened(live):
                    self._refused = live  # until a stream closes, asking again would be in vain
                    return
            except Exception as error:  # noqa: BLE001 - one failed admission must not stop the others
                self.fail(live, error)

    def _opened(self, live: Live) -> bool:
        """Open a stream at the longest kept prefix and make room for the prompt; False: it must wait for others to end."""
        request = live.request
        caching = request.cache and self._prefixes.enabled
        if caching and live.names is None:
            live.names = prefixes.chain(request.prompt, self._quantum)
            live.stops = prefixes.stops(live.length, request.marks, self._quantum)
        names = live.names or ()
        mark = self._prefixes.best(names, live.length) if caching else None
        live.stream = self._backend.open(mark)
        live.read = mark.position if mark is not None else 0
        if not self._room(live, live.length + len(live.known) + 1):
            stream, live.stream, live.read, live.room = live.stream, None, 0, 0
            self._backend.close(stream)
            if self._open:
                return False
            free = self._backend.free_bytes()
            self.finish(live, "error", error=f"no memory for a prompt of {live.length} tokens: {free} bytes are free")
            return True
        self._queue.remove(live)
        self._open.append(live)
        live.passed = 0
        live.started_at = live.started_at or self._clock()
        if live.cached is None:
            live.cached = live.read
            self._sums["cached_tokens"] += live.read
            self._sums["prompt_tokens"] += live.length
        self._drafting.begin(live)
        return True

    # Memory.

    def _room(self, live: Live, upto: int) -> bool:
        """Room for positions below `upto` of an open stream, kept prompt states given up for it if need be."""
        if upto <= live.room:
            return True
        if live.stream is None:
            return False
        most = max(upto, min(live.length + live.request.max_tokens, self._options.window))
        ask = min(most, upto + AHEAD)
        while not self._backend.reserve(live.stream, ask):
            if ask > upto:
                ask = upto
            elif not self._prefixes.evict():
                return False
        live.room = ask
        return True

    def _relieve(self) -> None:
        """When no open request can go on for lack of memory, the one that came last gives its place up and begins again later."""
        if not self._open or not all(live.stalled for live in self._open):
            return
        if self._unstall():
            return
        if len(self._open) == 1:
            live, free = self._open[0], self._backend.free_bytes()
            self.finish(live, "error", error=f"no memory beyond position {live.position}: {free} bytes are free")
            return
        self._restart(max(self._open, key=lambda live: (live.request.priority, live.arrival)), alone=False)
        self._unstall()  # before the place is given away

    def _unstall(self) -> bool:
        """Whether any stalled request can go on now."""
        for live in self._open:
            live.stalled = live.stalled and not self._room(live, live.position + 1)
        return not all(live.stalled for live in self._open)

    # Prompts.

    def _read(self, prompts: list[Live], *, hurry: bool) -> None:
        waiting = [scheduler.Prompt(left=p.left, passed=p.passed, arrival=p.arrival, priority=p.request.priority) for p in prompts]
        live = prompts[scheduler.pick(waiting)]
        for other in prompts:
            other.passed = 0 if other is live else other.passed + 1
        end = scheduler.piece_end(
            start=live.read,
            length=live.length,
            stops=live.stops,
            quantum=self._quantum,
            tokens_per_s=self._read_tokens_per_s,
            budget_s=self._options.piece_s if hurry else 2 * self._options.piece_s,
        )
        began = self._clock()
        try:
            if live.stream is None:
                raise RuntimeError("a prompt without a stream")
            last = end == live.length
            piece = PromptPiece(
                stream=live.stream, start=live.read, tokens=live.request.prompt[live.read : end], draw=live.draw() if last else None
            )
            outs = self._backend.wait(self._backend.read(piece))
            took = self._clock() - began
            self._seconds["prompt"] += took
            if hurry:
                self._share.read_for(took)
            speed = -(-(end - live.read) // self._quantum) * self._quantum / max(took, 1e-6)  # a part of a tile costs a tile
            self._read_tokens_per_s = speed if not self._read_tokens_per_s else 0.5 * (self._read_tokens_per_s + speed)
            live.read = end
            self._keep(live)
            if last:
                live.first_at = live.first_at or self._clock()
                self._settle(live, (), "", outs[0])
        except Exception as error:  # noqa: BLE001 - fails this request, nobody else
            self.fail(live, error)

    def _keep(self, live: Live) -> None:
        """Keep the prompt state just read, if it stands where it may be wanted again."""
        if live.names is None or live.read not in live.stops or live.stream is None:
            return
        name = live.names[live.read // self._quantum - 1]
        if self._prefixes.has(name):
            return
        mark = self._backend.mark(live.stream)
        while mark is None and self._prefixes.evict():
            mark = self._backend.mark(live.stream)
        if mark is not None:
            self._prefixes.put(name, mark)

    # Rounds.

    def _round(self, replies: list[Live]) -> None:
        ready = []
        for live in replies:
            live.stalled = not self._room(live, live.position + 1)
            if not live.stalled:
                ready.append(live)
        if not ready:
            return
        began = self._clock()
        together = [live for live in ready if not live.alone]
        for group in [[live] for live in ready if live.alone] + ([together] if together else []):
            self._step(group)
        self._share.replied_for(self._clock() - began)

    def _step(self, group: list[Live]) -> None:
        started = self._clock()
        plans: list[tuple[Live, str, tuple[int, ...]]] = []
        windows: list[Window] = []
        for live, (source, drafts) in zip(group, self._drafting.plan(group), strict=True):
            try:
                if drafts and not self._room(live, live.position + 1 + len(drafts)):
                    drafts = ()
                windows.append(live.window(drafts))
                plans.append((live, source, drafts))
            except Exception as error:  # noqa: BLE001 - fails this request, nobody else
                self.fail(live, error)
        if not windows:
            return
        began = self._clock()
        try:
            outs = self._backend.wait(self._backend.step(windows))
        except Exception as error:  # noqa: BLE001 - fails one request at most, see below
            self._broken([live for live, _, _ in plans], error)
            return
        self._seconds["step"] += self._clock() - began
        self._sums["steps"] += 1
        self._sums["step_rows"] += (rows_of_all := sum(len(window.tokens) for window in windows))
        for (live, source, drafts), rows in zip(plans, outs, strict=True):
            try:
                self._settle(live, drafts, source, rows)
            except Exception as error:  # noqa: BLE001 - fails this request, nobody else
                self.fail(live, error)
        self._drafting.costs.stepped(rows_of_all, self._clock() - started - self._drafting.spent_s)

    def _broken(self, group: list[Live], error: Exception) -> None:
        """A step failed. Whoever was in it alone is at fault; several begin again and pass the place one at a time."""
        if len(group) == 1:
            self.fail(group[0], error)
            return
        log.warning("a step of %d streams failed and is repeated one by one: %s", len(group), error)
        for live in group:
            self._restart(live, alone=True)

    def _settle(self, live: Live, drafts: tuple[int, ...], source: str, rows: Sequence[RowOut]) -> None:
        """Take the rows that stand, count, tell the owner, and end the reply where it ends."""
        before = len(live.reply)
        sent = len(live.known)
        new, finish = live.take(drafts, rows)
        live.kept = len(new) if before else 0
        if before and source != KNOWN:
            self._count(live, source, len(drafts), len(new) - 1)
        self._drafting.settled(live, [row.token for row in new])
        fresh = new[max(0, sent - before) :]
        self._sums["reply_tokens"] += len(fresh)
        if fresh:
            live.alone = False
        if finish is not None:
            self.finish(live, finish, rows=fresh)
        elif fresh:
            self._emit(live, Event(tokens=tuple(row.token for row in fresh), rows=fresh))

    def _count(self, live: Live, source: str, drafted: int, accepted: int) -> None:
        live.count(source, drafted, accepted)
        self._sums["rounds"] += 1
        if drafted:
            self._drafted[source] += drafted
            self._accepted[source] += accepted
