"""Drafts for a round: known tokens of a restarted reply, else the first source that proposes, else the model's head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from homestretch.engine.backends import Backend
from homestretch.engine.core.live import Live
from homestretch.engine.drafts import Propose, depth
from homestretch.engine.drafts.costs import Costs

log = logging.getLogger(__name__)

KNOWN, HEAD, NONE = "known", "mtp", ""
"""Names of drafts that no source made: replayed ones, the head's, none."""

IDLE, PAUSE = 8, 128
"""After IDLE rounds in a row in which a head did not pay for itself, it rests for PAUSE rounds; it sees the text from there on."""

Plan = tuple[str, tuple[int, ...]]


class Drafting:
    """Nothing here can change a reply or end one: a drafter that fails is not asked again by that stream."""

    def __init__(self, backend: Backend, sources: Mapping[str, Propose], *, head: bool, clock: Callable[[], float]) -> None:
        self._backend, self._sources, self._head, self._clock = backend, sources, head, clock
        self.costs = Costs(backend.costs())
        self.spent_s = 0.0

    def begin(self, live: Live) -> None:
        """A stream was opened for this request."""
        live.head = self._head and live.request.draft
        for name, make in self._sources.items() if live.request.draft else ():
            try:
                live.proposers[name] = make(live.request.prompt)
            except Exception as error:  # noqa: BLE001 - drafts can only cost time
                self._dismiss(live, name, error)

    def settled(self, live: Live, tokens: Sequence[int]) -> None:
        for name in list(live.proposers):
            try:
                live.proposers[name].settled(tokens)
            except Exception as error:  # noqa: BLE001 - drafts can only cost time
                self._dismiss(live, name, error)

    def plan(self, group: Sequence[Live]) -> list[Plan]:
        """The source and the drafts of each stream. Also lets the heads absorb the rows that stand."""
        self.spent_s = 0.0
        proposals = [self._proposal(live) for live in group]
        offers = [self._offer(live, plan) for live, plan in zip(group, proposals, strict=True)]
        chosen = depth.depths(self.costs.step_s, offers)
        self._rest_heads(group, proposals, offers, chosen)
        plans: list[Plan] = []
        for live, (source, drafts), most in zip(group, proposals, chosen, strict=True):
            if live.head and not live.head_pause:
                most = max(1, most) if source == HEAD else most  # one draft at least, to know how it would do
                chain = self._chain(live, most if source == HEAD else 0)
                drafts = chain if source == HEAD else drafts
            drafts = self._admissible(live, drafts[:most])
            plans.append((source if drafts or source == KNOWN else NONE, drafts))
        return plans

    def _rest_heads(
        self, group: Sequence[Live], plans: Sequence[Plan], offers: Sequence[depth.Offer], chosen: Sequence[int]
    ) -> None:
        """Let heads rest that cost more than they bring: their own calls, absorbing included, against steps without them."""
        for live in group:
            live.head_pause = max(0, live.head_pause - 1)
        heads = [place for place, (source, _) in enumerate(plans) if source == HEAD]
        if not heads:
            return
        drafts, rows = sum(chosen), len(group)
        tokens = rows + sum(sum(offer.chances[:count]) for offer, count in zip(offers, chosen, strict=True))
        theirs = sum(chosen[place] for place in heads)
        brought = sum(sum(offers[place].chances[: chosen[place]]) for place in heads)
        seconds = self.costs.step_s(rows + drafts) + self.costs.draft_s * theirs + self.costs.absorb_s * len(heads)
        pays = tokens / seconds >= (tokens - brought) / self.costs.step_s(rows + drafts - theirs)
        for place in heads:
            live = group[place]
            live.head_idle = 0 if pays else live.head_idle + 1
            if live.head_idle >= IDLE:
                live.head_idle, live.head_pause = 0, PAUSE

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
        return (HEAD if live.head and not live.head_pause else NONE), ()

    def _offer(self, live: Live, plan: Plan) -> depth.Offer:
        source, drafts = plan
        if source == KNOWN:
            return depth.Offer(chances=(1.0,) * len(drafts))
        if source == HEAD:
            return depth.Offer(chances=live.accept_rate(HEAD).rates(live.limit), draft_s=self.costs.draft_s)
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
        began = self._clock()
        try:
            draws = []
            if limit:
                first = replace(live.draw(), mask=None, logprobs=0)
                draws = [replace(first, position=first.position + i) for i in range(limit)]
            outs = self._backend.wait(self._backend.draft(live.stream, live.kept, draws, limit))
        except Exception as error:  # noqa: BLE001 - drafts can only cost time
            self._dismiss(live, HEAD, error)
            return ()
        chain = tuple(row.token for row in outs[0]) if outs else ()
        took = self._clock() - began
        self.spent_s += took
        self.costs.drafted(len(chain), took)
        return chain

    def _dismiss(self, live: Live, name: str, error: Exception) -> None:
        log.error("drafts by %s failed for request %s and stop there: %s", name, live.request.id, error, exc_info=error)
        live.proposers.pop(name, None)
        if name == HEAD:
            live.head = False
