"""The llama family against transformers on tiny checkpoints: rotary kinds, biases, heads, HF and GGUF names; refusals by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_gguf import write_tiny

from homestretch.engine.backends.reference.machine import Machine
from homestretch.engine.backends.reference.memory import Memory, Store
from homestretch.engine.checkpoint import Affine, Checkpoint
from homestretch.engine.checkpoint.affine import dequantize
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.checkpoint.shelf import read_weight
from homestretch.engine.errors import CheckpointError
from homestretch.engine.families import build_model, find, names
from homestretch.engine.families.llama import TINY, llama3_factors
from homestretch.engine.program import QUANTUM

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
KINDS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "untied, own head dim": {"tie_word_embeddings": False, "head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "every head its own": {"num_key_value_heads": 4, "rope_theta": 500000.0},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "llama3": {"rope_scaling": LLAMA3},
}
LENGTH = 150
"""Past one tile, and past the window that the scaled rotary kinds were made for."""


def all_logits(checkpoint: Checkpoint, tokens: list[int]) -> torch.Tensor:
    """Logits of every position, read as a prompt."""
    model = build_model(checkpoint)
    weights: dict[str, torch.Tensor] = {}
    for name, spec in model.weights.items():
        weight = read_weight(checkpoint, spec.shared_with or name, spec)
        weights[name] = dequantize(weight) if isinstance(weight, Affine) else weight.float()
    store = Store(model.main.slots, 2, torch.device("cpu"))
    memory, machine = Memory(store), Machine(weights, torch.device("cpu"))
    assert memory.cover(len(tokens))
    made = []
    for start in range(0, len(tokens), QUANTUM):
        part = tokens[start : start + QUANTUM]
        made.append(machine.tile(model.main, part, memory, start, asked=tuple(range(len(part)))).logits)
    return torch.cat(made)


def make(folder: Path, change: Mapping[str, Any]) -> Any:
    """A random transformers llama with norms and biases that matter, saved in the HF layout."""
    transformers = pytest.importorskip("transformers")
    config = {key: value for key, value in TINY.items() if key != "model_type"} | dict(change)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(1 + 0.1 * torch.randn_like(value) if "norm" in name else torch.randn_like(value) * 0.15)
    model.save_pretrained(folder)
    return model


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(tmp_path: Path, kind: str) -> None:
    oracle = make(tmp_path, KINDS[kind])
    tokens = torch.randint(0, TINY["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        theirs = oracle(tokens[None]).logits[0]
    ours = all_logits(open_checkpoint(tmp_path), tokens.tolist())
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 2e-5


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves to neighbours: what llama.cpp's converter does to q and k."""
    half = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(half.swapaxes(1, 2)).reshape(weight.shape)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["plain", "linear", "linear without a type", "linear, older key", "llama3"])
def test_a_gguf_of_the_same_weights_gives_the_same_logits(tmp_path: Path, kind: str) -> None:
    """The converter's conventions: permuted q and k, linear scaling as a key, Llama 3's factors as the tensor rope_freqs."""
    make(tmp_path / "hf", KINDS[re.split(" without|,", kind)[0]])
    held = {name: value.numpy() for name, value in load_file(tmp_path / "hf" / "model.safetensors").items()}
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    tensors = {"token_embd.weight": held["model.embed_tokens.weight"], "output_norm.weight": held["model.norm.weight"]}
    for layer in range(2):
        for ours, theirs in parts.items():
            value = held[f"model.layers.{layer}.{theirs}.weight"]
            heads = {"attn_q": 4, "attn_k": 2}.get(ours)
            tensors[f"blk.{layer}.{ours}.weight"] = permuted(value, heads) if heads else value
    change: dict[str, Any] = {
        "plain": {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 3.0},
        "linear": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 3.0},
        "linear without a type": {"llama.rope.scaling.factor": 3.0},
        "linear, older key": {"llama.rope.scale_linear": 3.0},
        "llama3": {},
    }[kind]
    if kind == "llama3":
        factors = llama3_factors(base=10000.0, dims=16, factor=8.0, low=1.0, high=4.0, window=32)
        tensors["rope_freqs.weight"] = np.array(factors, dtype=np.float32)
    write_tiny(tmp_path / "same.gguf", tensors=tensors, change=change)
    tokens = torch.randint(0, TINY["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(2)).tolist()
    ours, theirs = (all_logits(open_checkpoint(path), tokens) for path in (tmp_path / "same.gguf", tmp_path / "hf"))
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 2e-5


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"logit_scale": 2.0}, "unknown config key logit_scale = 2.0"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported; allowed: 'silu'"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type = 'yarn' is not supported"),
    "unknown rotary key": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, "unknown config key beta"),
    "llama3 without its factor": ({"rope_scaling": {"rope_type": "llama3"}}, "config key factor is missing"),
    "sliding window": ({"sliding_window": 512}, "sliding_window = 512 is not supported"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers = 0 is not supported; allowed: a whole number from 1"),
    "a number as text": ({"hidden_size": "64"}, "hidden_size = '64' is not supported"),
    "infinite eps": ({"rms_norm_eps": float("inf")}, "rms_norm_eps = inf is not supported"),
    "uneven heads": ({"num_key_value_heads": 3}, "num_attention_heads = 4 is not supported; allowed: a multiple"),
    "an odd head dim": ({"head_dim": 15}, "head_dim = 15 is not supported; allowed: an even number"),
    "another width": ({"hidden_size": 128}, r"the config asks for \[320, 128\]"),
    "a bias that is not there": ({"mlp_bias": True}, r"mlp.gate_proj.bias \[160\] is missing"),
    "missing": ({"vocab_size": None}, "config key vocab_size is missing"),
    "another family": ({"model_type": "mamba9"}, "model type 'mamba9' is not supported; supported: llama"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama in the HF layout, written without transformers."""
    path = tmp_path_factory.mktemp("llama")
    (path / "config.json").write_text(json.dumps(dict(TINY)))
    hidden, inner, narrow = 64, 160, 32
    tensors = {"model.embed_tokens.weight": torch.randn(320, hidden), "model.norm.weight": torch.ones(hidden)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes = {"q": (hidden, hidden), "k": (narrow, hidden), "v": (narrow, hidden), "o": (hidden, hidden)}
        tensors |= {f"{at}.self_attn.{part}_proj.weight": torch.randn(shape) for part, shape in shapes.items()}
        shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        tensors |= {f"{at}.mlp.{part}_proj.weight": torch.randn(shape) for part, shape in shapes.items()}
        tensors |= {f"{at}.{norm}_layernorm.weight": torch.ones(hidden) for norm in ("input", "post_attention")}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_the_folder_builds(folder: Path) -> None:
    model = build_model(open_checkpoint(folder))
    assert (model.family, model.vocab, model.window) == ("llama", 320, 1024)
    assert model.weights["lm_head.weight"].shared_with == "model.embed_tokens.weight"
    assert "llama" in names()
    assert find("llama").TINY is TINY


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_key(folder: Path, tmp_path: Path, name: str) -> None:
    change, fault = REFUSED[name]
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    config = {key: value for key, value in {**TINY, **change}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=fault) as refused:
        build_model(open_checkpoint(tmp_path))
    assert "\n" not in str(refused.value)


def test_llama3_factors_are_whole_at_both_ends() -> None:
    factors = llama3_factors(base=500000.0, dims=128, factor=8.0, low=1.0, high=4.0, window=8192)
    assert factors[0] == 1.0
    assert factors[-1] == 8.0
    assert list(factors) == sorted(factors)
    assert any(1.0 < factor < 8.0 for factor in factors)
