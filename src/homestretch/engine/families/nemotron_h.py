"""nemotron_h: Mamba-2, attention without rotary, squared-ReLU experts and dense MLPs in any order, and a two-sublayer MTP head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from homestretch.engine.checkpoint import Checkpoint
from homestretch.engine.checkpoint.keys import Keys
from homestretch.engine.checkpoint.shelf import Shelf
from homestretch.engine.errors import CheckpointError
from homestretch.engine.program import (
    Add,
    Attention,
    Builder,
    Concat,
    Conv,
    Embed,
    Experts,
    GatedNorm,
    Head,
    Linear,
    Model,
    Program,
    Relu2,
    RmsNorm,
    Router,
    Slot,
    Split,
    Ssm,
)

EMBEDDINGS, LM_HEAD = "backbone.embeddings.weight", "lm_head.weight"

BLOCKS = {
    "M": "M",
    "mamba": "M",
    "linear_attention": "M",
    "*": "*",
    "attention": "*",
    "full_attention": "*",
    "E": "E",
    "moe": "E",
    "-": "-",
    "mlp": "-",
}
"""Every spelling of a block kind, in pattern strings and in layers_block_type, and its letter."""

TINY: Mapping[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": 320,
    "hidden_size": 64,
    "hybrid_override_pattern": "ME*-ME",
    "mtp_hybrid_override_pattern": "*E",
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "intermediate_size": 128,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "ssm_state_size": 32,
    "n_groups": 2,
    "conv_kernel": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 128,
    "routed_scaling_factor": 2.5,
    "time_step_limit": [0.0, float("inf")],
    "eos_token_id": 4,
}
"""A config of every block kind and a head, for tests; inputs are multiples of 64, so every matrix can be 4-bit."""

_INERT = """
    _* architectures attention_dropout attn_implementation auto_map bos_token_id chunk_size dtype eos_token_id expand hidden_dropout
    initializer_range is_local local_files_only model_type moe_shared_expert_overlap num_logits_to_keep
    output_router_logits pad_token_id partial_rotary_factor quantization quantization_config rescale_prenorm_residual
    residual_in_fp32 rope_parameters rope_scaling rope_theta time_step_floor time_step_max time_step_min
    torch_dtype transformers_version use_cache use_mamba_kernels
"""
"""Keys that change no arithmetic here: initialisation, training, the sizes of other programs' kernels; residuals are fp32 in any
case; rope keys are in published files though the family has no rotary step; quantization belongs to the layout."""


def _letters(keys: Keys, text_key: str, *list_keys: str, default: str = "") -> str:
    """The blocks as letters, from the pattern string or from a list of names; a file that spells them twice must mean one thing."""
    spelled: list[tuple[str, tuple[str, ...]]] = [(text_key, tuple(keys.text(text_key, default="")))]
    spelled += [(key, keys.texts(key, default=())) for key in list_keys]
    found = default
    for key, blocks in reversed(spelled):
        for index, block in enumerate(blocks):
            if block not in BLOCKS:
                raise keys.refusal(f"{key}[{index}]", block, ", ".join(BLOCKS))
        letters = "".join(BLOCKS[block] for block in blocks)
        if letters and found not in ("", default, letters):
            raise keys.refusal(key, letters, f"the blocks that the config names elsewhere, {found}")
        found = letters or found
    if not found:
        raise keys.refusal(text_key, "", f"at least one block, here or in {list_keys[0]}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """An expert block: its router, the width of an expert, of the shared expert, and of the latent (0: none)."""

    router: Router
    inner: int
    shared: int
    latent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the family needs of a config.json, checked."""

    vocab: int
    hidden: int
    blocks: str
    head_blocks: str
    window: int
    eps: float
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    mamba_bias: bool
    attention: Attention
    mlp: int
    ssm: Ssm
    kernel: int
    conv_bias: bool
    moe: Moe | None

    @property
    def inner(self) -> int:
        return self.ssm.heads * self.ssm.head_dim

    @property
    def channels(self) -> int:
        return self.inner + 2 * self.ssm.groups * self.ssm.state


