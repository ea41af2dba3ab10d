"""Exactness of the hybrid family through the core: drafted = serial, beside others = alone, resumed = fresh, ends in windows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scripted import Listener, request
from tiny_nemotron import config_of, random_tensors, write_mlx

from homestretch.engine.backends import find
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.core import Core, Options
from homestretch.engine.drafts.copies import Copies
from homestretch.engine.families import build_model
from homestretch.engine.types import Limits, Sampling, WindowCosts

VOCAB = 320
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, top_p=0.95),
    Sampling(temperature=1.0, top_k=20),
    Sampling(temperature=1.0, top_p=0.95, min_p=0.05),
    Sampling(temperature=0.7, presence_penalty=0.5, frequency_penalty=0.3, bias=((9, 2.0), (10, -5.0))),
)
CHEAP = WindowCosts(rows=tuple(1.0 + 0.001 * row for row in range(16)), draft=0.0)
"""Costs that make the deepest windows worth while: the reference backend's own would never let it draft."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request apart from how it is served."""

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    max_tokens: int

    def values(self) -> dict[str, Any]:
        return {"sampling": self.sampling, "seed": self.seed, "max_tokens": self.max_tokens}


def noise(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(5, VOCAB) for _ in range(length))


def repeated(seed: int, length: int) -> tuple[int, ...]:
    """Text that says everything several times, so that copies are proposed."""
    part = noise(seed, 23)
    return (part * (length // len(part) + 1))[:length]


ASKS = tuple(
    Ask(
        prompt=(repeated if i % 3 == 0 else noise)(i, (3, 20, 127, 128, 129, 300)[i % 6]),
        sampling=SAMPLINGS[i % len(SAMPLINGS)],
        seed=i,
        max_tokens=96 if i % 5 == 0 else (16, 24, 40, 32)[i % 4],
    )
    for i in range(30)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of its own random weights stands rarely; this one shares the main program's attention and experts, and stands more."""
    config = config_of("ME*-E", residual_in_fp32=True)
    tensors = random_tensors(config, 3)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * 0.7
    return write_mlx(tmp_path_factory.mktemp("exact"), config, tensors)


@pytest.fixture(scope="module", params=["cpu", "reference"])
def backend(request: pytest.FixtureRequest, folder: Path) -> Any:
    """The fast backend takes every request, the slow one some."""
    refusal = find(request.param).refusal()
    if refusal:
        pytest.skip(refusal)
    checkpoint = open_checkpoint(folder)
    made: Any = find(request.param)()
    limits = Limits(window=4096, streams=8, memory_bytes=8 << 30, prompt_cache_bytes=1 << 28, threads=1)
    made.load(build_model(checkpoint), checkpoint, limits)
    made.costs = lambda: CHEAP
    return made


@contextmanager
def serving(backend: Any, **changes: Any) -> Iterator[Core]:
    # Time stands still, so that costs stay what the backend says.
    values: dict[str, Any] = {"window": 4096, "streams": 8, "prompt_cache_bytes": 0, "clock": lambda: 0.0, **changes}
    core = Core(lambda: (backend, Options(**values), True))
    core.start()
    try:
        yield core
    finally:
        core.stop()


def say(core: Core, prompt: Sequence[int], **values: Any) -> Listener:
    listener = Listener()
    core.submit(request(prompt, listener, **values))
    summary = listener.wait(60.0)
    assert summary.finish != "error", summary.error
    return listener


def serial(backend: Any, prompt: Sequence[int], **values: Any) -> list[int]:
    with serving(backend, sources={}, head=False) as core:
        return say(core, prompt, draft=False, cache=False, **values).tokens


@pytest.fixture(scope="module")
def plain(backend: Any) -> Mapping[Ask, list[int]]:
    """Every request by itself, one token at a time."""
    return {ask: serial(backend, ask.prompt, **ask.values()) for ask in (ASKS if backend.name == "cpu" else ASKS[:8])}


@pytest.mark.parametrize(
    "options",
    [{"sources": {"copies": Copies}, "head": True}, {"sources": {}, "head": True}, {"sources": {"copies": Copies}, "head": False}],
    ids=["copies and mtp", "mtp", "copies"],
)
def test_a_drafted_reply_is_the_serial_one(options: dict[str, Any], backend: Any, plain: Mapping[Ask, list[int]]) -> None:
    stood = {"copies": 0, "mtp": 0, "drafted": 0}
    with serving(backend, **options) as core:
        for ask, wanted in plain.items():
            got = say(core, ask.prompt, cache=False, **ask.values())
            assert got.tokens == wanted
            assert got.summary is not None
            counts = got.summary.drafts
            stood["copies"] += counts.accepted_copies
            stood["mtp"] += counts.accepted_mtp
            stood["drafted"] += counts.drafted
    assert stood["drafted"] > (4 * len(plain) if options["head"] else 0)
    assert (stood["mtp"] > 0) == options["head"]
    assert (stood["copies"] > 0) == bool(options["sources"])


def test_draft_false_runs_serially_in_the_same_engine(backend: Any, plain: Mapping[Ask, list[int]]) -> None:
    with serving(backend) as core:
        for ask, wanted in plain.items():
            got = say(core, ask.prompt, draft=False, cache=False, **ask.values())
            assert got.tokens == wanted
            assert got.summary is not None
            assert got.summary.drafts.drafted == 0


class Hostile:
    """Windows of one width: the truth with a share of it spoiled; or noise; or more than was asked for."""

    def __init__(self, truth: Sequence[int], *, right: float, width: int) -> None:
        self.truth, self.right, self.width, self.at = list(truth), right, width, 0
        self.rng = random.Random(width)

    def propose(self, limit: int) -> tuple[int, ...]:
        ahead = (self.truth[self.at :] + [self.rng.randrange(VOCAB) for _ in range(20)])[: self.width]
        return tuple(token if self.rng.random() < self.right else self.rng.randrange(VOCAB) for token in ahead)

    def settled(self, tokens: Sequence[int]) -> None:
        self.at += len(tokens)


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("head", [False, True], ids=["no head", "head absorbs"])
def test_no_drafter_changes_a_reply_at_any_width(right: float, head: bool, backend: Any, plain: Mapping[Ask, list[int]]) -> None:
    rows = 0
    for width in range(1, 17):
        ask = list(plain)[width % len(plain)]
        wanted = plain[ask][:20]
        make: Callable[[Sequence[int]], Hostile] = lambda _, w=width, t=wanted: Hostile(t, right=right, width=w)  # noqa: E731
        with serving(backend, sources={"copies": make}, head=head) as core:
            got = say(core, ask.prompt, cache=False, **{**ask.values(), "max_tokens": len(wanted)})
        assert got.tokens == wanted
        assert got.summary is not None
        rows += got.summary.drafts.drafted
    assert rows > 100


@pytest.mark.parametrize("count", [2, 4, 8])
def test_beside_others_is_alone(count: int, backend: Any, plain: Mapping[Ask, list[int]]) -> None:
    asks = list(plain)
    random.Random(count).shuffle(asks)
    with serving(backend) as core:
        for first in range(0, len(asks), count):
            group = [(ask, Listener()) for ask in asks[first : first + count]]
            for i, (ask, listener) in enumerate(group):
                core.submit(request(ask.prompt, listener, draft=i % 4 != 3, cache=False, **ask.values()))
            for ask, listener in group:
                listener.wait(60.0)
                assert listener.tokens == plain[ask]


def test_resumed_is_fresh_at_every_kind_of_mark(backend: Any) -> None:
    """The end of the system block, the last user message, the grid, a repeated prompt; edits, regenerations, longer turns."""
    checked = cached = 0
    for seed, sampling in enumerate(SAMPLINGS if backend.name == "cpu" else SAMPLINGS[:2]):
        system, user = noise(100 + seed, 150 + 40 * seed), noise(200 + seed, 190)
        turn = (*system, *user)
        values: dict[str, Any] = {"sampling": sampling, "max_tokens": 20}
        with serving(backend, prompt_cache_bytes=1 << 28) as core:
            reply = say(core, turn, marks=(len(system),), seed=seed, **values).tokens
            texts: list[tuple[tuple[int, ...], int]] = [
                (turn, seed),  # the same again
                (turn, seed + 50),  # regenerated
                ((*system, *noise(300 + seed, 77)), seed),  # another question after the system block
                ((*turn[:-60], *noise(400 + seed, 60)), seed),  # the question edited near its end
                ((*turn, *reply, *noise(500 + seed, 140)), seed),  # the next turn reads the reply as a prompt
                ((*turn, *reply, *noise(500 + seed, 140), *noise(600 + seed, 90)), seed),
            ]
            for text, own in texts:
                got = say(core, text, marks=(len(system), len(turn)), seed=own, **values)
                # The second core's calls fall between those of the first, which has nothing to do: one thread at a time.
                assert got.tokens == serial(backend, text, seed=own, **values)
                assert got.summary is not None
                cached += got.summary.cached_tokens
                checked += 1
    assert checked in (30, 12)
    assert cached > checked * 128


def test_resumed_is_fresh_on_the_coarse_grid_and_after_evictions(backend: Any) -> None:
    long = noise(1, 2300)
    values: dict[str, Any] = {"sampling": SAMPLINGS[1], "max_tokens": 16, "seed": 5}
    other = (*long[:2100], *noise(2, 150))
    wanted = {text: serial(backend, text, **values) for text in (long, other)}
    with serving(backend, prompt_cache_bytes=1 << 28) as core:
        assert say(core, long, **values).tokens == wanted[long]
        got = say(core, other, **values)
        assert got.tokens == wanted[other]
        assert got.summary is not None
        assert got.summary.cached_tokens == 2048
    texts = [noise(i % 4, 300 + i) for i in range(10)]
    fresh = [serial(backend, text, **values) for text in texts]
    small = 3 * (200 << 10)
    with serving(backend, prompt_cache_bytes=small) as core:
        for text, reply in zip(texts * 2, fresh * 2, strict=True):
            assert say(core, text, **values).tokens == reply
            assert core.counters.kept_bytes <= small


class StopAt:
    """A watch that is complete after some tokens in a row, as a stop string is."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.seen = list(tokens), [0] * len(tokens)

    def push(self, token: int) -> bool:
        self.seen = [*self.seen[1:], token]
        return self.seen == self.tokens


def test_ends_inside_an_accepted_window_end_the_reply_there(backend: Any, plain: Mapping[Ask, list[int]]) -> None:
    ended = 0
    for ask, wanted in list(plain.items())[:8]:
        make: Callable[[Sequence[int]], Hostile] = lambda _, t=wanted: Hostile(t, right=1.0, width=15)  # noqa: E731
        with serving(backend, sources={"copies": make}) as core:
            for at in (1, 5, 9):
                cut = wanted[: wanted.index(wanted[at]) + 1]
                got = say(core, ask.prompt, cache=False, **{**ask.values(), "ends": frozenset({wanted[at]})})
                assert got.tokens == cut
                assert got.summary is not None
                assert got.summary.finish == "stop"
                got = say(core, ask.prompt, cache=False, watch=StopAt(wanted[at - 1 : at + 1]), **ask.values())
                pairs = list(pairwise(wanted))
                assert got.tokens == wanted[: pairs.index((wanted[at - 1], wanted[at])) + 2]
                got = say(core, ask.prompt, cache=False, **{**ask.values(), "max_tokens": at})
                assert got.tokens == wanted[:at]
                assert got.summary is not None
                assert got.summary.finish == "length"
                ended += 3
    assert ended == 72
