"""The CUDA backend whole, in Triton's interpreter, against the reference backend: prompts, windows, marks, drafts, streams."""

# ruff: noqa: E402 - Triton must see whether it is interpreted before it is imported
from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

DEVICE = os.environ.get("HOMESTRETCH_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter is switched on by `make test-triton`", allow_module_level=True)
pytest.importorskip("triton")

import numpy as np
import torch
from cpu_worlds import MemoryCheckpoint, tiny_llama
from tiny_nemotron import config_of, random_tensors, write_mlx

from homestretch.engine.backends import Backend, find
from homestretch.engine.backends.cuda.drawing import Drawer
from homestretch.engine.backends.cuda.results import NOBODY
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.families import build_model
from homestretch.engine.program import QUANTUM
from homestretch.engine.types import Draw, Limits, PromptPiece, RowOut, StreamId, Window

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
LIMITS = {"window": 512, "streams": 3, "prompt_cache_bytes": 1 << 22}


@pytest.fixture(autouse=True)
def fixed_order_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies with BLAS, whose order of sums depends on a row's place; a device's tensor cores do not."""
    if DEVICE != "cpu":
        return
    from triton.runtime import interpreter

    def dot(self: object, a: object, b: object, d: object, *_: object) -> object:
        product = np.einsum("ik,kj->ij", a.data.astype(np.float32), b.data.astype(np.float32))  # type: ignore[attr-defined]
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)  # type: ignore[attr-defined]

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of block, with a latent space of the experts, biases on the Mamba products and none on the convolution."""
    options = {"moe_latent_size": 128, "mamba_proj_bias": True, "use_bias": True, "use_conv_bias": False}
    config = config_of("M*E-", mamba_num_heads=2, vocab_size=320, **options)
    return write_mlx(tmp_path_factory.mktemp("tiny") / "mlx", config, random_tensors(config, 7))


def backend(name: str, folder: Path) -> Backend:
    checkpoint = open_checkpoint(folder)
    model = build_model(checkpoint)
    made = find(name)()
    made.load(model, checkpoint, Limits(device=DEVICE, **LIMITS))
    return made


