"""Models that the bench measures on: the embedded one, and random weights in the shapes of a 1.1B llama and a 300M hybrid."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Storage

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".bench" / "models"
sys.path.insert(0, str(ROOT / "tests" / "engine"))

LLAMA_1B = {"layers": 22, "hidden": 2048, "inner": 5632, "heads": 32, "kv_heads": 4, "vocab": 32000}
"""TinyLlama's shape."""

HYBRID_300M = {
    "vocab_size": 16384,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "mamba_num_heads": 24,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 768,
    "moe_shared_expert_intermediate_size": 1536,
    "intermediate_size": 2048,
}
HYBRID_PATTERN = "ME*ME" + "ME" * 2 + "M*EME" + "ME*E"
"""18 blocks: 7 Mamba-2, 8 expert and 3 attention blocks."""


def smol() -> Path:
    """The embedded default, pulled if need be."""
    from homestretch.engine.store import pull

    return pull("smollm2-135m").path


def llama_1b() -> Path:
    """A GGUF of LLAMA_1B, matrices Q4_1 with random nibbles, head and embedding Q8_0; 0.7 GB."""
    path = FOLDER / "llama-1b.gguf"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    shape, made = LLAMA_1B, np.random.default_rng(1)
    writer = gguf.GGUFWriter(str(path.with_suffix(".part")), "llama")
    for key, value in (
        ("block_count", shape["layers"]),
        ("context_length", 4096),
        ("embedding_length", shape["hidden"]),
        ("feed_forward_length", shape["inner"]),
        ("attention.head_count", shape["heads"]),
        ("attention.head_count_kv", shape["kv_heads"]),
        ("rope.dimension_count", shape["hidden"] // shape["heads"]),
        ("vocab_size", shape["vocab"]),
    ):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "smollm")
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(shape["vocab"])])
    writer.add_array("tokenizer.ggml.token_type", [1] * shape["vocab"])
    writer.add_array("tokenizer.ggml.merges", ["t 1"])

    def q4(name: str, out: int, width: int) -> None:
        blocks = made.integers(0, 256, (out, width // 32, 20), dtype=np.uint8)
        scale = np.float16(0.5 / np.sqrt(width))
        blocks[..., 0:4] = np.array([scale, scale * np.float16(-7.5)], dtype=np.float16).view(np.uint8)
        writer.add_tensor(name, blocks.reshape(out, -1), raw_dtype=Storage.Q4_1)

    def q8(name: str, out: int, width: int) -> None:
        blocks = made.integers(0, 256, (out, width // 32, 34), dtype=np.uint8)
        blocks[..., 0:2] = np.array([0.02 / 73], dtype=np.float16).view(np.uint8)
        writer.add_tensor(name, blocks.reshape(out, -1), raw_dtype=Storage.Q8_0)

    hidden, inner, narrow = shape["hidden"], shape["inner"], shape["hidden"] // shape["heads"] * shape["kv_heads"]
    q8("token_embd.weight", shape["vocab"], hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, dtype=np.float32))
    for layer in range(shape["layers"]):
        blk = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{blk}.{norm}.weight", np.ones(hidden, dtype=np.float32))
        for name, out, width in (
            ("attn_q", hidden, hidden),
            ("attn_k", narrow, hidden),
            ("attn_v", narrow, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):
            q4(f"{blk}.{name}.weight", out, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".part").replace(path)
    return path


def hybrid_300m() -> tuple[Path, Path]:
    """(MLX folder in 4 bits, Hugging Face folder in bf16) with the same random weights."""
    import tiny_nemotron

    mlx, hf = FOLDER / "hybrid-300m-mlx", FOLDER / "hybrid-300m-hf"
    if not (mlx / "done").is_file():
        config = tiny_nemotron.config_of(HYBRID_PATTERN, head=False, **HYBRID_300M)
        tensors = tiny_nemotron.random_tensors(config, 3)
        tiny_nemotron.write_hf(hf, config, tensors)
        tiny_nemotron.write_mlx(mlx, config, tensors)
        (mlx / "done").touch()
    return mlx, hf
