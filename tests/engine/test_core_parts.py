"""The parts of the core alone: copies, depth, who reads next, kept prefixes; and a storm of requests on a scripted backend."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import VOCAB, Listener, Scripted, request, running, say

from homestretch.engine import prefixes, scheduler
from homestretch.engine.drafts import depth
from homestretch.engine.drafts.copies import FAR, LEAST, Copies
from homestretch.engine.drafts.costs import Costs
from homestretch.engine.types import Mark, Sampling, WindowCosts

# Copies.


def plain_copies(text: list[int], limit: int) -> tuple[int, ...]:
    """The definition: of all earlier places that the last tokens stood at, the longest match, the latest of equal ones."""
    best, longest = 0, LEAST - 1
    for place in range(len(text) - 1, LEAST - 1, -1):
        length = 0
        while length < min(FAR, place) and text[place - 1 - length] == text[-1 - length]:
            length += 1
        if length > longest:
            best, longest = place, length
    if not best:
        return ()
    period = len(text) - best
    return tuple(text[best + i % period] for i in range(limit))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 15), st.integers(0, 60))
def test_copies_propose_what_followed_the_longest_match(text: list[int], limit: int, cut: int) -> None:
    copies = Copies(text[:cut])
    for token in text[cut:]:
        copies.settled([token])
    got = copies.propose(limit)
    wanted = plain_copies(text, limit)
    occurrences = sum(text[at : at + LEAST] == text[-LEAST:] for at in range(max(0, len(text) - LEAST)))
    if occurrences <= 16:
        assert got == wanted
    else:
        assert len(got) == len(wanted), "only the latest places are compared"


def test_copies_cost_little_on_a_long_text() -> None:
    rng = random.Random(1)
    text = [rng.randrange(50_000) for _ in range(131_072)]
    began = time.perf_counter()
    copies = Copies(text)
    made = time.perf_counter() - began
    copies.settled(text[1000:1012])
    began = time.perf_counter()
    for token in text[1012:2012]:
        assert copies.propose(15)[0] == token
        copies.settled([token])
    assert time.perf_counter() - began < 1.0
    assert made < 5.0


# Depth.


def rate(costs: Costs, offers: list[depth.Offer], counts: tuple[int, ...]) -> float:
    tokens = len(offers) + sum(sum(offer.chances[:count]) for offer, count in zip(offers, counts, strict=True))
    seconds = costs.step_s(len(offers) + sum(counts))
    return tokens / (seconds + sum(offer.draft_s * count for offer, count in zip(offers, counts, strict=True)))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.floats(0.05, 0.99), max_size=4), min_size=1, max_size=3),
    st.lists(st.floats(0.001, 1), min_size=16, max_size=16),
)
def test_depths_are_the_best_of_all(steps: list[list[float]], increments: list[float]) -> None:
    costs = Costs(WindowCosts(rows=tuple(itertools.accumulate(increments)), draft=0.0))
    offers = [depth.Offer(chances=list(itertools.accumulate(each, lambda a, b: a * b))) for each in steps]
    chosen = depth.depths(costs.step_s, offers)
    every = itertools.product(*(range(len(offer.chances) + 1) for offer in offers))
    assert rate(costs, offers, chosen) == pytest.approx(max(rate(costs, offers, counts) for counts in every))


def test_acceptance_follows_what_happens_and_forgets() -> None:
    known = depth.Acceptance(0.6)
    assert known.rates(2) == pytest.approx([0.6, 0.36])
    for _ in range(100):
        known.observe(3, 1)
    first, second, third = known.rates(3)
    assert first > 0.95
    assert second < 0.05 * first + 0.02
    assert third <= second
    for _ in range(400):
        known.rest()
    assert known.rates(2) == pytest.approx([0.6, 0.36], abs=0.01)


def test_costs_follow_what_rounds_take() -> None:
    """From a wrong table, on a machine that is three times slower and sometimes preempted, to what is true."""
    rng = random.Random(1)
    costs = Costs(WindowCosts(rows=tuple(1.0 + 0.02 * n for n in range(16)), draft=0.0))
    for _ in range(600):
        rows = rng.choice((1, 1, 2, 4))
        costs.stepped(rows, 3.0 * (1.0 + 0.5 * (rows - 1)) * (20.0 if rng.random() < 0.02 else rng.uniform(0.9, 1.1)))
        count = rng.randrange(0, 4)
        costs.drafted(count, 0.2 + 0.1 * count)
    costs.stepped(1, 0.0)
    assert [costs.step_s(rows) for rows in (1, 2, 4)] == pytest.approx([3.0, 4.5, 7.5], rel=0.2)
    assert costs.absorb_s == pytest.approx(0.2, rel=0.1)
    assert costs.draft_s == pytest.approx(0.1, rel=0.1)
    blank = Costs(WindowCosts(rows=(0.0,) * 16, draft=0.0))
    blank.stepped(1, 0.01)
    assert blank.step_s(1) == pytest.approx(0.01)
    assert 0.01 < blank.step_s(40) < 0.02


def test_a_head_that_does_not_pay_rests_and_is_tried_again() -> None:
    backend = Scripted(head=0.0, costs=WindowCosts(rows=tuple(1.0 + 0.9 * n for n in range(16)), draft=0.5))
    core = running(backend)
    say(core, [1, 2, 3], max_tokens=600)
    assert 16 <= backend.absorbs <= 600 // 128 * 10 + 20
    eager = Scripted(head=1.0, costs=WindowCosts(rows=(1.0,) * 16, draft=0.01))
    other = running(eager)
    say(other, [1, 2, 3], max_tokens=600)
    assert eager.absorbs == other.counters.rounds > 0
    core.stop()
    other.stop()


# Who reads next.


def test_short_prompts_first_but_nobody_waits_for_ever() -> None:
    def prompts(*items: tuple[int, int]) -> list[scheduler.Prompt]:
        return [scheduler.Prompt(left=left, passed=passed, arrival=i) for i, (left, passed) in enumerate(items)]

    assert scheduler.pick(prompts((9000, 0), (100, 0), (100, 0))) == 1
    assert scheduler.pick(prompts((9000, 4), (100, 0))) == 0
    assert scheduler.pick([*prompts((10, 0)), scheduler.Prompt(left=900, passed=0, arrival=9, priority=-1)]) == 1
    waiting = {0: 50_000}
    served = []
    passed = dict.fromkeys(range(100), 0)
    for turn in range(1, 60):  # a short prompt arrives every turn
        waiting[turn] = 10
        keys = sorted(waiting)
        chosen = keys[scheduler.pick([scheduler.Prompt(left=waiting[k], passed=passed[k], arrival=k) for k in keys])]
        for key in keys:
            passed[key] = 0 if key == chosen else passed[key] + 1
        served.append(chosen)
        if chosen == 0:
            waiting[0] -= 2048
        else:
            del waiting[chosen]
    assert served.count(0) > 59 // 8


@given(st.integers(0, 40), st.integers(1, 5000), st.lists(st.integers(1, 40)), st.floats(0, 1e6), st.floats(0, 2))
def test_pieces_end_on_tiles_and_at_stops(tile: int, rest: int, stops: list[int], speed: float, budget: float) -> None:
    start = tile * 128
    wanted = [stop * 128 for stop in stops]
    end = scheduler.piece_end(start=start, length=start + rest, stops=wanted, quantum=128, tokens_per_s=speed, budget_s=budget)
    assert start < end <= min(start + rest, start + 2048)
    assert end % 128 == 0 or end == start + rest
    assert not any(start < stop < end for stop in wanted)


def test_replies_get_their_share() -> None:
    share = scheduler.Share(1.0)
    assert share.may_read(replies=True)
    share.read_for(0.3)
    assert not share.may_read(replies=True)
    share.replied_for(0.2)
    assert not share.may_read(replies=True)
    share.replied_for(0.2)
    assert share.may_read(replies=True)
    share.read_for(5.0)
    assert share.may_read(replies=False), "nobody waits any more"


# Kept prefixes.


def test_marks_are_wanted_where_a_prompt_may_be_met_again() -> None:
    assert prefixes.stops(1000, (300, 700), 128) == (256, 640, 896)
    assert prefixes.stops(5000, (), 128) == (2048, 4096, 4992)
    assert prefixes.stops(128, (500, 0), 128) == ()
    assert prefixes.stops(129, (), 128) == (128,)


def test_the_longest_kept_prefix_is_found_and_the_least_used_goes_first() -> None:
    dropped: list[Mark] = []
    kept = prefixes.Prefixes(limit_bytes=25, quantum=2, drop=dropped.append)
    one, two = prefixes.chain((1, 2, 3, 4, 5), 2), prefixes.chain((1, 2, 9, 9), 2)
    assert len(one) == len(two) == 2
    assert one[0] == two[0] != one[1] != two[1]
    marks = [Mark(position=2, key=1, bytes=10), Mark(position=4, key=2, bytes=10), Mark(position=4, key=3, bytes=10)]
    kept.put(one[0], marks[0])
    kept.put(one[1], marks[1])
    assert kept.best(one, 5) == marks[1]
    assert kept.best(one, 4) == marks[0], "one id at least must be left to read"
    kept.put(two[1], marks[2])
    assert dropped == [marks[1]]
    assert kept.best(one, 5) == marks[0]
    kept.put(b"huge", Mark(position=2, key=4, bytes=99))
    assert (len(kept), kept.bytes) == (0, 0)
    assert not kept.evict()


# A storm.


class Chaos:
    """Drafts of any kind, and sometimes a failure of its own."""

    def __init__(self, prompt: object) -> None:
        self.rng = random.Random(str(prompt))

    def propose(self, limit: int) -> tuple[int, ...]:
        if self.rng.random() < 0.02:
            raise RuntimeError("a drafter that breaks")
        return tuple(self.rng.randrange(VOCAB) for _ in range(self.rng.randrange(0, limit + 4)))

    def settled(self, tokens: object) -> None:
        pass


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_requests_leaves_every_reply_as_it_is_alone(seed: int) -> None:
    """Scarce memory, a small prompt cache, drafters that break, cancellations and spoiled steps, all at once."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB) for _ in range(600)]
    asks = []
    for number in range(18):
        text = [*shared[: rng.choice((0, 128, 300, 600))], *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 300)))]
        sampling = rng.choice((Sampling(temperature=0.0), Sampling(top_p=0.9), Sampling(top_k=9, presence_penalty=0.5)))
        asks.append((text, {"sampling": sampling, "seed": number, "max_tokens": rng.randrange(1, 120), "marks": (len(text) // 2,)}))
    plain = running(Scripted(), sources={})
    wanted = [say(plain, text, draft=False, cache=False, **values).tokens for text, values in asks]
    plain.stop()
    backend = Scripted(head=0.6, pages=24)
    backend.stumbles = {15, 40, 80}
    core = running(backend, streams=6, sources={"copies": Chaos}, prompt_cache_bytes=20_000, share=0.3)
    listeners = []
    doomed = set()
    for number, (text, values) in enumerate(asks):
        listeners.append(Listener())
        made = request(
            text, listeners[-1], draft=rng.random() < 0.8, cache=rng.random() < 0.8, priority=rng.choice((0, 0, 1)), **values
        )
        core.submit(made)
        if rng.random() < 0.2:
            core.cancel(made.id)
            doomed.add(number)
    for number, listener in enumerate(listeners):
        summary = listener.wait(60)
        assert listener.tokens == wanted[number][: len(listener.tokens)]
        if summary.finish == "cancelled":
            assert number in doomed
        elif summary.finish == "error":
            assert "stumbled" in summary.error
        else:
            assert listener.tokens == wanted[number]
    errors = sum(listener.wait().finish == "error" for listener in listeners)
    assert errors <= 3, "a stumble fails one request at most"
    core.stop()
    assert core.counters.restarts > 0, "it was a storm"
    assert not backend.streams
