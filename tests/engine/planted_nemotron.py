"""A nemotron_h whose MTP head is right by construction: it rebuilds what the first block makes, then runs the other blocks.

A row of the residual stream is [1 | flag | a | b | c]: a spells the row's token in signs, b the token before it, c is empty at
first. The Mamba-2 block of the main program copies a of the row before into b (its convolution looks one step back; silu(x) -
silu(-x) = x makes that exact). The attention and expert blocks read all of it and write to c alone, small enough not to move a
norm; the LM head reads c alone. The head gets a from the token's embedding and b from the a-part of the hidden before it, whose
signs the final norm has flipped by a random pattern that eh_proj undoes; then come the same attention and experts. So its logits
are the main program's, and every error of wiring scrambles them.
"""

from __future__ import annotations

from typing import Any

import torch
from tiny_nemotron import Tensors, config_of

A, B, C = slice(2, 22), slice(22, 42), slice(42, 64)
WIDTH, LETTERS, SIZE, SMALL = 64, 20, 96, 1e-5
BOS = 1


def planted_config() -> dict[str, Any]:
    return config_of(
        "M*E",
        vocab_size=SIZE,
        hidden_size=WIDTH,
        mamba_num_heads=2,
        mamba_head_dim=32,
        ssm_state_size=32,
        n_groups=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        mtp_hybrid_override_pattern="*E",
    )


def planted_tensors(seed: int) -> Tensors:
    """fp32 tensors under the published names."""
    draw = torch.Generator().manual_seed(seed)
    config = planted_config()

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    def signs(*shape: int) -> torch.Tensor:
        return torch.randint(0, 2, shape, generator=draw).float() * 2 - 1

    out: Tensors = {}
    letters = signs(SIZE, LETTERS)
    embed = torch.zeros(SIZE, WIDTH)
    embed[:, 0], embed[:, 1], embed[:, A] = 1.0, -1.0, letters
    embed[BOS, 1] = 1.0
    out["backbone.embeddings.weight"] = embed
    flips = signs(LETTERS)
    final = torch.ones(WIDTH)
    final[A], final[B] = flips, 0.0
    out["backbone.norm_f.weight"] = final
    lm_head = torch.zeros(SIZE, WIDTH)
    lm_head[:, C] = normal(SIZE, C.stop - C.start) / SMALL / 60
    out["lm_head.weight"] = lm_head

    # The copy of a into the next row's b: channels 0.. hold +a, the next ones -a, the gate is a constant.
    inner, channels = 64, 64 + 64
    into = torch.zeros(inner + channels + 2, WIDTH)
    into[:inner, 0] = 4.0
    for letter in range(LETTERS):
        into[inner + letter, A.start + letter] = 1.0
        into[inner + LETTERS + letter, A.start + letter] = -1.0
    at = "backbone.layers.0"
    kernel = torch.zeros(channels, 1, 4)
    kernel[:, 0, 2] = 1.0
    out[f"{at}.norm.weight"] = torch.ones(WIDTH)
    out[f"{at}.mixer.in_proj.weight"] = into
    out[f"{at}.mixer.conv1d.weight"], out[f"{at}.mixer.conv1d.bias"] = kernel, torch.zeros(channels)
    out[f"{at}.mixer.A_log"], out[f"{at}.mixer.dt_bias"], out[f"{at}.mixer.D"] = torch.zeros(2), torch.zeros(2), torch.ones(2)
    out[f"{at}.mixer.norm.weight"] = torch.ones(inner)
    back = torch.zeros(WIDTH, inner)
    scale = _copied(letters[2], embed[2], into)
    for letter in range(LETTERS):
        back[B.start + letter, letter], back[B.start + letter, LETTERS + letter] = 1 / scale, -1 / scale
    out[f"{at}.mixer.out_proj.weight"] = back

    def block(kind: str) -> Tensors:
        made: Tensors = {"norm.weight": torch.ones(WIDTH)}
        if kind == "*":
            q, k, v = normal(64, WIDTH) * 0.5, normal(32, WIDTH) * 0.5, normal(32, WIDTH)
            q[:, C], k[:, C], v[:, C] = 0.0, 0.0, 0.0
            q[:, B], k[:, B], v[:, A] = 0.0, 0.0, 0.0  # matches by token, reads the token before the match
            q[:, :2], k[:, :2], v[:, :2] = 0.0, 0.0, 0.0
            # One element of every head says that nobody looks at BOS: the head has no row for it.
            q[::16], k[::16] = 0.0, 0.0
            q[::16, 0], k[::16, 0], k[::16, 1] = 30.0, -10.0, -10.0
            o = torch.zeros(WIDTH, 64)
            o[C] = normal(C.stop - C.start, 64) * SMALL
            return made | {f"mixer.{name}_proj.weight": t for name, t in (("q", q), ("k", k), ("v", v), ("o", o))}
        made["norm.weight"][C] = 0.3 / SMALL
        experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
        made["mixer.gate.weight"] = normal(experts, WIDTH) / 8
        made["mixer.gate.e_score_correction_bias"] = normal(experts) * 0.2
        for name, inner in [(f"experts.{e}", width) for e in range(experts)] + [("shared_experts", 128)]:
            made[f"mixer.{name}.up_proj.weight"] = normal(inner, WIDTH) / 8
            down = torch.zeros(WIDTH, inner)
            down[C] = normal(C.stop - C.start, inner) * SMALL / 40
            made[f"mixer.{name}.down_proj.weight"] = down
        return made

    for index, kind in enumerate("*E"):
        for name, tensor in block(kind).items():
            out[f"backbone.layers.{index + 1}.{name}"] = tensor
            out[f"mtp.layers.{index}.{name}"] = tensor.clone()
    out["mtp.layers.1.final_layernorm.weight"] = final.clone()
    out["mtp.layers.0.enorm.weight"], out["mtp.layers.0.hnorm.weight"] = torch.ones(WIDTH), torch.ones(WIDTH)
    join = torch.zeros(WIDTH, 2 * WIDTH)
    whole = embed[2].clone()
    whole[B] = 1.0
    hidden = _normed(whole) * final
    for place in (0, 1, *range(A.start, A.stop)):
        join[place, place] = 1 / float(_normed(embed[2])[0])
    for letter in range(LETTERS):
        join[B.start + letter, WIDTH + A.start + letter] = flips[letter] / float(_normed(hidden)[0])
    out["mtp.layers.0.eh_proj.weight"] = join
    return {name: t.contiguous() for name, t in out.items()}


def _normed(x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x / x.square().mean().add(1e-5).sqrt()


def _copied(letters: torch.Tensor, embedding: torch.Tensor, into: torch.Tensor) -> float:
    """How large the block's copy of a letter of 1 comes out, before out_proj undoes it."""
    row = _normed(embedding)
    gate = torch.nn.functional.silu(into[0].double() @ row)
    y = _normed(torch.nn.functional.silu(into[64 : 64 + 64].double() @ row) * gate)
    return float(((y[:LETTERS] - y[LETTERS : 2 * LETTERS]) * letters).mean())
