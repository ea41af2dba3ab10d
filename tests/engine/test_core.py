"""The core on a scripted backend: drafted = serial, beside others = alone, resumed = fresh, ends inside windows, failures apart."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pytest
from scripted import VOCAB, Listener, Scripted, repeats, request, running, say

from homestretch.engine.core import Core
from homestretch.engine.errors import ContextOverflow, Refused, Unavailable
from homestretch.engine.types import Sampling, WindowCosts

SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, top_p=0.95),
    Sampling(temperature=1.0, top_k=20),
    Sampling(temperature=1.0, min_p=0.05, presence_penalty=0.5, frequency_penalty=0.3, bias=((3, 2.0), (4, -5.0))),
)


@contextmanager
def serving(backend: Scripted | None = None, **changes: object) -> Iterator[tuple[Core, Scripted]]:
    backend = backend or Scripted()
    core = running(backend, **changes)
    try:
        yield core, backend
    finally:
        core.stop()
        assert not backend.streams, "every stream was closed"


def prompt(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def serial(prompt: Sequence[int], backend: Scripted | None = None, **changes: object) -> list[int]:
    with serving(backend or Scripted(), sources={}, head=False) as (core, _):
        return say(core, prompt, draft=False, cache=False, **changes).tokens


class Hostile:
    """Proposes windows of one width: the truth of `reply` with some share of it spoiled, or noise, or more than was asked for."""

    def __init__(self, prompt: Sequence[int], *, reply: Sequence[int], right: float, width: int, seed: int) -> None:
        self.reply, self.right, self.width = list(reply), right, width
        self.rng, self.at = random.Random(seed), 0

    def propose(self, limit: int) -> tuple[int, ...]:
        truth = (self.reply[self.at :] + [self.rng.randrange(VOCAB) for _ in range(40)])[: self.width - 1]
        return tuple(token if self.rng.random() < self.right else self.rng.randrange(VOCAB) for token in truth)

    def settled(self, tokens: Sequence[int]) -> None:
        self.at += len(tokens)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_no_drafter_at_any_width_changes_a_reply(sampling: Sampling) -> None:
    text = prompt(1, 150)
    plain = serial(text, sampling=sampling, max_tokens=40)
    for width in range(1, 18):
        for right in (0.0, 0.5, 1.0):
            source = {"copies": lambda p, w=width, r=right: Hostile(p, reply=plain, right=r, width=w, seed=w)}
            with serving(sources=source) as (core, backend):
                got = say(core, text, sampling=sampling, max_tokens=40)
            assert got.tokens == plain
            assert max(backend.widths) <= 16
            if right == 1.0 and width > 1:
                assert max(backend.widths) == min(width, 16)
                assert got.summary is not None
                assert got.summary.drafts.accepted == 40 - 1 - got.summary.drafts.rounds


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_head_drafts_change_nothing_and_are_counted(share: float) -> None:
    text = prompt(2, 300)
    plain = serial(text, max_tokens=64)
    with serving(Scripted(head=share)) as (core, _):
        got = say(core, text, max_tokens=64)
        off = say(core, text, max_tokens=64, draft=False)
    assert got.tokens == plain == off.tokens
    assert got.summary is not None
    assert off.summary is not None
    counts = got.summary.drafts
    assert counts.accepted == counts.accepted_mtp == 63 - counts.rounds
    assert off.summary.drafts.drafted == 0
    assert (counts.accepted / max(1, counts.drafted) < 0.1) if share == 0 else counts.accepted > 0
    if share == 1.0:
        assert counts.rounds == 4, "63 tokens in windows of 16"


def test_streams_at_once_say_what_each_says_alone() -> None:
    asks = [
        {"prompt": prompt(i, 20 + 137 * i), "sampling": SAMPLINGS[i % 4], "seed": i, "max_tokens": 30 + 5 * i, "draft": i % 3 != 0}
        for i in range(8)
    ]
    alone = [serial(**{k: v for k, v in ask.items() if k != "draft"}) for ask in asks]  # type: ignore[arg-type]
    for count in (2, 4, 8):
        backend = Scripted(head=0.5)
        with serving(backend) as (core, _):
            listeners = [Listener() for _ in range(count)]
            backend.gate.clear()
            for ask, listener in zip(asks, listeners, strict=False):
                values = dict(ask)
                core.submit(request(values.pop("prompt"), listener, **values))  # type: ignore[arg-type]
            backend.gate.set()
            for listener, wanted in zip(listeners, alone, strict=False):
                listener.wait()
                assert listener.tokens == wanted
        assert max(backend.at_once) > count // 2, "rows of several streams share a step"


def test_kept_prompts_change_nothing_and_are_counted() -> None:
    system, first, second = prompt(1, 300), prompt(2, 400), prompt(3, 100)
    turn = (*system, *first)
    backend = Scripted()
    with serving(backend, prompt_cache_bytes=10**9) as (core, _):
        one = say(core, turn, marks=(300,))
        again = say(core, turn, marks=(300,))
        other = say(core, (*system, *prompt(9, 50)), marks=(300,))
        follow = (*turn, *one.tokens, *second)
        two = say(core, follow, marks=(300, len(turn)))
        uncached = say(core, follow, cache=False)
        for listener, cached in ((one, 0), (again, 640), (other, 256), (two, 640), (uncached, 0)):
            assert listener.summary is not None
            assert listener.summary.cached_tokens == cached
        assert core.counters.cached_tokens == 640 + 256 + 640
    assert one.tokens == again.tokens == serial(turn)
    assert other.tokens == serial((*system, *prompt(9, 50)))
    assert two.tokens == uncached.tokens == serial(follow)


def test_a_small_prompt_cache_evicts_and_stays_exact() -> None:
    backend = Scripted()
    texts = [prompt(i % 5, 700 + 10 * i) for i in range(12)]
    with serving(backend, prompt_cache_bytes=12_000) as (core, _):
        for text in texts:
            assert say(core, text, max_tokens=8).tokens == serial(text, max_tokens=8)
            assert core.counters.kept_bytes <= 12_000
        assert core.counters.kept_marks == len(backend.marks) > 0


def test_an_end_token_inside_a_window_ends_the_reply_there() -> None:
    text = prompt(4, 100)
    plain = serial(text, max_tokens=40)
    end = plain[21]
    where = plain.index(end)
    for width in (1, 4, 16):
        source = {"copies": lambda p, w=width: Hostile(p, reply=plain, right=1.0, width=w, seed=0)}
        with serving(sources=source) as (core, _):
            got = say(core, text, max_tokens=40, ends=frozenset({end}))
            short = say(core, text, max_tokens=where)
        assert got.tokens == plain[: where + 1]
        assert got.summary is not None
        assert (got.summary.finish, got.summary.completion_tokens) == ("stop", where + 1)
        sha = hashlib.sha256(b"".join(t.to_bytes(4, "little") for t in got.tokens)).hexdigest()
        assert got.summary.token_sha == sha
        assert short.tokens == plain[:where]
        assert short.summary is not None
        assert short.summary.finish == "length"


class StopAfter:
    """A watch that wants to see each token once, in order, and stops at one count."""

    def __init__(self, count: int) -> None:
        self.seen: list[int] = []
        self.count = count

    def push(self, token: int) -> bool:
        self.seen.append(token)
        return len(self.seen) == self.count


def test_a_stop_string_inside_a_window_ends_the_reply_there() -> None:
    text = prompt(5, 60)
    plain = serial(text, max_tokens=40)
    for width in (1, 7, 16):
        watch = StopAfter(18)
        source = {"copies": lambda p, w=width: Hostile(p, reply=plain, right=0.9, width=w, seed=0)}
        with serving(sources=source) as (core, _):
            got = say(core, text, max_tokens=40, watch=watch)
        assert got.tokens == plain[:18] == watch.seen


class EvenThenOdd:
    """A grammar: after an even token an odd one, after an odd one an even one."""

    def allows(self, path: tuple[int, ...], token: int) -> bool:
        return not path or (path[-1] + token) % 2 == 1

    def mask(self, path: tuple[int, ...]) -> bytes:
        bits = sum(1 << t for t in range(VOCAB) if self.allows(path, t))
        return bits.to_bytes(VOCAB // 8, "little")


def test_a_grammar_binds_every_row_by_its_own_path() -> None:
    text = prompt(6, 60)
    plain = serial(text, grammar=EvenThenOdd(), max_tokens=40)
    assert all((a + b) % 2 == 1 for a, b in pairwise(plain))
    for right in (0.0, 0.7, 1.0):
        source = {"copies": lambda p, r=right: Hostile(p, reply=plain, right=r, width=16, seed=0)}
        with serving(Scripted(head=0.5), sources=source) as (core, _):
            assert say(core, text, grammar=EvenThenOdd(), max_tokens=40).tokens == plain


def test_copies_of_a_repeating_target_give_eight_tokens_a_round() -> None:
    text = prompt(7, 90)
    backend = Scripted(script=repeats(90))
    with serving(backend) as (core, _):
        got = say(core, text, max_tokens=180)
    assert got.tokens == list(text * 2)
    assert got.summary is not None
    assert got.summary.drafts.accepted_copies == got.summary.drafts.accepted
    assert 179 / got.summary.drafts.rounds >= 8


def test_depth_follows_cost_and_acceptance() -> None:
    text = prompt(8, 60)
    dear = WindowCosts(rows=tuple(float(i + 1) for i in range(16)), draft=0.5)
    with serving(Scripted(head=0.9, costs=dear)) as (core, backend):
        say(core, text, max_tokens=100)
        assert max(backend.widths) == 2, "a row as dear as a step is worth no draft"
        assert backend.widths.count(2) == 7, "beyond those that show it"
    fair = WindowCosts(rows=tuple(1.0 + 0.3 * i for i in range(16)), draft=0.05)
    widths = {}
    for share in (0.1, 0.95):
        with serving(Scripted(head=share, costs=fair)) as (core, backend):
            say(core, text, max_tokens=200)
            widths[share] = sum(backend.widths[-20:]) / 20
    assert widths[0.1] < 2.0 < 3.0 < widths[0.95]


def test_a_failing_request_touches_nobody_else() -> None:
    good, long = prompt(1, 200), prompt(2, 1000)
    alone = serial(good, max_tokens=60)
    backend = Scripted()
    backend.spoiled = range(1020, 1040)
    with serving(backend, sources={}) as (core, _):
        first, doomed, refused = Listener(), Listener(), Listener()
        core.submit(request(long, doomed, max_tokens=60))
        core.submit(request(good, first, max_tokens=60))
        core.submit(request(prompt(3, 1030), refused, max_tokens=60))
        assert doomed.wait().finish == "error"
        assert "spoiled window" in doomed.wait().error
        assert len(doomed.tokens) == 21, "up to the token drawn by the row before"
        assert refused.wait().error == "RuntimeError: spoiled prompt"
        assert first.wait().finish == "length"
        assert first.tokens == alone
        assert say(core, good, max_tokens=60).tokens == alone, "the core lives on"
        assert core.counters.restarts == 2, "the two that shared the failing step began again"


def test_a_listener_that_raises_ends_its_own_request_only() -> None:
    def broken(event: object) -> None:
        raise ValueError("gone")

    with serving() as (core, backend):
        core.submit(request(prompt(1, 40), broken, max_tokens=5000))  # type: ignore[arg-type]
        assert say(core, prompt(2, 40)).tokens == serial(prompt(2, 40))
        deadline = time.monotonic() + 5
        while core.counters.running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert core.counters.running == 0
        assert not backend.streams


def test_cancel_frees_the_place_at_the_next_round_and_leaves_the_next_reply_alone() -> None:
    with serving(streams=1) as (core, backend):
        long = Listener()
        ask = request(prompt(1, 4000), long, max_tokens=4000)
        core.submit(ask)
        while not backend.pieces:
            time.sleep(0.001)
        waiting = Listener()
        core.submit(request(prompt(2, 300), waiting))
        core.cancel(ask.id)
        core.cancel("nobody")
        assert long.wait().finish == "cancelled"
        waiting.wait()
        assert waiting.tokens == serial(prompt(2, 300))


def test_scarce_memory_makes_requests_wait_and_restart_but_changes_no_reply() -> None:
    backend = Scripted(pages=16)
    asks = [(prompt(i, 100 + 60 * i), 850 + 10 * i) for i in range(4)]
    with serving(backend, prompt_cache_bytes=10**6, sources={}) as (core, _):
        listeners = [Listener() for _ in asks]
        for (text, count), listener in zip(asks, listeners, strict=True):
            core.submit(request(text, listener, max_tokens=count))
        for (text, count), listener in zip(asks, listeners, strict=True):
            assert listener.wait(60).finish == "length"
            assert listener.tokens == serial(text, max_tokens=count)
        assert core.counters.restarts > 0, "the memory was scarce enough"
        assert backend.opened < 40, "who waits for memory does not ask again every round"


def test_what_can_never_fit_is_refused_with_numbers() -> None:
    with serving(Scripted(pages=4), window=4096) as (core, _):
        with pytest.raises(ContextOverflow, match=r"4096 tokens; the prompt has 4090 and the reply may have 32"):
            core.submit(request(prompt(1, 4090), Listener()))
        with pytest.raises(Refused, match="no tokens"):
            core.submit(request((), Listener()))
        big = Listener()
        core.submit(request(prompt(1, 2000), big))
        assert "no memory for a prompt of 2000 tokens: 4000 bytes are free" in big.wait().error
        assert say(core, prompt(1, 100)).summary is not None
    with pytest.raises(Unavailable):
        core.submit(request(prompt(1, 10), Listener()))


def test_short_prompts_overtake_long_ones_and_replies_go_on_while_they_are_read() -> None:
    order: list[str] = []

    class Noting(Listener):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def __call__(self, event: object) -> None:
            order.append(self.name)
            super().__call__(event)  # type: ignore[arg-type]

    slow = Scripted()
    slow.token_s = 1e-4
    with serving(slow, streams=4, sources={}, clock=time.monotonic) as (core, backend):
        talk, long, short = Noting("talk"), Noting("long"), Noting("short")
        core.submit(request(prompt(1, 20), talk, max_tokens=3000))
        while not talk.tokens:
            time.sleep(0.001)
        core.submit(request(prompt(2, 7000), long, max_tokens=4))
        while len(backend.pieces) < 3:
            time.sleep(0.001)
        core.submit(request(prompt(3, 100), short, max_tokens=4))
        long.wait()
    first_long = order.index("long")
    assert order.index("short") < first_long
    assert order[:first_long].count("talk") > 20, "the running reply was not held up by the long prompt"


def test_a_load_that_fails_is_raised_to_whoever_starts() -> None:
    def load() -> object:
        raise OSError("no such weights")

    core = Core(load)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="no such weights"):
        core.start()
    assert not core.alive


def test_who_comes_while_it_stops_is_told_so_and_does_not_wait() -> None:
    held, seen = threading.Event(), threading.Event()

    def slow(event: object) -> None:
        seen.set()
        held.wait(10)

    with serving() as (core, _):
        core.submit(request(prompt(1, 40), slow, max_tokens=50))  # type: ignore[arg-type]
        assert seen.wait(10)
        before = Listener()
        core.submit(request(prompt(2, 40), before))
        core.request_stop()
        with pytest.raises(Unavailable):
            core.submit(request(prompt(3, 40), Listener()))
        held.set()
        assert before.wait().finish == "cancelled"


def test_many_at_once_from_many_threads() -> None:
    texts = [prompt(i, 30 + 50 * (i % 7)) for i in range(24)]
    wanted = [serial(text, max_tokens=20, seed=i) for i, text in enumerate(texts)]
    with serving(Scripted(head=0.7), streams=4, prompt_cache_bytes=50_000) as (core, _):
        got: dict[int, list[int]] = {}

        def client(i: int) -> None:
            got[i] = say(core, texts[i], max_tokens=20, seed=i).tokens

        threads = [threading.Thread(target=client, args=(i,)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [got[i] for i in range(24)] == wanted
