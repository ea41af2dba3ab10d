"""Drafts for a round: known tokens of a restarted reply, else the first source that proposes, else the model's head."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from homestretch.engine.backends import Backend
from homestretch.engine.core.live import Live
from homestretch.engine.drafts import Propose, depth

log = logging.getLogger(__name__)

KNOWN, HEAD, NONE = "known", "mtp", ""
"""Names of drafts that no source made: replayed ones, the head's, none."""

Plan = tuple[str, tuple[int, ...]]


class Drafting:
    """Nothing here can change a reply or end one: a drafter that fails is not asked again by that stream."""

    def __init__(self, backend: Backend, sources: Mapping[str, Propose], *, head: bool) -> None:
        self._backend, self._sources, self._head = backend, sources, head
        self._costs = backend.costs()

    def begin(self, live: Live) -> None:
        """A stream was opened for this request."""
        live.head = self._head and live.request.draft
        if live.request.draft:
            live.proposers = {name: make(live.request.prompt) for name, make in self._sources.items()}

    def settled(self, live: Live, tokens: Sequence[int]) -> None:
        for name in list(live.proposers):
            try:
                live.proposers[name].settled(tokens)
            except Exception as error:  # noqa: BLE001 - drafts can only cost time
                self._dismiss(live, name, error)

    def plan(self, group: Sequence[Live]) -> list[Plan]:
        """The source and the drafts of each stream. Also lets the heads absorb the rows that stand."""
        proposals = [self._proposal(live) for live in group]
        offers = [self._offer(live, plan) for live, plan in zip(group, proposals, strict=True)]
        plans: list[Plan] = []
        for live, (source, drafts), most in zip(group, proposals, depth.depths(self._costs.rows, offers), strict=True):
            if live.head:
                chain = self._chain(live, most if source == HEAD else 0)
                drafts = chain if source == HEAD else drafts
            drafts = self._admissible(live, drafts[:most])
            plans.append((source if drafts or source == KNOWN else NONE, drafts))
        return plans

    def _proposal(self, live: Live) -> Plan:
        limit = min(live.limit, depth.MOST)
        if live.replaying:
            return KNOWN, live.known[len(live.reply) :][: max(0, limit)]
        if limit <= 0:
            return NONE, ()
        for name in list(live.proposers):
            try:
                drafts = live.proposers[name].propose(limit)
            except Exception as error:  # noqa: BLE001 - drafts can only cost time
                self._dismiss(live, name, error)
                continue
            if drafts:
                return name, drafts[:limit]
        return (HEAD if live.head else NONE), ()

    def _offer(self, live: Live, plan: Plan) -> depth.Offer:
        source, drafts = plan
        if source == KNOWN:
            return depth.Offer(chances=(1.0,) * len(drafts))
        if source == HEAD:
            return depth.Offer(chances=live.accept_rate(HEAD).rates(live.limit), draft_s=self._costs.draft)
        return depth.Offer(chances=live.accept_rate(source).rates(len(drafts)) if drafts else ())

    def _admissible(self, live: Live, drafts: tuple[int, ...]) -> tuple[int, ...]:
        try:
            return live.admissible(drafts)
        except Exception as error:  # noqa: BLE001 - the row's own draw will meet the same grammar and say so
            log.error("the grammar of request %s failed on a draft: %s", live.request.id, error)
            return ()

    def _chain(self, live: Live, limit: int) -> tuple[int, ...]:
        if live.stream is None:
            return ()
        try:
            draws = []
            if limit:
                first = replace(live.draw(), mask=None, logprobs=0)
                draws = [replace(first, position=first.position + i) for i in range(limit)]
            outs = self._backend.wait(self._backend.draft(live.stream, live.kept, draws, limit))
        except Exception as error:  # noqa: BLE001 - drafts can only cost time
            self._dismiss(live, HEAD, error)
            return ()
        return tuple(row.token for row in outs[0]) if outs else ()

    def _dismiss(self, live: Live, name: str, error: Exception) -> None:
        log.error("drafts by %s failed for request %s and stop there: %s", name, live.request.id, error, exc_info=error)
        live.proposers.pop(name, None)
        if name == HEAD:
            live.head = False
