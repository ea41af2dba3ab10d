"""The promise, on real arithmetic: drafted = serial, beside others = alone, resumed = fresh, for each family and backend here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cpu_worlds import tiny_llama
from scripted import Listener, demand, request
from tiny_nemotron import config_of, random_tensors, write_mlx

from homestretch.engine import backends
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.core import Core, Options
from homestretch.engine.drafts import Proposer
from homestretch.engine.drafts.copies import Copies
from homestretch.engine.families import build_model
from homestretch.engine.program import QUANTUM
from homestretch.engine.types import Limits, Sampling, WindowCosts

VOCAB = 320
WORLDS = [(family, backend) for family in ("llama", "nemotron_h") for backend in ("reference", "cpu")]
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, top_p=0.95),
    Sampling(temperature=1.0, top_k=20),
    Sampling(temperature=1.0, min_p=0.05),
)


@dataclass(frozen=True)
class Ask:
    """A request of the test: a prompt with something to copy in it, and how its reply is drawn."""

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    max_tokens: int

    @property
    def values(self) -> dict[str, Any]:
        return {"sampling": self.sampling, "seed": self.seed, "max_tokens": self.max_tokens}


def text(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    phrase = [rng.randrange(VOCAB) for _ in range(24)]
    words = [rng.randrange(VOCAB) for _ in range(length)]
    for at in range(0, length - 24, 60):
        words[at : at + 24] = phrase
    return tuple(words[:length])


def asked(i: int) -> Ask:
    sampling = SAMPLINGS[i % 4]
    if i % 5 == 4:  # favoured tokens, so that some replies repeat themselves
        sampling = replace(sampling, bias=((7, 1000.0), (8, 998.0)))
    return Ask(prompt=text(i, 9 + 43 * i), sampling=sampling, seed=100 + i, max_tokens=(24, 40, 96)[i % 3])


ASKS = tuple(asked(i) for i in range(12))


class Hostile:
    """Proposes the true reply with a share of it spoiled, up to a width, and more than was asked for."""

    def __init__(self, reply: Sequence[int], right: float, width: int, seed: int) -> None:
        self.reply, self.right, self.width, self.rng, self.at = reply, right, width, random.Random(seed), 0

    def propose(self, limit: int) -> tuple[int, ...]:
        truth = [*self.reply[self.at :], *(self.rng.randrange(VOCAB) for _ in range(20))][: self.width - 1]
        return tuple(token if self.rng.random() < self.right else self.rng.randrange(VOCAB) for token in truth)

    def settled(self, tokens: Sequence[int]) -> None:
        self.at += len(tokens)


@dataclass
class World:
    """A core on a real backend whose drafts are what a test says, and the serial reply of every request."""

    core: Core
    thorough: bool
    hostile: dict[tuple[int, ...], Hostile] = field(default_factory=dict)
    serial: list[list[int]] = field(default_factory=list)
    copying: bool = False

    def drafter(self, prompt: Sequence[int]) -> Proposer:
        hostile = self.hostile.get(tuple(prompt))
        return hostile if hostile is not None else Copies(prompt) if self.copying else Nothing()

    def say(self, ask: Ask, **changes: Any) -> Listener:
        listener = Listener()
        self.core.submit(request(ask.prompt, listener, **{**ask.values, "cache": False, **changes}))
        summary = listener.wait(60)
        demand(summary.finish != "error", summary.error)
        return listener


class Nothing:
    """Never drafts."""

    def propose(self, limit: int) -> tuple[int, ...]:
        return ()

    def settled(self, tokens: Sequence[int]) -> None:
        pass


@contextmanager
def started(family: str, name: str, folder: Path, cache_bytes: int) -> Iterator[World]:
    if family == "llama":
        checkpoint: Any = tiny_llama(seed=3)
    else:
        config = config_of()
        checkpoint = open_checkpoint(write_mlx(folder, config, random_tensors(config, 5)))
    model = build_model(checkpoint)
    kind = backends.find(name)
    reason = kind.refusal() or kind.lacks(model)
    if reason:
        pytest.skip(reason)
    backend = kind()
    made: list[World] = []

    def load() -> tuple[Any, Options, bool]:
        limits = Limits(window=1024, streams=8, threads=1, memory_bytes=1 << 33, prompt_cache_bytes=64 << 20)
        backend.load(model, checkpoint, limits)
        backend.costs = lambda: WindowCosts(rows=(1.0,) * 16, draft=0.1)  # type: ignore[method-assign]
        sources = {"copies": lambda prompt: made[0].drafter(prompt)}
        options = Options(window=1024, streams=8, sources=sources, prompt_cache_bytes=cache_bytes, clock=lambda: 0.0)
        return backend, options, model.head is not None

    core = Core(load)
    made.append(World(core, thorough=name != "reference"))
    core.start()
    try:
        made[0].serial = [made[0].say(ask, draft=False).tokens for ask in ASKS]
        yield made[0]
    finally:
        core.stop()


@pytest.fixture(scope="module", params=WORLDS, ids=lambda pair: "-".join(pair))
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with started(*request.param, tmp_path_factory.mktemp("world"), 64 << 20) as made:
        yield made


@pytest.fixture
def world(running: World) -> Iterator[World]:
    yield running
    running.hostile.clear()
    running.copying = False


@pytest.mark.parametrize("width", range(1, 17))
def test_hostile_drafts_of_every_width_change_nothing(world: World, width: int) -> None:
    for number, ask in enumerate(ASKS):
        if not world.thorough and (number + width) % 4:
            continue
        right = (0.0, 0.5, 1.0)[number % 3]
        world.hostile[ask.prompt] = Hostile(world.serial[number], right, width + number % 2 * 5, seed=width)
        got = world.say(ask, max_tokens=24)
        assert got.tokens == world.serial[number][:24]


def test_drafts_of_the_head_and_of_copies_change_nothing(world: World) -> None:
    drafted = accepted = 0
    for copying in (False, True):
        world.copying = copying
        for number, ask in enumerate(ASKS):
            got = world.say(ask)
            assert got.tokens == world.serial[number]
            drafted += got.wait().drafts.drafted
            accepted += got.wait().drafts.accepted
    assert drafted > 0
    assert accepted > 0


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("drafted", [False, True])
def test_streams_at_once_say_what_each_says_alone(world: World, count: int, drafted: bool) -> None:
    world.copying = drafted
    for first in range(0, len(ASKS) if world.thorough else count, count):
        group = [(number % len(ASKS), ASKS[number % len(ASKS)]) for number in range(first, first + count)]
        listeners = [Listener() for _ in group]
        for (_, ask), listener in zip(group, listeners, strict=True):
            world.core.submit(request(ask.prompt, listener, **ask.values, cache=False, draft=drafted))
        for (number, _), listener in zip(group, listeners, strict=True):
            listener.wait(60)
            assert listener.tokens == world.serial[number]


def test_resumed_prompts_say_what_fresh_ones_say(world: World) -> None:
    """Marks wanted anywhere, a repetition, an edit after them, a next turn with the reply in it; each against itself uncached."""
    seen = 0
    for number, ask in enumerate(ASKS[4:]):
        if not world.thorough and number % 3:
            continue
        length = len(ask.prompt)
        marks = (length // 3, 2 * length // 3)
        edited = (*ask.prompt[: 2 * length // 3 + 1], *text(90 + number, 40))
        follow = (*ask.prompt, *world.serial[number + 4], *text(70 + number, 50))
        for prompt in (ask.prompt, ask.prompt, edited, follow, ask.prompt):
            again = Ask(prompt=prompt, sampling=ask.sampling, seed=ask.seed, max_tokens=24)
            fresh = world.say(again)
            kept = world.say(again, cache=True, marks=marks)
            assert kept.tokens == fresh.tokens
            assert fresh.wait().cached_tokens == 0
            assert kept.wait().cached_tokens % QUANTUM == 0
            seen += kept.wait().cached_tokens
        assert world.say(ask, cache=True).wait().cached_tokens == (length - 1) // QUANTUM * QUANTUM
    assert seen > 0


@pytest.mark.parametrize(("family", "limit"), [("llama", 150_000), ("nemotron_h", 450_000)])
def test_evictions_change_nothing(family: str, limit: int, tmp_path: Path) -> None:
    with started(family, "reference", tmp_path, limit) as small:
        most = 0
        for _ in range(2):
            for number, ask in list(enumerate(ASKS))[5::2]:
                got = small.say(ask, cache=True, marks=(len(ask.prompt) // 2,), max_tokens=12)
                assert got.tokens == small.serial[number][:12]
                assert small.core.counters.kept_bytes <= limit
                most = max(most, small.core.counters.kept_marks)
        wanted = sum(len(ask.prompt) // QUANTUM for ask in ASKS[5::2])
        assert 0 < most < wanted, "some were kept, and some had to go"


class StopAt:
    """A watch that stops after so many tokens."""

    def __init__(self, count: int) -> None:
        self.left = count

    def push(self, token: int) -> bool:
        self.left -= 1
        return self.left == 0


def test_ends_inside_an_accepted_window(world: World) -> None:
    for number, ask in enumerate(ASKS):
        reply = world.serial[number]
        for place in (5, 11, 17) if world.thorough else (5 + number,):
            where = reply.index(reply[place])
            ways: list[tuple[dict[str, Any], int, str]] = [
                ({"ends": frozenset({reply[place]})}, where + 1, "stop"),
                ({"watch": StopAt(place)}, place, "stop"),
                ({"max_tokens": place}, place, "length"),
            ]
            for changes, count, finish in ways:
                world.hostile[ask.prompt] = Hostile(reply, 1.0, 16, seed=place)
                got = world.say(ask, **changes)
                assert got.tokens == reply[:count]
                assert (got.wait().finish, got.wait().completion_tokens) == (finish, count)
