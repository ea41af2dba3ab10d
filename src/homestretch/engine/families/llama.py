"""llama: RMS norms, grouped-query attention with rotary positions, gated MLP; GGUF, Hugging Face and MLX names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from homestretch.engine.checkpoint import Checkpoint
from homestretch.engine.checkpoint.keys import Keys
from homestretch.engine.checkpoint.shelf import Shelf
from homestretch.engine.errors import CheckpointError
from homestretch.engine.program import Add, Attention, Builder, Embed, Head, Linear, Model, RmsNorm, Rotary, SiluMul, Slot

TINY: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
"""A small config with grouped heads and a tied head; inputs are multiples of 32, so every matrix can be packed."""

GGUF_NAMES: Mapping[str, str] = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "q": "blk.{}.attn_q",
    "k": "blk.{}.attn_k",
    "v": "blk.{}.attn_v",
    "o": "blk.{}.attn_output",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate",
    "up": "blk.{}.ffn_up",
    "down": "blk.{}.ffn_down",
}
HF_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": "model.layers.{}.input_layernorm.weight",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "o": "model.layers.{}.self_attn.o_proj",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}

_INERT_GGUF = ("general.*", "tokenizer.*", "split.*", "quantize.*", "llama.tensor_data_layout", "llama.rope.scaling.finetuned")
_INERT_HF = (
    *("architectures", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "is_llama_config"),
    *("pad_token_id", "quantization", "quantization_config", "rope_interleaved", "torch_dtype", "transformers.js_config"),
    *("transformers_version", "unsloth_*", "use_cache", "_name_or_path"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the family needs of a config, checked. factors: what each rotary angle is divided by, or None for 1.

    attention_bias, mlp_bias: whether products have one; None: as the files hold them.
    """

    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    eps: float
    scale: float
    rotary_dims: int
    base: float
    factors: tuple[float, ...] | None
    interleaved: bool
    tied: bool
    attention_bias: bool | None = None
    mlp_bias: bool | None = None


