"""The MTP head: provably wired right. A planted head is always right, a miswired one hardly ever; logits follow the formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from planted_nemotron import BOS, SIZE, planted_config, planted_tensors
from tiny_nemotron import Tensors, config_of, random_tensors, write_hf
from torch.nn import functional

from homestretch.engine.backends import find
from homestretch.engine.backends.reference import mtp
from homestretch.engine.backends.reference.machine import Machine
from homestretch.engine.backends.reference.stream import Stream
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.families import build_model
from homestretch.engine.program import QUANTUM, Concat, Model, Program, RmsNorm
from homestretch.engine.types import Draw, Limits, Mark, PromptPiece, Window

PROMPT = QUANTUM + 50
DEPTH = 4


def load(folder: Path, change: Callable[[Model], Model] = lambda model: model, name: str = "reference") -> tuple[Model, Any]:
    reason = find(name).refusal()
    if reason:
        pytest.skip(reason)
    checkpoint = open_checkpoint(folder)
    model = change(build_model(checkpoint))
    backend = find(name)()
    backend.load(model, checkpoint, Limits(window=512, streams=2, memory_bytes=1 << 33, prompt_cache_bytes=1 << 26, threads=1))
    return model, backend


def wish(position: int, temperature: float) -> Draw:
    return Draw(seed=11, position=position, temperature=temperature, top_k=0, top_p=0.95, min_p=0.0)


def accepted(
    backend: Any, prompt: Sequence[int], *, rounds: int, temperature: float, depth: int = DEPTH, mark: Mark | None = None
) -> float:
    """Share of drafts that stood, of those whose drafts before them stood."""
    stream = backend.open(mark)
    at = mark.position if mark else 0
    backend.reserve(stream, len(prompt) + rounds * (depth + 1) + depth + 2)
    ((first,),) = backend.wait(
        backend.read(PromptPiece(stream=stream, start=at, tokens=tuple(prompt[at:]), draw=wish(len(prompt), temperature)))
    )
    start, pending, kept, hits, tried = len(prompt), first.token, 0, 0, 0
    for _ in range(rounds):
        draws = [wish(start + 1 + link, temperature) for link in range(depth)]
        drafts = [row.token for row in backend.wait(backend.draft(stream, kept, draws, depth))[0]]
        window = Window(
            stream=stream,
            start=start,
            tokens=(pending, *drafts),
            draws=tuple(wish(start + 1 + row, temperature) for row in range(depth + 1)),
            kept=kept,
        )
        (rows,) = backend.wait(backend.step([window]))
        right = 0
        while right < depth and drafts[right] == rows[right].token:
            right += 1
        hits, tried = hits + right, tried + min(right + 1, depth)
        kept, pending = right + 1, rows[right].token
        start += kept
    backend.close(stream)
    return hits / tried


def prompt_of(seed: int, length: int = PROMPT) -> list[int]:
    tokens: list[int] = torch.randint(2, SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [BOS, *tokens[1:]]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("planted"), planted_config(), planted_tensors(5))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("depth", [1, 4, 15])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_planted_head_is_always_right(planted: Path, temperature: float, depth: int, name: str) -> None:
    _, backend = load(planted, name=name)
    assert accepted(backend, prompt_of(1), rounds=60 // depth, temperature=temperature, depth=depth) == 1.0


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_planted_head_is_right_behind_a_mark(planted: Path, name: str) -> None:
    """Two branches of one mark: each absorbs the row that the mark lacks with its own first token."""
    _, backend = load(planted, name=name)
    base = prompt_of(2, 2 * QUANTUM)
    stream = backend.open(None)
    backend.reserve(stream, len(base))
    backend.wait(backend.read(PromptPiece(stream=stream, start=0, tokens=tuple(base), draw=None)))
    mark = backend.mark(stream)
    assert mark is not None
    backend.close(stream)
    for seed in (3, 4):
        branch = base + prompt_of(seed, 20)[1:]
        assert accepted(backend, branch, rounds=12, temperature=1.0, mark=mark) == 1.0


def swap_concat(model: Model) -> Model:
    if model.head is None:
        raise AssertionError("the checkpoint has no head")
    ops = tuple(replace(op, ins=op.ins[::-1]) if op.kind is Concat else op for op in model.head.ops)
    return replace(model, head=replace(model.head, ops=ops))


def hidden_before_the_norm(model: Model) -> Model:
    last = next(op for op in reversed(model.main.ops) if op.kind is RmsNorm)
    return replace(model, main=replace(model.main, outputs={**model.main.outputs, "hidden": last.ins[0]}))


@pytest.mark.parametrize("fault", [swap_concat, hidden_before_the_norm])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_miswired_program_is_hardly_ever_right(planted: Path, fault: Callable[[Model], Model], name: str) -> None:
    _, backend = load(planted, fault, name)
    assert accepted(backend, prompt_of(1), rounds=80, temperature=0.0, depth=1) <= 0.2


def test_an_absorption_off_by_one_is_hardly_ever_right(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt's tiles pair a token with its own hidden instead of the one before it; every later row is right."""
    _, backend = load(planted)

    def unshifted(machine: Machine, head: Program, stream: Stream, start: int, tokens: Sequence[int], hidden: torch.Tensor) -> None:
        machine.tile(head, tokens, stream.memory, start, hidden=hidden, first=stream.head_first)
        stream.head = start + len(tokens)

    monkeypatch.setattr(mtp, "absorb_tile", unshifted)
    assert accepted(backend, prompt_of(1), rounds=40, temperature=0.0, depth=1) <= 0.2


