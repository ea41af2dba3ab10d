"""Makes tiny random nemotron_h checkpoints: Hugging Face in bf16, MLX affine, Hugging Face with the affine values in fp32."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from homestretch.engine.checkpoint.affine import dequantize, quantize
from homestretch.engine.families.nemotron_h import TINY

Tensors = dict[str, torch.Tensor]
SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
TEMPLATE = (
    "{%- if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif -%}"
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}"
    "{{- '<think>\n' if enable_thinking else '<think></think>' -}}{%- endif -%}"
)
FULL = ("A_log", ".D", "dt_bias", "e_score_correction_bias", "gate.weight")
Quantize = Callable[[str], tuple[int, int] | None]


def four_bit(name: str) -> tuple[int, int] | None:
    return 4, 64


def config_of(pattern: str = "ME*-ME", *, head: bool = True, **changes: Any) -> dict[str, Any]:
    """A config.json of the family with this pattern; mlx-lm and transformers ask for more keys than the engine."""
    made = {
        **TINY,
        "architectures": ["NemotronHForCausalLM"],
        "torch_dtype": "bfloat16",
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "attention_bias": False,
        "mlp_bias": False,
        "use_bias": False,
        "use_conv_bias": True,
        "mamba_proj_bias": False,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "layer_norm_epsilon": 1e-5,
        "norm_eps": 1e-5,
        "chunk_size": 32,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "residual_in_fp32": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 4,
        "pad_token_id": 2,
        **changes,
    }
    if not head:
        del made["mtp_hybrid_override_pattern"], made["num_nextn_predict_layers"]
    return made


def random_tensors(config: Mapping[str, Any], seed: int) -> Tensors:
    """Every tensor under its published name. Nothing is zero or one by default, so that a dropped term shows in the logits."""
    draw = torch.Generator().manual_seed(seed)
    out: Tensors = {}
    hidden, heads = config["hidden_size"], config["mamba_num_heads"]
    inner = heads * config["mamba_head_dim"]
    channels = inner + 2 * config["n_groups"] * config["ssm_state_size"]

    def normal(*shape: int, scale: float | None = None) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * (1 / math.sqrt(shape[-1]) if scale is None else scale)

    def within(low: float, high: float, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=draw) * (high - low) + low

    def mamba(at: str) -> None:
        out[f"{at}.in_proj.weight"] = normal(inner + channels + heads, hidden)
        out[f"{at}.conv1d.weight"] = normal(channels, 1, config["conv_kernel"], scale=0.5)
        if config["use_conv_bias"]:
            out[f"{at}.conv1d.bias"] = normal(channels, scale=0.2)
        out[f"{at}.A_log"] = within(0.5, 16.0, heads).log()
        out[f"{at}.D"] = within(0.2, 1.5, heads)
        step = within(math.log(1e-3), math.log(0.3), heads).exp()
        out[f"{at}.dt_bias"] = step + torch.log(-torch.expm1(-step))
        out[f"{at}.norm.weight"] = within(0.5, 1.5, inner)
        out[f"{at}.out_proj.weight"] = normal(hidden, inner) * 0.3
        if config["mamba_proj_bias"]:
            out[f"{at}.in_proj.bias"] = normal(inner + channels + heads, scale=0.1)
            out[f"{at}.out_proj.bias"] = normal(hidden, scale=0.1)

    def attention(at: str) -> None:
        wide, narrow = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
        for name, rows, columns, gain in (
            ("q_proj", wide, hidden, 2.0),
            ("k_proj", narrow, hidden, 2.0),
            ("v_proj", narrow, hidden, 1.0),
            ("o_proj", hidden, wide, 0.3),
        ):
            out[f"{at}.{name}.weight"] = normal(rows, columns) * gain
            if config["attention_bias"]:
                out[f"{at}.{name}.bias"] = normal(rows, scale=0.1)

    def mlp(at: str, width: int, columns: int = hidden) -> None:
        out[f"{at}.up_proj.weight"] = normal(width, columns)
        out[f"{at}.down_proj.weight"] = normal(columns, width) * 0.3
        if config["mlp_bias"] and ".experts." not in at:
            out[f"{at}.up_proj.bias"] = normal(width, scale=0.1)
            out[f"{at}.down_proj.bias"] = normal(columns, scale=0.1)

    def experts(at: str) -> None:
        out[f"{at}.gate.weight"] = normal(config["n_routed_experts"], hidden)
        # mlx-lm closes a group by the score 0, which only hides it below positive scores.
        bias = normal(config["n_routed_experts"], scale=0.2)
        out[f"{at}.gate.e_score_correction_bias"] = bias.abs() if config["n_group"] > 1 else bias
        latent = config.get("moe_latent_size") or hidden
        for expert in range(config["n_routed_experts"]):
            mlp(f"{at}.experts.{expert}", config["moe_intermediate_size"], latent)
        if latent != hidden:
            out[f"{at}.fc1_latent_proj.weight"] = normal(latent, hidden)
            out[f"{at}.fc2_latent_proj.weight"] = normal(hidden, latent)
        if config["n_shared_experts"]:
            mlp(f"{at}.shared_experts", config["moe_shared_expert_intermediate_size"])

    def block(at: str, kind: str) -> None:
        out[f"{at}.norm.weight"] = within(0.5, 1.5, hidden)
        mixer = {"M": mamba, "*": attention, "E": experts, "-": lambda at: mlp(at, config["intermediate_size"])}[kind]
        mixer(f"{at}.mixer")

    out["backbone.embeddings.weight"] = normal(config["vocab_size"], hidden, scale=1.0)
    for index, kind in enumerate(config["hybrid_override_pattern"]):
        block(f"backbone.layers.{index}", kind)
    out["backbone.norm_f.weight"] = within(0.5, 1.5, hidden)
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = normal(config["vocab_size"], hidden) * 3
    if config.get("num_nextn_predict_layers"):
        kinds = config["mtp_hybrid_override_pattern"]
        for index, kind in enumerate(kinds):
            block(f"mtp.layers.{index}", kind)
        out["mtp.layers.0.enorm.weight"] = within(0.5, 1.5, hidden)
        out["mtp.layers.0.hnorm.weight"] = within(0.5, 1.5, hidden)
        out["mtp.layers.0.eh_proj.weight"] = normal(hidden, 2 * hidden)
        out[f"mtp.layers.{len(kinds) - 1}.final_layernorm.weight"] = within(0.5, 1.5, hidden)
    return {name: (t if name.endswith(FULL) else t.bfloat16()).contiguous() for name, t in out.items()}


def write_text(folder: Path, config: Mapping[str, Any]) -> None:
    """Tokenizer, template, generation_config.json with a second end token and sampling defaults."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config["vocab_size"],
        special_tokens=SPECIALS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(["the quick brown fox jumps over the lazy dog and then the other dog too"] * 8, trainer)
    core.save(str(folder / "tokenizer.json"))
    kind = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [4, 2], "do_sample": True, "temperature": 1.0, "top_p": 0.95})
    )


