"""The reference backend's promises on tiny models: alone = beside others, drafted = serial, resumed = fresh; plans; refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Storage
from hypothesis import given, settings
from hypothesis import strategies as st
from promises import VOCAB, Writer, prompt_of, read, sampled, serial
from tiny_gguf import HEADS, HIDDEN, LAYERS, write_tiny
from tiny_nemotron import config_of, random_tensors, write_hf

from homestretch.engine.backends import find, names, planning
from homestretch.engine.backends.reference import Backend, drawing
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.errors import SetupError
from homestretch.engine.families import build_model
from homestretch.engine.program import QUANTUM
from homestretch.engine.types import FromTicket, Limits, Mark, PromptPiece, Window

LIMITS = Limits(window=512, streams=6, prompt_cache_bytes=16 << 20)


def load(path: Path, limits: Limits = LIMITS) -> Backend:
    checkpoint = open_checkpoint(path)
    backend = Backend()
    backend.load(build_model(checkpoint), checkpoint, limits)
    return backend


def tiny(family: str, folder: Path) -> Path:
    """A tiny checkpoint of a family: a packed GGUF, or a hybrid with every kind of block and an MTP head."""
    if family == "llama":
        write_tiny(folder / "tiny.gguf", storage=Storage.Q4_1)
        return folder / "tiny.gguf"
    return write_hf(folder, config := config_of(), random_tensors(config, 1))


@pytest.fixture(scope="module", params=["llama", "nemotron_h"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    return load(tiny(request.param, tmp_path_factory.mktemp(request.param)))


REPLY = 12


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_windows_and_company_change_no_bit(backend: Backend, data: st.DataObject) -> None:
    """Streams with prompts of any length, read in any pieces, write beside each other with drafts good and bad: all rows equal."""
    free = backend.free_bytes()
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=3))
    prompts = [prompt_of(length, seed) for seed, length in enumerate(lengths)]
    alone = [serial(backend, prompt, REPLY + 20) for prompt in prompts]
    writers = []
    for prompt in prompts:
        stream = backend.open(None)
        cuts = data.draw(st.sets(st.sampled_from([QUANTUM, 2 * QUANTUM])))
        writers.append(Writer(backend, prompt, read(backend, stream, prompt, cuts=sorted(cuts)), stream))
    while any(len(writer.rows) < REPLY for writer in writers):
        busy = [at for at, writer in enumerate(writers) if len(writer.rows) < REPLY]
        windows = []
        for at in data.draw(st.permutations(busy)):
            right = data.draw(st.integers(0, 5))
            ahead = [row.token for row in alone[at][len(writers[at].rows) :]][:right]
            wrong = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=3))
            windows.append((at, writers[at].window([*ahead, *wrong])))
        results = backend.wait(backend.step([window for _, window in windows]))
        for (at, window), rows in zip(windows, results, strict=True):
            writers[at].settle(window, rows)
    for at, writer in enumerate(writers):
        assert writer.rows == alone[at][: len(writer.rows)]
        backend.close(writer.stream)
    assert backend.free_bytes() == free


@given(st.integers(1, 2), st.integers(1, 200), st.booleans())
@settings(max_examples=10, deadline=None)
def test_resumed_is_fresh(backend: Backend, tiles: int, more: int, decode_between: bool) -> None:
    free = backend.free_bytes()
    prompt = prompt_of(tiles * QUANTUM + more, seed=3)
    expected = serial(backend, prompt, REPLY)
    source = backend.open(None)
    assert backend.reserve(source, len(prompt))
    backend.wait(backend.read(PromptPiece(stream=source, start=0, tokens=prompt[: tiles * QUANTUM], draw=None)))
    mark = backend.mark(source)
    assert mark is not None
    assert mark.position == tiles * QUANTUM
    if decode_between:
        writer = Writer(backend, prompt, read(backend, source, prompt, start=mark.position), source)
        window = writer.window((1, 2, 3))
        backend.wait(backend.step([window]))
    backend.close(source)
    streams = [backend.open(mark), backend.open(mark)]
    backend.drop(mark)
    for stream in streams:
        writer = Writer(backend, prompt, read(backend, stream, prompt, start=tiles * QUANTUM), stream)
        while len(writer.rows) < REPLY:
            window = writer.window(())
            writer.settle(window, backend.wait(backend.step([window]))[0])
        assert writer.rows == expected[: len(writer.rows)]
    for stream in streams:
        backend.close(stream)
    assert backend.free_bytes() == free


def test_a_token_may_come_from_a_running_step(backend: Backend) -> None:
    prompt = prompt_of(20, seed=5)
    expected = serial(backend, prompt, 4)
    stream = backend.open(None)
    first = read(backend, stream, prompt)
    backend.reserve(stream, 40)
    one = backend.step([Window(stream=stream, start=20, tokens=(first.token,), draws=(sampled(21),), kept=0)])
    later = FromTicket(ticket=one, window=0, row=0)
    two = backend.step([Window(stream=stream, start=21, tokens=(later,), draws=(sampled(22),), kept=1)])
    assert [first, backend.wait(one)[0][0], backend.wait(two)[0][0]] == expected[:3]
    backend.close(stream)


def test_a_stream_may_be_closed_in_flight(backend: Backend) -> None:
    free = backend.free_bytes()
    prompt = prompt_of(10)
    streams = [backend.open(None), backend.open(None)]
    firsts = [read(backend, stream, prompt) for stream in streams]
    for stream in streams:
        backend.reserve(stream, 20)
    windows = [
        Window(stream=stream, start=10, tokens=(first.token,), draws=(sampled(11),), kept=0)
        for stream, first in zip(streams, firsts, strict=True)
    ]
    ticket = backend.step(windows)
    backend.close(streams[0])
    rows = backend.wait(ticket)
    assert rows[0] == rows[1]
    backend.close(streams[1])
    assert backend.free_bytes() == free


def test_room_is_given_once_and_comes_back(tmp_path: Path) -> None:
    write_tiny(tmp_path / "t.gguf")
    backend = load(tmp_path / "t.gguf", Limits(window=2 * QUANTUM, streams=2))
    first, second, third = (backend.open(None) for _ in range(3))
    assert backend.reserve(first, 2 * QUANTUM)
    assert backend.reserve(second, QUANTUM + 1)
    assert not backend.reserve(third, 1)
    assert backend.free_bytes() == 0
    backend.close(first)
    assert backend.reserve(third, 2 * QUANTUM)


def test_marks_stand_where_prompt_arithmetic_made_the_state(tmp_path: Path) -> None:
    backend = load(tiny("llama", tmp_path))
    stream = backend.open(None)
    with pytest.raises(ValueError, match="position 0 cannot be marked"):
        backend.mark(stream)
    read(backend, stream, prompt_of(QUANTUM))
    backend.reserve(stream, 2 * QUANTUM)
    mark = backend.mark(stream)
    assert isinstance(mark, Mark)
    again = backend.mark(stream)
    assert again is not None
    assert mark.bytes == QUANTUM * LAYERS * 2 * (HIDDEN // HEADS) * 2 * 4
    assert again.bytes == 0, "a second mark of the same pages costs nothing"
    backend.step([Window(stream=stream, start=QUANTUM, tokens=(5,), draws=(sampled(QUANTUM + 1),), kept=0)])
    with pytest.raises(ValueError, match="cannot be marked"):
        backend.mark(stream)
    backend.close(stream)
    backend.drop(mark)
    backend.drop(again)
    small = load(tmp_path / "tiny.gguf", Limits(window=512, streams=2, prompt_cache_bytes=1 << 15))
    stream = small.open(None)
    read(small, stream, prompt_of(2 * QUANTUM))
    assert small.mark(stream) is None, "the prompt cache holds one page, the mark needs two"


def test_the_states_of_marks_count_too(tmp_path: Path) -> None:
    """A hybrid's mark holds recurrent states: a prompt cache one byte short of two marks takes one."""
    checkpoint = open_checkpoint(tiny("nemotron_h", tmp_path))
    model = build_model(checkpoint)
    slots = (*model.main.slots, *(model.head.slots if model.head else ()))
    page = sum(slot.elements for slot in slots if slot.per == "token") * QUANTUM * 4
    state = sum(slot.elements for slot in slots if slot.per == "stream") * 4
    hybrid = Backend()
    hybrid.load(model, checkpoint, Limits(window=512, streams=2, prompt_cache_bytes=2 * page + 2 * state - 1))
    marks = []
    for seed in (1, 2):
        stream = hybrid.open(None)
        read(hybrid, stream, tuple(token % 300 for token in prompt_of(QUANTUM, seed)))
        marks.append(hybrid.mark(stream))
        hybrid.close(stream)
    assert [mark and mark.bytes for mark in marks] == [page + state, None]