def read_config(config: Mapping[str, Any], *, where: str = "config.json") -> Config:
    """Typed reads. CheckpointError for a key that is missing, unknown, or has a value that is not built."""
    keys = Keys(config, where=where)
    keys.ignore(*_INERT.split())
    blocks = _letters(keys, "hybrid_override_pattern", "layers_block_type", "layer_types")
    head_blocks = _letters(keys, "mtp_hybrid_override_pattern", "mtp_layers_block_type", default="*E")
    if "M" in head_blocks:
        raise keys.refusal("mtp_hybrid_override_pattern", head_blocks, "*, E and - (a Mamba-2 head is not built)")
    keys.expect("num_hidden_layers", len(blocks), default=None)
    keys.expect("num_nextn_predict_layers", 0, 1, default=None)
    keys.expect("mlp_hidden_act", "relu2", default=None)
    keys.expect("mamba_hidden_act", "silu", default=None)
    keys.expect("mamba_ssm_cache_dtype", "float32", default=None)
    keys.expect("sliding_window", None, default=None)
    mamba_bias = keys.flag("mamba_proj_bias", default=False)
    # Two spellings of one thing: transformers reads this key, mlx-lm the other.
    keys.expect("use_bias", mamba_bias, default=None)
    eps = keys.real("layer_norm_epsilon", default=keys.real("rms_norm_eps", default=1e-5))
    keys.expect("norm_eps", eps, default=None)
    keys.expect("rms_norm_eps", eps, default=None)
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    kv_heads = keys.whole("num_key_value_heads", default=heads)
    mamba_heads, groups = keys.whole("mamba_num_heads"), keys.whole("n_groups")
    if heads % kv_heads:
        raise keys.refusal("num_attention_heads", heads, f"a multiple of num_key_value_heads = {kv_heads}")
    if mamba_heads % groups:
        raise keys.refusal("mamba_num_heads", mamba_heads, f"a multiple of n_groups = {groups}")
    low, high = keys.interval("time_step_limit", default=(0.0, float("inf")))
    # Older files of the family say attention_head_dim and rms_norm_eps; a file that says both must mean one thing.
    head_dim = keys.whole("head_dim", default=keys.whole("attention_head_dim", default=hidden // heads))
    keys.expect("attention_head_dim", head_dim, default=None)
    needs_mlp = "-" in blocks + head_blocks
    made = Config(
        vocab=keys.whole("vocab_size"),
        hidden=hidden,
        blocks=blocks,
        head_blocks=head_blocks,
        window=keys.whole("max_position_embeddings"),
        eps=eps,
        tied=keys.flag("tie_word_embeddings", default=False),
        attention_bias=keys.flag("attention_bias", default=False),
        mlp_bias=keys.flag("mlp_bias", default=False),
        mamba_bias=mamba_bias,
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5),
        mlp=keys.whole("intermediate_size") if needs_mlp else keys.whole("intermediate_size", default=0, low=0),
        ssm=Ssm(
            heads=mamba_heads,
            head_dim=keys.whole("mamba_head_dim"),
            groups=groups,
            state=keys.whole("ssm_state_size"),
            dt_min=low,
            dt_max=high,
        ),
        kernel=keys.whole("conv_kernel", default=4, low=2, high=16),
        conv_bias=keys.flag("use_conv_bias", default=True),
        moe=_experts(keys) if "E" in blocks + head_blocks else None,
    )
    if made.moe is None:
        keys.ignore("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "norm_topk_prob", "n_shared_experts")
        keys.ignore("routed_scaling_factor", "moe_*")
    keys.finish()
    return made


def _experts(keys: Keys) -> Moe:
    experts, top = keys.whole("n_routed_experts"), keys.whole("num_experts_per_tok")
    groups, top_groups = keys.whole("n_group", default=1), keys.whole("topk_group", default=1)
    if experts % groups or (groups > 1 and experts // groups < 2):
        raise keys.refusal("n_group", groups, f"equal groups of at least two of the {experts} experts")
    if top_groups > groups:
        raise keys.refusal("topk_group", top_groups, f"at most n_group = {groups}")
    if top > experts // groups * top_groups:
        raise keys.refusal("num_experts_per_tok", top, f"at most the {experts // groups * top_groups} experts of the chosen groups")
    shared = keys.whole("n_shared_experts", default=0, low=0, high=1)
    keys.ignore("moe_shared_expert_intermediate_size")
    return Moe(
        router=Router(
            experts=experts,
            top=top,
            groups=groups,
            top_groups=top_groups,
            normalise=keys.flag("norm_topk_prob", default=True),
            scale=keys.real("routed_scaling_factor", default=1.0),
        ),
        inner=keys.whole("moe_intermediate_size"),
        shared=keys.whole("moe_shared_expert_intermediate_size") if shared else 0,
        latent=keys.whole("moe_latent_size", default=0),
    )


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes blocks into a program and takes the weights they name off the shelf."""

    config: Config
    shelf: Shelf
    build: Builder = field(default_factory=Builder)

    def norm(self, x: int, name: str, width: int) -> int:
        return self.build.one(RmsNorm(eps=self.config.eps), [x], weights=[self.shelf.take(f"{name}.weight", width)])

    def linear(self, x: int, name: str, out: int, width: int, *, bias: bool = False) -> int:
        weights = [self.shelf.take(f"{name}.weight", out, width)]
        if bias:
            weights.append(self.shelf.take(f"{name}.bias", out))
        return self.build.one(Linear(), [x], weights=weights)

    def embed(self) -> int:
        return self.build.one(Embed(), [0], weights=[self.shelf.take(EMBEDDINGS, self.config.vocab, self.config.hidden)])

    def finish(self, x: int, norm: str) -> Program:
        c = self.config
        hidden = self.norm(x, norm, c.hidden)
        head = self.shelf.share(LM_HEAD, EMBEDDINGS) if c.tied else self.shelf.take(LM_HEAD, c.vocab, c.hidden)
        return self.build.build(hidden=hidden, logits=self.build.one(Head(), [hidden], weights=[head]))

    def block(self, x: int, kind: str, at: str) -> int:
        """x + mixer(norm(x))."""
        mixer = {"M": self.mamba, "*": self.attention, "E": self.experts, "-": self.dense}[kind]
        y = mixer(self.norm(x, f"{at}.norm", self.config.hidden), f"{at}.mixer")
        return self.build.one(Add(), [x, y])

    def mamba(self, x: int, at: str) -> int:
        c = self.config
        rows = self.linear(x, f"{at}.in_proj", c.inner + c.channels + c.ssm.heads, c.hidden, bias=c.mamba_bias)
        z, xbc, dt = self.build.op(Split(sizes=(c.inner, c.channels, c.ssm.heads)), [rows], outs=3)
        conv = [self.shelf.take(f"{at}.conv1d.weight", c.channels, c.kernel)]
        if c.conv_bias:
            conv.append(self.shelf.take(f"{at}.conv1d.bias", c.channels))
        past = Slot(name=f"{at}.conv", kind="conv", shape=(c.kernel - 1, c.channels))
        xbc = self.build.one(Conv(channels=c.channels, kernel=c.kernel), [xbc], weights=conv, slot=past)
        scalars = [self.shelf.take(f"{at}.{name}", c.ssm.heads) for name in ("A_log", "D", "dt_bias")]
        state = Slot(name=f"{at}.ssm", kind="ssm", shape=(c.ssm.heads, c.ssm.head_dim, c.ssm.state))
        y = self.build.one(c.ssm, [xbc, dt], weights=scalars, slot=state)
        gain = self.shelf.take(f"{at}.norm.weight", c.inner)
        y = self.build.one(GatedNorm(groups=c.ssm.groups, eps=c.eps), [y, z], weights=[gain])
        return self.linear(y, f"{at}.out_proj", c.hidden, c.inner, bias=c.mamba_bias)

    def attention(self, x: int, at: str) -> int:
        c, a = self.config, self.config.attention
        wide, narrow = a.heads * a.head_dim, a.kv_heads * a.head_dim
        q = self.linear(x, f"{at}.q_proj", wide, c.hidden, bias=c.attention_bias)
        k = self.linear(x, f"{at}.k_proj", narrow, c.hidden, bias=c.attention_bias)
        v = self.linear(x, f"{at}.v_proj", narrow, c.hidden, bias=c.attention_bias)
        y = self.build.one(a, [q, k, v], slot=Slot(name=f"{at}.kv", kind="kv", shape=(2, a.kv_heads, a.head_dim)))
        return self.linear(y, f"{at}.o_proj", c.hidden, wide, bias=c.attention_bias)

    def mlp(self, x: int, at: str, inner: int) -> int:
        c = self.config
        up = self.build.one(Relu2(), [self.linear(x, f"{at}.up_proj", inner, c.hidden, bias=c.mlp_bias)])
        return self.linear(up, f"{at}.down_proj", c.hidden, inner, bias=c.mlp_bias)

    def dense(self, x: int, at: str) -> int:
        return self.mlp(x, at, self.config.mlp)

    def experts(self, x: int, at: str) -> int:
        c, moe = self.config, self.config.moe
        if moe is None:
            raise CheckpointError("the pattern names an expert block, but no experts were read")
        count = moe.router.experts
        gate = [
            self.shelf.take(f"{at}.gate.weight", count, c.hidden),
            self.shelf.take(f"{at}.gate.e_score_correction_bias", count),
        ]
        ids, shares = self.build.op(moe.router, [x], weights=gate, outs=2)
        width = moe.latent or c.hidden
        into = self.linear(x, f"{at}.fc1_latent_proj", width, c.hidden, bias=c.mlp_bias) if moe.latent else x
        stacks = [
            self.shelf.take(f"{at}.switch_mlp.fc1.weight", count, moe.inner, width),
            self.shelf.take(f"{at}.switch_mlp.fc2.weight", count, width, moe.inner),
        ]
        y = self.build.one(Experts(), [into, ids, shares], weights=stacks)
        if moe.latent:
            y = self.linear(y, f"{at}.fc2_latent_proj", c.hidden, width, bias=c.mlp_bias)
        if moe.shared:
            y = self.build.one(Add(), [y, self.mlp(x, f"{at}.shared_experts", moe.shared)])
        return y


def main_program(config: Config, shelf: Shelf) -> Program:
    """Token ids to logits."""
    writer = _Writer(config=config, shelf=shelf)
    x = writer.embed()
    for index, kind in enumerate(config.blocks):
        x = writer.block(x, kind, f"backbone.layers.{index}")
    return writer.finish(x, "backbone.norm_f")


def head_program(config: Config, shelf: Shelf) -> Program:
    """The MTP head: (token i+1, hidden after the final norm at i) to logits of token i+2, over the model's embedding and LM head.

    x = eh_proj [enorm(e) | hnorm(h)], then the head's blocks over its own KV, then its final norm. A chain feeds "hidden" back.
    """
    writer = _Writer(config=config, shelf=shelf, build=Builder(inputs=("tokens", "hidden")))
    first, last = "mtp.layers.0", f"mtp.layers.{len(config.head_blocks) - 1}"
    e = writer.norm(writer.embed(), f"{first}.enorm", config.hidden)
    h = writer.norm(1, f"{first}.hnorm", config.hidden)
    x = writer.linear(writer.build.one(Concat(), [e, h]), f"{first}.eh_proj", config.hidden, 2 * config.hidden)
    for index, kind in enumerate(config.head_blocks):
        x = writer.block(x, kind, f"mtp.layers.{index}")
    return writer.finish(x, f"{last}.final_layernorm")


def model(checkpoint: Checkpoint) -> Model:
    """The Model of a checkpoint, with a head when the files hold one. CheckpointError names what is unknown, missing, misshapen."""
    where = checkpoint.path.name
    config = read_config(checkpoint.config, where=f"{where}/config.json")
    shelf = Shelf(checkpoint.specs, where=where)
    main = main_program(config, shelf)
    head = head_program(config, shelf) if any(name.startswith("mtp.") for name in checkpoint.specs) else None
    return Model(
        name=where,
        family="nemotron_h",
        vocab=config.vocab,
        hidden=config.hidden,
        window=config.window,
        main=main,
        head=head,
        # A file may repeat the tied matrix.
        weights=shelf.finish(spare=frozenset({LM_HEAD}) if config.tied else frozenset()),
    )