def read_gguf(checkpoint: Checkpoint, where: str) -> Config:
    """The keys of a GGUF's metadata. Its query and key rows are permuted by the converter, so rotary pairs are neighbours."""
    keys = Keys(checkpoint.config, where)
    keys.ignore(*_INERT_GGUF)
    hidden, heads = keys.whole("llama.embedding_length"), keys.whole("llama.attention.head_count")
    kv_heads = keys.whole("llama.attention.head_count_kv", default=heads)
    head_dim = keys.whole("llama.attention.key_length", default=hidden // heads)
    keys.expect("llama.attention.value_length", head_dim, default=head_dim)
    keys.expect("llama.expert_count", 0, default=0)
    keys.expect("llama.expert_used_count", 0, default=0)
    keys.expect("llama.rope.scaling.attn_factor", 1.0, default=1.0)
    keys.expect("llama.attention.causal", True, default=True)
    dims = keys.whole("llama.rope.dimension_count", default=head_dim, low=2, high=head_dim)
    # As llama.cpp reads them: a factor without a type is linear, an older key counts where the newer is missing, 0 is none.
    kind = keys.expect("llama.rope.scaling.type", "none", "linear", default="linear")
    older = keys.real("llama.rope.scale_linear", default=0.0)
    factor = keys.real("llama.rope.scaling.factor", default=0.0) or older or 1.0
    keys.ignore("llama.rope.scaling.original_context_length")
    linear = factor if kind == "linear" else 1.0
    embedding = checkpoint.specs.get(GGUF_NAMES["embedding"])
    vocab = embedding.shape[0] if embedding else 0
    made = Config(
        vocab=keys.whole("llama.vocab_size", default=vocab),
        hidden=hidden,
        inner=keys.whole("llama.feed_forward_length"),
        layers=keys.whole("llama.block_count", high=10_000),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=keys.whole("llama.context_length"),
        eps=keys.real("llama.attention.layer_norm_rms_epsilon"),
        scale=keys.real("llama.attention.scale", default=head_dim**-0.5),
        rotary_dims=dims,
        base=keys.real("llama.rope.freq_base", default=10000.0, low=1.0),
        factors=(linear,) * (dims // 2) if linear != 1.0 else None,
        interleaved=True,
        tied=GGUF_NAMES["head"] not in checkpoint.specs,
    )
    keys.finish()
    _refuse_uneven(keys, made, "llama.attention.head_count", "llama.attention.head_count_kv", "llama.rope.dimension_count")
    return made


def read_hf(checkpoint: Checkpoint, where: str) -> Config:
    """The keys of a config.json, of Hugging Face or MLX: rotary pairs are the two halves of a head."""
    keys = Keys(checkpoint.config, f"{where}/config.json")
    keys.ignore("model_type", *_INERT_HF)
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    head_dim = keys.whole("head_dim", default=hidden // heads)
    keys.expect("hidden_act", "silu", default="silu")
    keys.expect("pretraining_tp", 1, default=1)
    keys.expect("sliding_window", default=None)
    base, factors = _hf_rotary(keys, head_dim)
    made = Config(
        vocab=keys.whole("vocab_size"),
        hidden=hidden,
        inner=keys.whole("intermediate_size"),
        layers=keys.whole("num_hidden_layers", high=10_000),
        heads=heads,
        kv_heads=keys.whole("num_key_value_heads", default=heads),
        head_dim=head_dim,
        window=keys.whole("max_position_embeddings", default=2048),
        eps=keys.real("rms_norm_eps", default=1e-6),
        scale=head_dim**-0.5,
        rotary_dims=head_dim,
        base=base,
        factors=factors,
        interleaved=keys.flag("rope_traditional", default=False),
        tied=keys.flag("tie_word_embeddings", default=False),
        attention_bias=keys.flag("attention_bias", default=False),
        mlp_bias=keys.flag("mlp_bias", default=False),
    )
    keys.finish()
    _refuse_uneven(keys, made, "num_attention_heads", "num_key_value_heads", "head_dim")
    return made


def _refuse_uneven(keys: Keys, config: Config, heads: str, kv_heads: str, dims: str) -> None:
    if config.heads % config.kv_heads:
        raise keys.refusal(heads, config.heads, f"a multiple of {kv_heads} = {config.kv_heads}")
    if config.rotary_dims % 2:
        raise keys.refusal(dims, config.rotary_dims, "an even number")


def _hf_rotary(keys: Keys, head_dim: int) -> tuple[float, tuple[float, ...] | None]:
    """Base and factors, from `rope_theta` and `rope_scaling` or from the newer `rope_parameters`."""
    base = keys.real("rope_theta", default=10000.0, low=1.0)
    factors = None
    for name in ("rope_scaling", "rope_parameters"):
        if not keys.has(name):
            keys.ignore(name)
            continue
        with keys.inside(name) as inner:
            base = inner.real("rope_theta", default=base, low=1.0)
            older = inner.expect("type", "default", "linear", "llama3", default="default")
            kind = inner.expect("rope_type", "default", "linear", "llama3", default=older)
            inner.expect("partial_rotary_factor", 1.0, default=1.0)
            if kind == "linear":
                factors = (inner.real("factor", low=1e-6),) * (head_dim // 2)
            elif kind == "llama3":
                factors = llama3_factors(
                    base=base,
                    dims=head_dim,
                    factor=inner.real("factor", low=1.0),
                    low=inner.real("low_freq_factor", low=1e-6),
                    high=inner.real("high_freq_factor", low=1e-6),
                    window=inner.whole("original_max_position_embeddings"),
                )
            else:
                inner.ignore("factor")
    return base, factors


def llama3_factors(*, base: float, dims: int, factor: float, low: float, high: float, window: int) -> tuple[float, ...]:
    """What Llama 3.1 divides each angle by: 1 for waves shorter than window/high tokens, `factor` for those longer than window/low,
    and between them the inverse of a straight line in window/wavelength from 1/factor to 1 (Llama 3 report, appendix; model card).
    """
    made = []
    for index in range(dims // 2):
        wave = 2 * math.pi * base ** (2 * index / dims)
        share = min(1.0, max(0.0, (window / wave - low) / (high - low))) if high != low else float(window / wave > low)
        made.append(1 / ((1 - share) / factor + share))
    return tuple(made)


def model(checkpoint: Checkpoint) -> Model:
    """The Model of a checkpoint. CheckpointError: an unknown key or value, a missing, left-over or misshapen tensor."""
    where, from_gguf = checkpoint.path.name, checkpoint.layout == "gguf"
    config = read_gguf(checkpoint, where) if from_gguf else read_hf(checkpoint, where)
    names = GGUF_NAMES if from_gguf else HF_NAMES
    shelf = Shelf(checkpoint.specs, where=where)
    build = Builder()
    embedding = shelf.take(names["embedding"], config.vocab, config.hidden)
    factors: tuple[str, ...] = shelf.optional("rope_freqs.weight", config.rotary_dims // 2) if from_gguf else ()
    if config.factors and factors:
        raise CheckpointError(f"{where}: linear rope scaling together with rope_freqs.weight is not built")
    if config.factors:
        factors = (shelf.constant("rotary_factors", config.factors),)
    x = build.one(Embed(), [0], weights=[embedding])
    for layer in range(config.layers):
        x = _attention(build, shelf, config, names, layer, x, factors)
        x = _mlp(build, shelf, config, names, layer, x)
    hidden = build.one(RmsNorm(eps=config.eps), [x], weights=[shelf.take(names["final_norm"], config.hidden)])
    head = shelf.share(names["head"], embedding) if config.tied else shelf.take(names["head"], config.vocab, config.hidden)
    logits = build.one(Head(), [hidden], weights=[head])
    spare = frozenset({names["head"]} if config.tied else ()) | frozenset(
        name for name in checkpoint.specs if name.endswith(".rotary_emb.inv_freq")
    )
    return Model(
        name=checkpoint.path.stem if from_gguf else checkpoint.path.name,
        family="llama",
        vocab=config.vocab,
        hidden=config.hidden,
        window=config.window,
        main=build.build(hidden=hidden, logits=logits),
        head=None,
        weights=shelf.finish(spare=spare),
    )


def _linear(build: Builder, shelf: Shelf, x: int, name: str, out: int, width: int, bias: bool | None) -> int:
    weights = [shelf.take(f"{name}.weight", out, width)]
    if bias or (bias is None and shelf.has(f"{name}.bias")):
        weights.append(shelf.take(f"{name}.bias", out))
    return build.one(Linear(), [x], weights=weights)


def _attention(
    build: Builder, shelf: Shelf, config: Config, names: Mapping[str, str], layer: int, x: int, factors: tuple[str, ...]
) -> int:
    """x + o(attention(rotary(q), rotary(k), v))."""
    c = config
    name = {part: names[part].format(layer) for part in ("attention_norm", "q", "k", "v", "o")}
    y = build.one(RmsNorm(eps=c.eps), [x], weights=[shelf.take(name["attention_norm"], c.hidden)])
    q = _linear(build, shelf, y, name["q"], c.heads * c.head_dim, c.hidden, c.attention_bias)
    k = _linear(build, shelf, y, name["k"], c.kv_heads * c.head_dim, c.hidden, c.attention_bias)
    v = _linear(build, shelf, y, name["v"], c.kv_heads * c.head_dim, c.hidden, c.attention_bias)
    turned = [
        build.one(
            Rotary(heads=heads, head_dim=c.head_dim, dims=c.rotary_dims, base=c.base, interleaved=c.interleaved),
            [value],
            weights=factors,
        )
        for value, heads in ((q, c.heads), (k, c.kv_heads))
    ]
    mixed = build.one(
        Attention(heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, scale=c.scale),
        [*turned, v],
        slot=Slot(name=f"{layer}.kv", kind="kv", shape=(2, c.kv_heads, c.head_dim)),
    )
    out = _linear(build, shelf, mixed, name["o"], c.hidden, c.heads * c.head_dim, c.attention_bias)
    return build.one(Add(), [x, out])


def _mlp(build: Builder, shelf: Shelf, config: Config, names: Mapping[str, str], layer: int, x: int) -> int:
    """x + down(silu(gate) * up)."""
    c = config
    y = build.one(RmsNorm(eps=c.eps), [x], weights=[shelf.take(names["mlp_norm"].format(layer), c.hidden)])
    gate = _linear(build, shelf, y, names["gate"].format(layer), c.inner, c.hidden, c.mlp_bias)
    up = _linear(build, shelf, y, names["up"].format(layer), c.inner, c.hidden, c.mlp_bias)
    inner = build.one(SiluMul(), [gate, up])
    out = _linear(build, shelf, inner, names["down"].format(layer), c.hidden, c.inner, c.mlp_bias)
    return build.one(Add(), [x, out])