def test_calls_that_cannot_be_are_refused(backend: Backend) -> None:
    stream = backend.open(None)
    read(backend, stream, prompt_of(10))
    backend.reserve(stream, 40)
    with pytest.raises(ValueError, match="window at 9 cannot follow"):
        backend.step([Window(stream=stream, start=9, tokens=(1,), draws=(sampled(10),), kept=0)])
    with pytest.raises(ValueError, match="as many draws"):
        backend.step([Window(stream=stream, start=10, tokens=(1, 2), draws=(sampled(11),), kept=0)])
    with pytest.raises(ValueError, match="no pages for position 128: room for 128 tokens was reserved"):
        backend.step([Window(stream=stream, start=128, tokens=(1,), draws=(sampled(129),), kept=0)])
    with pytest.raises(ValueError, match="no pages for position 299"):
        backend.read(PromptPiece(stream=backend.open(None), start=0, tokens=prompt_of(300), draw=None))
    with pytest.raises(ValueError, match="rows cannot stand"):
        backend.step([Window(stream=stream, start=10, tokens=(1,), draws=(sampled(11),), kept=3)])
    backend.close(stream)


def test_a_model_without_a_head_drafts_nothing(tmp_path: Path) -> None:
    llama = load(tiny("llama", tmp_path))
    with pytest.raises(ValueError, match="no MTP head"):
        llama.draft(llama.open(None), 0, (), 1)


