"""A whole llama on the cpu backend: against the reference backend, and exact against itself."""

from __future__ import annotations

import pytest
from cpu_worlds import difference, greedy, loaded, read, step, tiny_llama
from cpu_worlds import drawn as drawn_of
from cpu_worlds import serial as serial_of

from homestretch.engine.backends import Backend
from homestretch.engine.types import Draw, RowOut, Window

VOCAB = 320
DECODE, PROMPT = 3e-4, 2e-2
"""Relative error of a row's logits: 16-bit decode rows, bf16 prompts."""


@pytest.fixture(scope="module")
def pair() -> tuple[Backend, Backend]:
    checkpoint = tiny_llama(3)
    return loaded("cpu", checkpoint, threads=2), loaded("reference", checkpoint)


def test_decode_rows_agree_with_the_reference(pair: tuple[Backend, Backend]) -> None:
    tokens = [(37 * i + 11) % VOCAB for i in range(200)]
    rows = []
    for backend in pair:
        stream = backend.open(None)
        got, kept = [], 0
        for at, token in enumerate(tokens):
            got += step(backend, stream, at, [token], [greedy(at + 1, logprobs=VOCAB)], kept)
            kept = 1
        rows.append(got)
        backend.close(stream)
    assert max(difference(a, b) for a, b in zip(*rows, strict=True)) < DECODE


@pytest.mark.parametrize("count", [1, 17, 128, 130, 300])
def test_prompts_agree_with_the_reference(pair: tuple[Backend, Backend], count: int) -> None:
    tokens = [(53 * i + 5) % VOCAB for i in range(count)]
    rows = []
    for backend in pair:
        stream = backend.open(None)
        rows.append(read(backend, stream, tokens, greedy(count, logprobs=VOCAB))[0])
        backend.close(stream)
    assert difference(*rows) < PROMPT


def drawn(seed: int, position: int) -> Draw:
    return drawn_of(seed, position, VOCAB)


def serial(backend: Backend, prompt: list[int], count: int, seed: int) -> list[RowOut]:
    return serial_of(backend, prompt, count, seed, VOCAB)


@pytest.mark.parametrize("width", [2, 3, 5, 8, 16])
def test_windows_of_any_width_give_the_rows_of_serial_decoding(pair: tuple[Backend, Backend], width: int) -> None:
    backend, prompt = pair[0], [(7 * i + 1) % VOCAB for i in range(121)]  # the windows cross a page border
    truth = serial(backend, prompt, 40, seed=5)
    stream = backend.open(None)
    rows = read(backend, stream, prompt, drawn(5, len(prompt)))
    kept, at = 0, 0
    while at < 40:
        # Every third draft is wrong: the rows after it must not have been.
        drafts = [truth[at + i + 1].token if (at + i) % 3 else 0 for i in range(width - 1)]
        tokens = [truth[at].token, *drafts]
        position = len(prompt) + at
        got = step(backend, stream, position, tokens, [drawn(5, position + 1 + i) for i in range(width)], kept)
        kept = 1
        while kept < width and tokens[kept] == got[kept - 1].token:
            kept += 1
        rows += got[:kept]
        at += kept
        if at + width >= 40:
            break
    assert rows == truth[: len(rows)]
    assert len(rows) > 20
    backend.close(stream)


def test_streams_beside_others_and_any_number_of_threads_give_the_same_bits() -> None:
    checkpoint = tiny_llama(4)
    prompts = [[(11 * i + k) % VOCAB for i in range(30 + 41 * k)] for k in range(8)]
    alone = [serial(loaded("cpu", checkpoint), prompt, 12, seed=k) for k, prompt in enumerate(prompts[:3])]
    for threads in (1, 2, 3):
        backend = loaded("cpu", checkpoint, threads=threads)
        streams = [backend.open(None) for _ in prompts]
        rows = [read(backend, s, prompt, drawn(k, len(prompt))) for k, (s, prompt) in enumerate(zip(streams, prompts, strict=True))]
        for at in range(12):
            windows = []
            for k, stream in enumerate(streams):
                position = len(prompts[k]) + at
                assert backend.reserve(stream, position + 1)
                windows.append(
                    Window(
                        stream=stream,
                        start=position,
                        tokens=(rows[k][-1].token,),
                        draws=(drawn(k, position + 1),),
                        kept=min(at, 1),
                    )
                )
            for k, got in enumerate(backend.wait(backend.step(windows))):
                rows[k] += got
        assert rows[:3] == alone


@pytest.mark.parametrize("cut", [128, 256])
def test_a_prompt_resumed_from_a_mark_equals_a_fresh_one(pair: tuple[Backend, Backend], cut: int) -> None:
    backend, prompt = pair[0], [(13 * i + 2) % VOCAB for i in range(300)]
    fresh = serial(backend, prompt, 6, seed=9)
    first = backend.open(None)
    read(backend, first, prompt[:cut], None)
    mark = backend.mark(first)
    assert mark is not None
    backend.close(first)
    for _ in range(2):
        stream = backend.open(mark)
        rows = read(backend, stream, prompt[cut:], drawn(9, len(prompt)), start=cut)
        for at in range(6):
            position = len(prompt) + at
            rows += step(backend, stream, position, [rows[-1].token], [drawn(9, position + 1)], min(at, 1))
        backend.close(stream)
        assert rows == fresh
    backend.drop(mark)
    assert backend.free_bytes() > 0


def test_int8_activations_are_coarser_but_close() -> None:
    checkpoint = tiny_llama(5)
    rows = []
    for backend in (loaded("cpu", checkpoint, activations="int8"), loaded("reference", checkpoint)):
        stream = backend.open(None)
        rows.append(step(backend, stream, 0, [17], [greedy(1, logprobs=VOCAB)], 0)[0])
    assert DECODE < difference(*rows) < 5e-2