def test_a_head_that_missed_rounds_starts_again(planted: Path) -> None:
    """Serial rounds without any call of draft, then drafts: the head sees less of the text, and nothing breaks."""
    _, backend = load(planted)
    stream, prompt = backend.open(None), prompt_of(6)
    backend.reserve(stream, len(prompt) + 20)
    piece = PromptPiece(stream=stream, start=0, tokens=tuple(prompt), draw=wish(len(prompt), 0.0))
    ((row,),) = backend.wait(backend.read(piece))
    start = len(prompt)
    for round_ in range(4):
        window = Window(stream=stream, start=start, tokens=(row.token,), draws=(wish(start + 1, 0.0),), kept=min(round_, 1))
        ((row,),) = backend.wait(backend.step([window]))
        start += 1
    drafts = backend.wait(backend.draft(stream, 1, [wish(start + 1, 0.0)], 1))[0]
    assert len(drafts) == 1
    assert backend._streams[stream].head_first == start - 1


def transcribed(t: Tensors, tokens: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
    """The head's formula written out for a whole text: rows (token j+1, hidden j) to logits of token j+2. TINY's sizes."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * t[name].float()

    e = norm(t["backbone.embeddings.weight"].float()[list(tokens[1:])], "mtp.layers.0.enorm.weight")
    h = norm(hidden, "mtp.layers.0.hnorm.weight")
    x = torch.cat((e, h), -1) @ t["mtp.layers.0.eh_proj.weight"].float().T
    y = norm(x, "mtp.layers.0.norm.weight")
    q, k, v = ((y @ t[f"mtp.layers.0.mixer.{n}_proj.weight"].float().T).reshape(len(y), -1, 32).transpose(0, 1) for n in "qkv")
    k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    causal = torch.ones(len(y), len(y), dtype=torch.bool).triu(1)
    shares = (q @ k.transpose(1, 2) / 32**0.5).masked_fill(causal, -torch.inf).softmax(-1)
    x = x + (shares @ v).transpose(0, 1).reshape(len(y), -1) @ t["mtp.layers.0.mixer.o_proj.weight"].float().T
    y = norm(x, "mtp.layers.1.norm.weight")
    at = "mtp.layers.1.mixer"
    scores = torch.sigmoid(y @ t[f"{at}.gate.weight"].float().T)
    made = []
    for row, score in zip(y, scores, strict=True):
        chosen = (score + t[f"{at}.gate.e_score_correction_bias"]).topk(3).indices
        total = functional.relu(row @ t[f"{at}.shared_experts.up_proj.weight"].float().T) ** 2
        total = total @ t[f"{at}.shared_experts.down_proj.weight"].float().T
        for expert in chosen.tolist():
            inner = functional.relu(row @ t[f"{at}.experts.{expert}.up_proj.weight"].float().T) ** 2
            share = 2.5 * score[expert] / score[chosen].sum()
            total = total + share * (inner @ t[f"{at}.experts.{expert}.down_proj.weight"].float().T)
        made.append(total)
    out = norm(x + torch.stack(made), "mtp.layers.1.final_layernorm.weight")
    return out @ t["lm_head.weight"].float().T


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_logits_follow_the_formula(seed: int, tmp_path: Path) -> None:
    config = config_of("ME*-ME")
    tensors = random_tensors(config, seed)
    model, backend = load(write_hf(tmp_path, config, tensors))
    head = model.head
    assert head is not None
    tokens = torch.randint(5, 320, (PROMPT,), generator=torch.Generator().manual_seed(seed)).tolist()
    stream = backend._streams[backend.open(None)]
    stream.memory.cover(PROMPT)
    hiddens, logits = [], []
    for start in range(0, PROMPT, QUANTUM):
        part = tokens[start : start + QUANTUM]
        hidden = backend._machine.tile(model.main, part, stream.memory, start).hidden
        before = stream.last_hidden if stream.last_hidden is not None else torch.zeros_like(hidden[:1])
        rows = tuple(range(len(part)))
        shifted = torch.cat((before, hidden[:-1]))
        out = backend._machine.tile(head, part, stream.memory, start, hidden=shifted, first=1, asked=rows)
        stream.last_hidden = hidden[len(part) - 1 : len(part)]
        hiddens.append(hidden[: len(part)])
        logits.append(out.logits)
    wanted = transcribed(tensors, tokens, torch.cat(hiddens)[:-1])
    mine = torch.cat(logits)[1:]
    assert float((mine - wanted).abs().max() / wanted.abs().max()) <= 1e-5
    last = torch.cat(hiddens)[-2:-1]
    row = backend._machine.row(head, tokens[-1], stream.memory, PROMPT - 1, 0, hidden=last, first=1).logits[0]
    assert float((row - wanted[-1]).abs().max() / wanted.abs().max()) <= 1e-5
