"""Writes tiny llama GGUFs: random weights of any storage type, a byte-level vocabulary of 320 tokens, and what a test changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Storage

from homestretch.engine.tokenizer import BYTE_OF

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 160, 2, 4, 2, 320
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

METADATA: Mapping[str, Any] = {
    "llama.block_count": LAYERS,
    "llama.context_length": 1024,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": HIDDEN // HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": VOCAB,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.add_bos_token": False,
}


def shapes(*, tied: bool = True) -> dict[str, tuple[int, ...]]:
    """Every tensor and its shape (out, in)."""
    narrow = HIDDEN // HEADS * KV_HEADS
    made: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        blk = f"blk.{layer}"
        made |= {
            f"{blk}.attn_norm.weight": (HIDDEN,),
            f"{blk}.attn_q.weight": (HIDDEN, HIDDEN),
            f"{blk}.attn_k.weight": (narrow, HIDDEN),
            f"{blk}.attn_v.weight": (narrow, HIDDEN),
            f"{blk}.attn_output.weight": (HIDDEN, HIDDEN),
            f"{blk}.ffn_norm.weight": (HIDDEN,),
            f"{blk}.ffn_gate.weight": (INNER, HIDDEN),
            f"{blk}.ffn_up.weight": (INNER, HIDDEN),
            f"{blk}.ffn_down.weight": (HIDDEN, INNER),
        }
    return made if tied else made | {"output.weight": (VOCAB, HIDDEN)}


def values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random float32 weights; norms around 1."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).numpy()
    return (1 + 0.1 * drawn) if len(shape) == 1 else drawn / np.sqrt(shape[-1]) * 1.5


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types, merges: control tokens, the 256 bytes, and pairs of letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = [f"{left} {right}" for left in letters for right in letters][: VOCAB - 256 - len(CONTROL)]
    tokens = [*CONTROL, *BYTE_OF, *(pair.replace(" ", "") for pair in pairs)]
    return tokens, [3] * len(CONTROL) + [1] * (VOCAB - len(CONTROL)), pairs


def write_tiny(
    path: Path,
    *,
    storage: Storage | Mapping[str, Storage] = Storage.F32,
    tied: bool = True,
    change: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
    architecture: str = "llama",
) -> dict[str, np.ndarray]:
    """A GGUF at `path`; returns the float32 values that its tensors stand for, by name.

    storage: of all matrices, or by name (F32 for the others). change: metadata to set, None to leave out.
    tensors: tensors to set (float32), None to leave out.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**METADATA, **(change or {})}.items():
        kind = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        if value is not None:
            kind[type(value)](key, value)
    tokens, types, merges = vocabulary()
    for key, held in (("tokens", tokens), ("token_type", types), ("merges", merges)):
        if f"tokenizer.ggml.{key}" not in (change or {}):
            writer.add_array(f"tokenizer.ggml.{key}", held)
    given: dict[str, np.ndarray | None] = {
        name: values(shape, seed) for seed, (name, shape) in enumerate(shapes(tied=tied).items())
    }
    given |= tensors or {}
    meant: dict[str, np.ndarray] = {}
    for name, value in given.items():
        if value is None:
            continue
        wanted = storage.get(name, Storage.F32) if isinstance(storage, Mapping) else storage if value.ndim > 1 else Storage.F32
        packed = gguf.quantize(value.astype(np.float32), wanted)
        writer.add_tensor(name, packed, raw_dtype=wanted)
        meant[name] = gguf.dequantize(packed, wanted).reshape(value.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant
