"""Small checkpoints in memory and streams on any backend, for the tests of the cpu backend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from homestretch.engine.backends import Backend, find
from homestretch.engine.checkpoint import Affine, TextDefaults, Weight
from homestretch.engine.checkpoint.affine import quantize
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.families import build_model, llama
from homestretch.engine.program import Model, WeightSpec
from homestretch.engine.types import Draw, Limits, PromptPiece, RowOut, StreamId, Window


@dataclass
class MemoryCheckpoint:
    """Weights in memory, in the Hugging Face layout's names."""

    config: Mapping[str, Any]
    weights: dict[str, Weight] = field(default_factory=dict)
    layout: str = "hf"
    path: Path = Path("tiny")
    text: TextDefaults = field(default_factory=lambda: TextDefaults(ends=frozenset()))
    notes: tuple[str, ...] = ()

    @property
    def specs(self) -> dict[str, WeightSpec]:
        return {name: spec_of(weight) for name, weight in self.weights.items()}

    def read(self, name: str) -> Weight:
        return self.weights[name]

    def tokenizer(self) -> Any:
        raise NotImplementedError


def spec_of(weight: Weight) -> WeightSpec:
    if isinstance(weight, Affine):
        shape = (*weight.words.shape[:-1], weight.words.shape[-1] * 32 // weight.bits)
        return WeightSpec(shape=shape, bits=weight.bits, group=weight.group, dtype=_name(weight.scales.dtype))
    return WeightSpec(shape=tuple(weight.shape), dtype=_name(weight.dtype))


def _name(dtype: torch.dtype) -> Any:
    return str(dtype).removeprefix("torch.")


def affine(
    *shape: int, seed: int, bits: int = 4, group: int = 32, dtype: torch.dtype = torch.float16, scale: float = 1.0
) -> Affine:
    """Random affine integers; half of the scales are negative."""
    made = torch.Generator().manual_seed(seed)
    return quantize(torch.randn(*shape, generator=made) * scale * shape[-1] ** -0.5, bits=bits, group=group, dtype=dtype)


def tiny_llama(seed: int = 0, *, bits: int = 4, group: int = 32, layers: int = 2, **changes: Any) -> MemoryCheckpoint:
    """A llama with random weights of which all matrices are affine; the tied head has 8 bits."""
    config = {**llama.TINY, "num_hidden_layers": layers, **changes}
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv, width = config["num_key_value_heads"], config["head_dim"]
    made = torch.Generator().manual_seed(seed)
    weights: dict[str, Weight] = {
        "model.embed_tokens.weight": affine(config["vocab_size"], hidden, seed=seed, bits=8, group=group, scale=4.0),
        "model.norm.weight": 1 + 0.1 * torch.randn(hidden, generator=made),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (heads * width, hidden),
            "self_attn.k_proj": (kv * width, hidden),
            "self_attn.v_proj": (kv * width, hidden),
            "self_attn.o_proj": (hidden, heads * width),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for number, (name, shape) in enumerate(shapes.items()):
            weights[f"{at}.{name}.weight"] = affine(*shape, seed=seed + 100 * layer + number, bits=bits, group=group)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}.{name}.weight"] = 1 + 0.1 * torch.randn(hidden, generator=made)
    return MemoryCheckpoint(config=config, weights=weights)


def greedy(position: int, logprobs: int = 0) -> Draw:
    return Draw(seed=0, position=position, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, logprobs=logprobs)


def read(backend: Backend, stream: StreamId, tokens: Sequence[int], draw: Draw | None, start: int = 0) -> list[RowOut]:
    assert backend.reserve(stream, start + len(tokens) + 1)
    result = backend.wait(backend.read(PromptPiece(stream=stream, start=start, tokens=tuple(tokens), draw=draw)))
    return list(result[0]) if draw else []


def step(backend: Backend, stream: StreamId, start: int, tokens: Sequence[int], draws: Sequence[Draw], kept: int) -> list[RowOut]:
    assert backend.reserve(stream, start + len(tokens))
    window = Window(stream=stream, start=start, tokens=tuple(tokens), draws=tuple(draws), kept=kept)
    return list(backend.wait(backend.step([window]))[0])


def loaded(name: str, checkpoint: Any, threads: int = 1, **options: Any) -> Backend:
    return loaded_model(name, build_model(checkpoint), checkpoint, threads, **options)


def loaded_model(name: str, model: Model, checkpoint: Any, threads: int = 1, **options: Any) -> Backend:
    backend = find(name)(**options)
    backend.load(model, checkpoint, Limits(window=1024, streams=8, threads=threads, prompt_cache_bytes=1 << 26))
    return backend


def loaded_at(name: str, path: Path, threads: int = 1) -> Backend:
    return loaded(name, open_checkpoint(path), threads)


def difference(a: RowOut, b: RowOut) -> float:
    """Relative error of a row's logits: |a - b| / |b| (Euclidean), the mean taken out, which log probabilities do not hold."""
    one, two = dict(a.top), dict(b.top)
    assert one.keys() == two.keys()
    gap = sum(one[i] - two[i] for i in one) / len(one)
    mean = sum(two.values()) / len(two)
    return math.sqrt(sum((one[i] - two[i] - gap) ** 2 for i in one) / sum((value - mean) ** 2 for value in two.values()))


def drawn(seed: int, position: int, vocab: int) -> Draw:
    """A sampled draw that reports the whole distribution."""
    return Draw(seed=seed, position=position, temperature=0.8, top_k=0, top_p=0.95, min_p=0.0, logprobs=vocab)


def serial(backend: Backend, prompt: list[int], count: int, seed: int, vocab: int) -> list[RowOut]:
    """A reply one token at a time: the rows of the prompt's end and of `count` steps."""
    stream = backend.open(None)
    rows = read(backend, stream, prompt, drawn(seed, len(prompt), vocab))
    for at in range(count):
        position = len(prompt) + at
        rows += step(backend, stream, position, [rows[-1].token], [drawn(seed, position + 1, vocab)], min(at, 1))
    backend.close(stream)
    return rows