@pytest.fixture(scope="module")
def mine(folder: Path) -> Backend:
    return backend("cuda", folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Backend:
    return backend("reference", folder)


def text(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(5, 300, length).tolist())


def draw(position: int, *, temperature: float = 0.8, logprobs: int = 5) -> Draw:
    return Draw(seed=5, position=position, temperature=temperature, top_k=0, top_p=0.95, min_p=0.0, logprobs=logprobs)


def read(backend: Backend, tokens: tuple[int, ...], stream: StreamId | None = None, start: int = 0) -> tuple[StreamId, RowOut]:
    if stream is None:
        stream = backend.open(None)
        assert backend.reserve(stream, 400)
    row = backend.wait(backend.read(PromptPiece(stream=stream, start=start, tokens=tokens, draw=draw(start + len(tokens)))))[0][0]
    return stream, row


def window(stream: StreamId, start: int, tokens: tuple[int, ...], kept: int, logprobs: int = 5) -> Window:
    return Window(
        stream=stream,
        start=start,
        tokens=tokens,
        kept=kept,
        draws=tuple(draw(start + 1 + i, logprobs=logprobs) for i in range(len(tokens))),
    )


def same(a: RowOut, b: RowOut) -> None:
    """Equal up to rounding; on a device, where products are bf16, the reference's own token need not be drawn."""
    if DEVICE != "cpu":
        shared = dict(a.top).keys() & dict(b.top).keys()
        assert shared
        assert max(abs(dict(a.top)[i] - dict(b.top)[i]) for i in shared) < 0.25
        return
    assert a.token == b.token
    assert [i for i, _ in a.top] == [i for i, _ in b.top]
    assert max(abs(x - y) for (_, x), (_, y) in zip(a.top, b.top, strict=True)) < 2e-4


def test_prompts_windows_and_drafts_equal_the_reference(mine: Backend, reference: Backend) -> None:
    prompt = text(1, 131)
    (a, first), (b, other) = read(mine, prompt), read(reference, prompt)
    same(first, other)
    start, kept, tokens = len(prompt), 0, (first.token, *text(2, 3))
    for stand in (2, 1, 3):
        rows = [
            backend.wait(backend.step([window(stream, start, tokens, kept)]))[0] for backend, stream in ((mine, a), (reference, b))
        ]
        for x, y in zip(*rows, strict=True):
            same(x, y)
        bias = ((40 + stand, 30.0),) if stand == 2 else ()
        wishes = [replace(draw(start + stand + 1 + i, logprobs=0), bias=bias) for i in range(3)]
        drafts = [backend.wait(backend.draft(stream, stand, wishes, 3))[0] for backend, stream in ((mine, a), (reference, b))]
        assert DEVICE != "cpu" or [row.token for row in drafts[0]] == [row.token for row in drafts[1]]
        assert not bias or [row.token for row in drafts[0]] == [42] * 3
        start, kept = start + stand, stand
        tokens = (rows[0][stand - 1].token, *[row.token for row in drafts[0][:2]])
    mine.close(a), reference.close(b)


def test_together_is_alone_and_drafted_is_serial(mine: Backend) -> None:
    prompts = [text(seed, length) for seed, length in ((3, 18), (4, 9), (5, 7))]
    alone = []
    for prompt in prompts:
        stream, row = read(mine, prompt)
        reply, start, kept = [row], len(prompt), 0
        for _ in range(4):
            reply += mine.wait(mine.step([window(stream, start, (reply[-1].token,), kept)]))[0]
            start, kept = start + 1, 1
        mine.close(stream)
        alone.append(reply)
    streams = [read(mine, prompt)[0] for prompt in prompts]
    at = [0, 0, 0]
    kept = [0, 0, 0]
    hostile = text(9, 40)
    widths = ((3, 1, 2), (1, 4, 1), (2, 2, 3), (1, 1, 1))
    for step in widths:
        windows, keep = [], []
        for i, width in enumerate(step):
            right = [row.token for row in alone[i][at[i] : at[i] + max(1, width - 1)]]
            tokens = tuple((right + list(hostile))[:width])
            windows.append(window(streams[i], len(prompts[i]) + at[i], tokens, kept[i]))
            keep.append(sum(1 for _ in right[:width]))
        for i, rows in enumerate(mine.wait(mine.step(windows))):
            stands = min(keep[i], len(alone[i]) - 1 - at[i])
            assert list(rows[:stands]) == alone[i][at[i] + 1 : at[i] + 1 + stands]
            at[i], kept[i] = at[i] + stands, stands
        if any(len(alone[i]) - 1 - at[i] < 3 for i in range(3)):
            break
    for stream in streams:
        mine.close(stream)


def test_resumed_is_fresh(mine: Backend) -> None:
    prompt = text(6, QUANTUM + 19)
    fresh, row = read(mine, prompt)
    out = mine.wait(mine.step([window(fresh, len(prompt), (row.token, 9), 0)]))[0]
    mine.close(fresh)
    stream = mine.open(None)
    assert mine.reserve(stream, 400)
    mine.wait(mine.read(PromptPiece(stream=stream, start=0, tokens=prompt[:QUANTUM], draw=None)))
    mark = mine.mark(stream)
    assert mark is not None
    mine.close(stream)
    resumed = mine.open(mark)
    assert mine.reserve(resumed, 400)
    _, again = read(mine, prompt[QUANTUM:], resumed, QUANTUM)
    assert again == row
    assert mine.wait(mine.step([window(resumed, len(prompt), (row.token, 9), 0)]))[0] == out
    mine.close(resumed)
    mine.drop(mark)


def test_bias_and_mask_reach_the_draw(mine: Backend, reference: Backend) -> None:
    prompt = text(8, 20)
    mask = np.packbits(np.arange(320) % 3 == 0, bitorder="little").tobytes()
    wish = Draw(
        seed=1, position=20, temperature=1.0, top_k=5, top_p=0.9, min_p=0.0, bias=((33, 50.0), (34, 90.0)), mask=mask, logprobs=3
    )
    rows = []
    for backend in (mine, reference):
        stream = backend.open(None)
        backend.reserve(stream, 64)
        rows.append(backend.wait(backend.read(PromptPiece(stream=stream, start=0, tokens=prompt, draw=wish)))[0][0])
        backend.close(stream)
    assert rows[0].token == rows[1].token == 33
    assert abs(rows[0].logprob - rows[1].logprob) < (1e-3 if DEVICE == "cpu" else 0.25)


def llama() -> MemoryCheckpoint:
    """Groups of 32, grouped heads, a tied head of 8 bits, scaled rotary angles, biases on the attention's products."""
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    made = tiny_llama(4, attention_bias=True, rope_scaling=scaling)
    for name in [name for name in made.weights if "self_attn" in name]:
        made.weights[name.replace(".weight", ".bias")] = torch.randn(
            made.specs[name].shape[0], generator=torch.Generator().manual_seed(len(name))
        )
    return made


def test_a_llama_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homestretch.engine.backends.cuda.rows.PARTS", 1)  # attention's rows take turns, one at a time
    checkpoint = llama()
    model = build_model(checkpoint)
    rows, tokens = [], text(11, 21)
    for name in ("cuda", "reference"):
        made = find(name)()
        made.load(model, checkpoint, Limits(window=256, streams=1, device=DEVICE))
        stream = made.open(None)
        assert made.reserve(stream, 40)
        piece = PromptPiece(stream=stream, start=0, tokens=tokens, draw=draw(len(tokens)))
        out = list(made.wait(made.read(piece))[0])
        for start, kept in ((21, 0), (23, 2)):
            out += made.wait(made.step([window(stream, start, text(12, 3), kept)]))[0]
        with pytest.raises(ValueError, match="no pages for position"):
            made.step([window(stream, 24, text(13, 200), 1)])
        rows.append(out)
    for mine, other in zip(*rows, strict=True):
        same(mine, other)


@pytest.mark.parametrize("temperatures", [(0.0,) * 4, (0.8,) * 4, (0.0, 0.0, 0.0, 0.8)])
def test_a_row_without_a_finite_candidate_draws_nothing(temperatures: tuple[float, ...]) -> None:
    logits = torch.zeros(4, 70)
    logits[0] = float("-inf")
    logits[1, 3], logits[2, 5] = float("nan"), float("inf")
    draws = [draw(9, temperature=temperature) for temperature in temperatures]
    tokens = Drawer(vocab=70, rows=4, device=torch.device(DEVICE)).draw(logits.to(DEVICE), draws).tolist()
    assert tokens[:3] == [NOBODY] * 3
    assert 0 <= tokens[3] < 70
