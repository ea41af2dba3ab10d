"""The plan of a 30B-A3B from its config and file headers alone: sizes as published, and no byte of weights."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from homestretch.engine import backends
from homestretch.engine.backends import planning
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.checkpoint.shards import Shards
from homestretch.engine.config import ServeOptions
from homestretch.engine.families import build_model
from homestretch.engine.server import start
from homestretch.engine.types import Limits

GIB, MIB = 1 << 30, 1 << 20
PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
CONFIG: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": 131072,
    "hidden_size": 2688,
    "hybrid_override_pattern": PATTERN,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "intermediate_size": 1856,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "time_step_limit": [0.0, {"__float__": "Infinity"}],
    "rope_theta": 10000,
    "partial_rotary_factor": 1.0,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
    "quantization": {"group_size": 64, "bits": 4, "mode": "affine"},
}
MATRICES = {
    "M": {"in_proj": (10304, 2688), "out_proj": (2688, 4096)},
    "*": {"q_proj": (4096, 2688), "k_proj": (256, 2688), "v_proj": (256, 2688), "o_proj": (2688, 4096)},
    "E": {
        "switch_mlp.fc1": (128, 1856, 2688),
        "switch_mlp.fc2": (128, 2688, 1856),
        "shared_experts.up_proj": (3712, 2688),
        "shared_experts.down_proj": (2688, 3712),
    },
}
DENSE: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {
    "M": {
        "conv1d.weight": ((6144, 4, 1), "BF16"),
        "conv1d.bias": ((6144,), "BF16"),
        "A_log": ((64,), "F32"),
        "D": ((64,), "BF16"),
        "dt_bias": ((64,), "BF16"),
        "norm.weight": ((4096,), "BF16"),
    },
    "*": {},
    "E": {"gate.weight": ((128, 2688), "BF16"), "gate.e_score_correction_bias": ((128,), "F32")},
}
ITEM = {"BF16": 2, "F32": 4, "U32": 4}


def affine(name: str, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
    groups = (*shape[:-1], shape[-1] // 64)
    return {
        f"{name}.weight": ((*shape[:-1], shape[-1] // 8), "U32"),
        f"{name}.scales": (groups, "BF16"),
        f"{name}.biases": (groups, "BF16"),
    }


def blocks(pattern: str, at: str) -> dict[str, tuple[tuple[int, ...], str]]:
    made: dict[str, tuple[tuple[int, ...], str]] = {}
    for index, kind in enumerate(pattern):
        made[f"{at}.{index}.norm.weight"] = ((2688,), "BF16")
        for name, shape in MATRICES[kind].items():
            made |= affine(f"{at}.{index}.mixer.{name}", shape)
        made |= {f"{at}.{index}.mixer.{name}": found for name, found in DENSE[kind].items()}
    return made


def write_headers(file: Path, tensors: dict[str, tuple[tuple[int, ...], str]], metadata: dict[str, str]) -> int:
    """A file with a real header and a hole where its tensors would be; returns the bytes that they take."""
    at, header = 0, {"__metadata__": metadata}
    for name, (shape, dtype) in tensors.items():
        size = math.prod(shape) * ITEM[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}  # type: ignore[assignment]
        at += size
    text = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(text)) + text)
        opened.truncate(8 + len(text) + at)
    return at


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lightning")
    (made / "config.json").write_text(json.dumps(CONFIG))
    main = {**affine("backbone.embeddings", (131072, 2688)), **blocks(PATTERN, "backbone.layers")}
    main |= {"backbone.norm_f.weight": ((2688,), "BF16"), **affine("lm_head", (131072, 2688))}
    names, places = sorted(main), {}
    for shard in range(4):
        file = f"model-{shard + 1:05}-of-00004.safetensors"
        part = {name: main[name] for name in names[shard::4]}
        write_headers(made / file, part, {"format": "mlx"})
        places |= dict.fromkeys(part, file)
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    head = blocks("*E", "layers") | affine("layers.0.eh_proj", (2688, 5376))
    for name in ("layers.0.enorm.weight", "layers.0.hnorm.weight", "layers.1.final_layernorm.weight"):
        head[name] = ((2688,), "BF16")
    write_headers(made / "mtp-4bit.safetensors", head, {"format": "mlx", "group_size": "64", "bits": "4"})
    return made


def near(value: float, wanted: float) -> bool:
    return abs(value / wanted - 1) <= 0.02


def test_the_published_sizes_follow_from_headers_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shards, "read", lambda *_: pytest.fail("a weight was read"))
    model = build_model(open_checkpoint(folder))
    assert (PATTERN.count("M"), PATTERN.count("*"), PATTERN.count("E")) == (23, 6, 23)
    plan = planning.plan(
        model, Limits(window=262144), available=100 * GIB, weight_bytes=lambda spec: spec.stored_bytes, kv_element=2
    )
    assert near(plan.model_bytes, 17.8e9)
    assert near(plan.head_bytes, 0.75e9)
    assert near(plan.kv_bytes_per_token, 6 * 1024)
    assert near(plan.head_kv_bytes_per_token, 1024)
    ssm = sum(slot.elements * 4 for slot in model.main.slots if slot.kind == "ssm")
    conv = sum(slot.elements * 2 for slot in model.main.slots if slot.kind == "conv")
    assert near(ssm, 46 * MIB)
    assert near(conv, 0.8 * MIB)
    assert plan.streams == 8
    assert plan.left_bytes == 100 * GIB - plan.model_bytes - plan.head_bytes - 8 * plan.stream_bytes


def test_serve_plan_prints_them(folder: Path) -> None:
    reason = backends.find("cpu").refusal()
    if reason:
        pytest.skip(reason)
    options = ServeOptions(window=262144, memory_bytes=120 * GIB, backend="cpu", name="lightning")
    text = start.plan_text(start.prepare(folder, options))
    for words in (
        "(17.78 GB)",
        "(0.75 GB)",
        "6.00 KiB, head 1.00 KiB",
        "47.62 MiB, SSM 46.00 MiB",
        "in 120.00 GiB: 8 streams at once",
    ):
        assert words in text


def test_without_mtp_drafts_the_head_takes_no_memory(folder: Path) -> None:
    setup = start.prepare(folder, ServeOptions(window=0, backend="reference", drafts=("copies",), memory_bytes=1 << 60))
    assert setup.model.head is None
    assert not any(name.startswith("mtp.") for name in setup.model.weights)
    assert near(sum(spec.stored_bytes for spec in setup.model.weights.values()), 17.8e9)