def write_hf(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """The layout of the published bf16 files; infinity as a bare token."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_text(folder, config)
    return folder


def _stacked(tensors: Tensors) -> Tensors:
    """MLX's names: experts of a block stacked, kernels as (channels, kernel, 1)."""
    out: Tensors = {}
    for name, tensor in tensors.items():
        at, expert, rest = name.partition(".experts.")
        if not expert:
            out[name] = tensor.transpose(1, 2).contiguous() if name.endswith("conv1d.weight") else tensor
        elif rest.startswith("0."):
            part = rest.removeprefix("0.")
            count = sum(other.startswith(f"{at}.experts.") and other.endswith(part) for other in tensors)
            stack = torch.stack([tensors[f"{at}.experts.{e}.{part}"] for e in range(count)])
            out[f"{at}.switch_mlp.{'fc1' if part.startswith('up') else 'fc2'}.weight"] = stack
    return out


def _affine(tensors: Tensors, widths: Quantize) -> Tensors:
    out: Tensors = {}
    for name, tensor in tensors.items():
        pair = widths(name.removesuffix(".weight"))
        if tensor.dim() < 2 or pair is None or name.endswith(("conv1d.weight", "gate.weight")):
            # mlx-lm stores everything else in the model's type; the router's matrix too.
            out[name] = tensor if name.endswith(("A_log", "e_score_correction_bias")) else tensor.bfloat16()
            continue
        made = quantize(tensor, bits=pair[0], group=pair[1])
        layer = name.removesuffix(".weight")
        out |= {f"{layer}.weight": made.words, f"{layer}.scales": made.scales, f"{layer}.biases": made.biases}
    return out


def write_mlx(folder: Path, config: Mapping[str, Any], tensors: Tensors, *, widths: Quantize = four_bit, shards: int = 1) -> Path:
    """What mlx-lm's converter writes, the head beside it in a file of its own; infinity as an object."""
    folder.mkdir(parents=True, exist_ok=True)
    stacked = _stacked(tensors)
    main = _affine({name: t for name, t in stacked.items() if not name.startswith("mtp.")}, widths)
    layers = {name.removesuffix(".scales"): widths(name.removesuffix(".scales")) for name in main if name.endswith(".scales")}
    quantization: dict[str, Any] = {"group_size": 64, "bits": 4, "mode": "affine"}
    for layer, pair in layers.items():
        if pair is not None and pair != (4, 64):
            quantization[layer] = {"bits": pair[0], "group_size": pair[1]}
    for name in stacked:
        if widths(name.removesuffix(".weight")) is None and stacked[name].dim() > 1:
            quantization[name.removesuffix(".weight")] = False
    written = {**config, "quantization": quantization, "quantization_config": quantization}
    limit = [{"__float__": "Infinity"} if math.isinf(x) else x for x in config["time_step_limit"]]
    (folder / "config.json").write_text(json.dumps({**written, "time_step_limit": limit}))
    names = sorted(main)
    places: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        part = {name: main[name] for name in names[shard::shards]}
        save_file(part, str(folder / file), metadata={"format": "mlx"})
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    head = _affine({name.removeprefix("mtp."): t for name, t in stacked.items() if name.startswith("mtp.")}, four_bit)
    if head:
        save_file(head, str(folder / "mtp-4bit.safetensors"), metadata={"format": "mlx", "bits": "4", "group_size": "64"})
    write_text(folder, config)
    return folder


def rounded(tensors: Tensors, *, widths: Quantize = four_bit) -> Tensors:
    """The same tensors with the values that `write_mlx` leaves, in fp32 under the published names."""
    out: Tensors = {}
    for name, tensor in tensors.items():
        pair = four_bit(name) if name.startswith("mtp.") else widths(_mlx_layer(name))
        if tensor.dim() < 2 or pair is None or name.endswith(("conv1d.weight", "gate.weight")):
            out[name] = tensor.bfloat16().float() if not name.endswith(("A_log", "e_score_correction_bias")) else tensor.float()
        else:
            out[name] = dequantize(quantize(tensor, bits=pair[0], group=pair[1]))
    return out


def _mlx_layer(name: str) -> str:
    at, expert, rest = name.removesuffix(".weight").partition(".experts.")
    return f"{at}.switch_mlp.{'fc1' if rest.endswith('up_proj') else 'fc2'}" if expert else at