def test_an_untied_head_and_other_storage_agree_with_their_dense_form(tmp_path: Path) -> None:
    """The same numbers stored packed and as F32 give the same logits: packing is exact from end to end."""
    meant = write_tiny(tmp_path / "packed.gguf", storage=Storage.Q4_0, tied=False)
    write_tiny(tmp_path / "dense.gguf", tied=False, tensors=meant)
    prompt = prompt_of(150)
    assert serial(load(tmp_path / "packed.gguf"), prompt, 6) == serial(load(tmp_path / "dense.gguf"), prompt, 6)


def test_nan_is_said_and_not_drawn(tmp_path: Path) -> None:
    write_tiny(tmp_path / "t.gguf", tensors={"output_norm.weight": np.full((HIDDEN,), 3e38)})
    backend = load(tmp_path / "t.gguf")
    stream = backend.open(None)
    with pytest.raises(FloatingPointError):
        read(backend, stream, prompt_of(5))


def test_costs_are_measured(backend: Backend) -> None:
    costs = backend.costs()
    assert len(costs.rows) == 16
    assert 0 < costs.rows[0] < costs.rows[15] < 10
    assert 0 <= costs.draft < 10


def test_plan_adds_up(tmp_path: Path) -> None:
    write_tiny(tmp_path / "t.gguf", storage=Storage.Q4_1)
    model = build_model(open_checkpoint(tmp_path / "t.gguf"))
    plan = Backend().plan(model, Limits(window=500, streams=3, memory_bytes=100 << 20, prompt_cache_bytes=1 << 20))
    elements = sum(int(np.prod(spec.shape)) for spec in model.weights.values() if spec.shared_with is None)
    assert plan.model_bytes == elements * 4
    assert plan.kv_bytes_per_token == LAYERS * 2 * (HIDDEN // HEADS) * 2 * 4
    assert plan.stream_bytes == 4 * QUANTUM * plan.kv_bytes_per_token, "whole pages"
    assert plan.left_bytes == (100 << 20) - plan.model_bytes - (1 << 20) - 3 * plan.stream_bytes
    stored = planning.plan(
        model,
        Limits(window=500, memory_bytes=100 << 20),
        available=100 << 20,
        weight_bytes=lambda spec: spec.stored_bytes,
        kv_element=2,
    )
    assert stored.streams == planning.MOST_STREAMS
    assert stored.model_bytes < plan.model_bytes / 4


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"memory_bytes": 1000}, "the model needs 0.00 GiB"),
        ({"window": 10**9, "memory_bytes": 1 << 30}, r"do not fit .* a window of [\d,]+ tokens would fit"),
        ({"streams": 4000, "memory_bytes": 1 << 28}, r"do not fit .* or \d+ streams"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    write_tiny(tmp_path / "t.gguf")
    model = build_model(open_checkpoint(tmp_path / "t.gguf"))
    with pytest.raises(SetupError, match=fault):
        Backend().plan(model, replace(Limits(window=512), **change))


def test_the_window_that_is_named_fits(tmp_path: Path) -> None:
    import re

    write_tiny(tmp_path / "t.gguf")
    model = build_model(open_checkpoint(tmp_path / "t.gguf"))
    limits = Limits(window=10**9, memory_bytes=1 << 24)
    with pytest.raises(SetupError) as refused:
        Backend().plan(model, limits)
    largest = int(re.findall(r"a window of ([\d,]+) tokens would", str(refused.value))[0].replace(",", ""))
    assert Backend().plan(model, replace(limits, window=largest)).streams == 1
    with pytest.raises(SetupError):
        Backend().plan(model, replace(limits, window=largest + 1))


def test_found_by_name_and_honest_about_devices() -> None:
    assert "reference" in names()
    assert find("reference") is Backend
    assert Backend.refusal() is None
    if not torch.cuda.is_available():
        assert "leave --device out" in (Backend.refusal("cuda") or "")
    assert "no device 'nonsense'" in (Backend.refusal("nonsense") or "")


def test_the_draw_is_the_shared_one() -> None:
    from homestretch.engine import draws

    assert drawing is draws
