"""nemotron_h: three layouts, odd patterns, tiles against rows, and the logits of mlx-lm and transformers on the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_nemotron import config_of, four_bit, random_tensors, rounded, write_hf, write_mlx

from homestretch.engine.backends.reference import Backend
from homestretch.engine.backends.reference.memory import Memory
from homestretch.engine.checkpoint import Affine
from homestretch.engine.checkpoint.hf import HfCheckpoint
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.errors import CheckpointError, SetupError
from homestretch.engine.families import build_model
from homestretch.engine.families.nemotron_h import read_config
from homestretch.engine.program import QUANTUM, Model
from homestretch.engine.types import Limits

LENGTH = QUANTUM + 37
STEPS = 40
CASES: dict[str, dict[str, Any]] = {
    "ME*-ME": {},
    "*MM-E*": {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 4, "time_step_limit": [0.01, 0.2], "n_groups": 1},
    "M*": {
        "mamba_proj_bias": True,
        "use_bias": True,
        "use_conv_bias": False,
        "conv_kernel": 3,
        "num_key_value_heads": 4,
    },
    "EE-MM**M": {"norm_topk_prob": False, "n_shared_experts": None, "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "MEMEM*EM": {"moe_latent_size": 64, "hidden_size": 128, "n_routed_experts": 12, "num_experts_per_tok": 5},
}
RUNS = [(pattern, seed) for pattern in CASES for seed in range(3)]
WIDER = {"backbone.layers.0.mixer.in_proj": (8, 32), "lm_head": (6, 64), "backbone.layers.1.mixer.switch_mlp.fc1": (3, 64)}


def widths(name: str) -> tuple[int, int] | None:
    return WIDER.get(name, four_bit(name))


def load(path: Path) -> tuple[Model, Backend]:
    checkpoint = open_checkpoint(path)
    model = build_model(checkpoint)
    backend = Backend()
    backend.load(model, checkpoint, Limits(window=512, streams=1, memory_bytes=1 << 33))
    return model, backend


def tiles(model: Model, backend: Backend, ids: list[int]) -> torch.Tensor:
    """Logits of every position, read as a prompt."""
    memory = Memory(backend._store)
    memory.cover(len(ids))
    made = []
    for start in range(0, len(ids), QUANTUM):
        part = ids[start : start + QUANTUM]
        made.append(backend._machine.tile(model.main, part, memory, start, asked=tuple(range(len(part)))).logits)
    memory.table.clear()
    return torch.cat(made)


def rows(model: Model, backend: Backend, ids: list[int]) -> torch.Tensor:
    """Logits of every position, decoded one by one."""
    memory = Memory(backend._store)
    memory.cover(len(ids))
    made = []
    for position, token in enumerate(ids):
        made.append(backend._machine.row(model.main, token, memory, position, 0).logits)
        memory.commit(1)
    memory.table.clear()
    return torch.cat(made)


def text(seed: int, length: int = LENGTH) -> list[int]:
    found: list[int] = torch.randint(5, 320, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def off(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, as a share of the largest logit."""
    return float((mine - theirs).abs().max() / theirs.abs().max())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int], Path]:
    """A folder with the three layouts for each run."""
    out: dict[tuple[str, int], Path] = {}
    for pattern, seed in RUNS:
        folder = tmp_path_factory.mktemp("tiny")
        config = config_of(pattern, head=pattern == "ME*-ME", **CASES[pattern])
        tensors = random_tensors(config, seed)
        write_hf(folder / "hf", config, tensors)
        write_mlx(folder / "mlx", config, tensors, widths=widths, shards=2)
        write_hf(folder / "values", config, rounded(tensors, widths=widths))
        out[pattern, seed] = folder
    return out


@pytest.mark.parametrize(("pattern", "seed"), RUNS)
def test_the_layouts_agree_and_rows_agree_with_tiles(pattern: str, seed: int, made: Mapping[tuple[str, int], Path]) -> None:
    folder, ids = made[pattern, seed], text(seed)
    model, backend = load(folder / "mlx")
    mlx = tiles(model, backend, ids)
    assert off(rows(model, backend, ids), mlx) < 2e-6
    assert off(tiles(*load(folder / "values"), ids), mlx) == 0.0
    assert 1e-3 < off(tiles(*load(folder / "hf"), ids), mlx) < 1.0


@pytest.mark.oracle
@pytest.mark.parametrize(("pattern", "seed"), RUNS)
def test_logits_of_mlx_lm(pattern: str, seed: int, made: Mapping[tuple[str, int], Path]) -> None:
    mx = pytest.importorskip("mlx.core")
    np = pytest.importorskip("numpy")
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model

    folder, ids = made[pattern, seed], text(seed)
    theirs, _ = load_model(folder / "mlx")
    theirs.update(tree_map(lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p, theirs.parameters()))
    full = torch.from_numpy(np.array(theirs(mx.array([ids])))[0])
    model, backend = load(folder / "mlx")
    mine = tiles(model, backend, ids)
    assert off(mine, full) <= 1e-5
    assert torch.equal(mine.argmax(-1), full.argmax(-1))
    cache = theirs.make_cache()
    parts = [np.array(theirs(mx.array([[token]]), cache=cache))[0] for token in ids[:STEPS]]
    stepped = torch.from_numpy(np.concatenate(parts))
    assert off(rows(model, backend, ids[:STEPS]), stepped) <= 1e-5


@pytest.mark.oracle
@pytest.mark.parametrize(("pattern", "seed"), RUNS)
def test_logits_of_transformers(pattern: str, seed: int, made: Mapping[tuple[str, int], Path]) -> None:
    transformers = pytest.importorskip("transformers")
    folder, ids = made[pattern, seed], text(seed)
    if not CASES[pattern].get("n_shared_experts", 1):
        pytest.skip("transformers knows neither an expert block without a shared expert nor biases in attention; mlx-lm does")
    transformers.logging.set_verbosity_error()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "values", dtype=torch.float32).eval()
    for layer in theirs.model.layers:
        if layer.block_type == "linear_attention":
            # Its prompts clamp dt at time_step_min otherwise, its steps do not.
            layer.mixer.time_step_limit = tuple(theirs.config.time_step_limit)
    model, backend = load(folder / "values")
    with torch.no_grad():
        full = theirs(torch.tensor([ids])).logits[0]
        mine = tiles(model, backend, ids)
        assert off(mine, full) <= 1e-5
        assert torch.equal(mine.argmax(-1), full.argmax(-1))
        single = rows(model, backend, ids[:STEPS])
        assert off(single, full[:STEPS]) <= 1e-5
        if "time_step_limit" in CASES[pattern]:
            return  # its steps do not clamp dt at all
        stepped, cache = [], None
        for token in ids[:STEPS]:
            out = theirs(torch.tensor([[token]]), cache=cache, use_cache=True)
            cache = out.cache
            stepped.append(out.logits[0])
    assert off(single, torch.cat(stepped)) <= 1e-5


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_what_the_converter_of_mlx_lm_writes_is_read(made: Mapping[tuple[str, int], Path], tmp_path: Path) -> None:
    """Its config.json, names, index and words, with one width and with several; it leaves the head out, so nobody drafts by it."""
    mx = pytest.importorskip("mlx.core")
    np = pytest.importorskip("numpy")
    from mlx.utils import tree_map
    from mlx_lm import convert
    from mlx_lm.utils import load_model

    def mixed(path: str, module: Any) -> Any:
        if path.endswith("o_proj"):
            return False
        return {"bits": 6, "group_size": 32, "mode": "affine"} if path.endswith("in_proj") else hasattr(module, "to_quantized")

    ids = text(4)
    for name, predicate in (("plain", None), ("mixed", mixed)):
        convert(
            str(made["ME*-ME", 0] / "hf"), str(tmp_path / name), quantize=True, q_bits=4, q_group_size=64, quant_predicate=predicate
        )
        theirs, _ = load_model(tmp_path / name)
        theirs.update(tree_map(lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p, theirs.parameters()))
        full = torch.from_numpy(np.array(theirs(mx.array([ids])))[0])
        model, backend = load(tmp_path / name)
        assert model.head is None
        assert model.weights["backbone.layers.0.mixer.in_proj.weight"].bits == (6 if predicate else 4)
        assert model.weights["backbone.layers.2.mixer.o_proj.weight"].bits == (0 if predicate else 4)
        assert off(tiles(model, backend, ids), full) <= 1e-5


def reply(model: Model, backend: Backend, prompt: list[int], count: int) -> list[int]:
    """Greedy: the prompt as a tile, then a row a token."""
    memory = Memory(backend._store)
    memory.cover(len(prompt) + count)
    logits = backend._machine.tile(model.main, prompt, memory, 0, asked=(len(prompt) - 1,)).logits[0]
    made = [int(logits.argmax())]
    while len(made) < count:
        logits = backend._machine.row(model.main, made[-1], memory, len(prompt) + len(made) - 1, 0).logits[0]
        memory.commit(1)
        made.append(int(logits.argmax()))
    memory.table.clear()
    return made


@pytest.mark.oracle
@pytest.mark.parametrize("pattern", CASES)
def test_greedy_replies_equal_theirs(pattern: str, made: Mapping[tuple[str, int], Path]) -> None:
    transformers = pytest.importorskip("transformers")
    mx = pytest.importorskip("mlx.core")
    from mlx.utils import tree_map
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    folder, ids, count = made[pattern, 0], text(7, 20), 32
    mine = reply(*load(folder / "values"), ids, count)
    assert mine == reply(*load(folder / "mlx"), ids, count)
    packed, _ = load_model(folder / "mlx")
    packed.update(tree_map(lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p, packed.parameters()))
    steps = zip(generate_step(mx.array(ids), packed), range(count), strict=False)
    assert mine == [int(token) for (token, _), _ in steps]
    if not CASES[pattern].get("n_shared_experts", 1) or "time_step_limit" in CASES[pattern]:
        return  # transformers has no such model, or no such steps: see above
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "values", dtype=torch.float32).eval()
    for layer in theirs.model.layers:
        if layer.block_type == "linear_attention":
            layer.mixer.time_step_limit = tuple(theirs.config.time_step_limit)
    with torch.no_grad():
        wanted = theirs.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, eos_token_id=None)[0, len(ids) :]
    assert mine == wanted.tolist()


def test_four_bits_at_load_give_the_mlx_folder(made: Mapping[tuple[str, int], Path], tmp_path: Path) -> None:
    config = config_of("ME*-ME")
    tensors = random_tensors(config, 0)
    write_mlx(tmp_path / "mlx", config, tensors)
    packed, plain = open_checkpoint(tmp_path / "mlx"), HfCheckpoint(made["ME*-ME", 0] / "hf", four_bit=True)
    assert "quantized to 4 bits" in plain.notes[0]
    for name, spec in plain.specs.items():
        assert spec.bits == packed.specs[name].bits, name
        if spec.bits:
            ours, theirs = plain.read(name), packed.read(name)
            assert isinstance(ours, Affine)
            assert isinstance(theirs, Affine)
            assert torch.equal(ours.words.view(torch.int32), theirs.words.view(torch.int32))
            assert torch.equal(ours.scales, theirs.scales)


def test_four_bits_are_for_dense_folders(made: Mapping[tuple[str, int], Path]) -> None:
    folder = made["ME*-ME", 0]
    assert build_model(open_checkpoint(folder / "hf", four_bit=True)).weights["lm_head.weight"].bits == 4
    with pytest.raises(SetupError, match=r"--four-bit packs dense Hugging Face folders; mlx is packed already \(mlx\)"):
        open_checkpoint(folder / "mlx", four_bit=True)


def test_block_lists_spell_the_same_model() -> None:
    config = config_of("M*E-")
    words = dict(config)
    del words["hybrid_override_pattern"]
    for names in (["mamba", "attention", "moe", "mlp"], ["linear_attention", "full_attention", "moe", "mlp"]):
        assert read_config(words | {"layers_block_type": names}) == read_config(config)
        assert read_config(config | {"layer_types": names}) == read_config(config)
    older = {key: value for key, value in config.items() if key not in ("head_dim", "layer_norm_epsilon", "norm_eps")}
    assert read_config(older | {"attention_head_dim": 32, "rms_norm_eps": 1e-5}) == read_config(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hybrid_override_pattern": "ME?"}, r"hybrid_override_pattern\[2\] = '\?' is not supported; allowed: M, mamba"),
        ({"hybrid_override_pattern": ""}, "at least one block"),
        ({"num_hidden_layers": 7}, "num_hidden_layers = 7 is not supported; allowed: 6"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act = 'silu' is not supported; allowed: 'relu2'"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
        ({"mamba_ssm_cache_dtype": "bfloat16"}, "mamba_ssm_cache_dtype = 'bfloat16'"),
        ({"attn_logit_softcapping": 30.0}, "unknown config key attn_logit_softcapping = 30.0"),
        ({"hidden_size": "64"}, "hidden_size = '64' is not supported; allowed: a whole number"),
        ({"n_group": 3}, "n_group = 3 is not supported; allowed: equal groups"),
        ({"topk_group": 2}, "topk_group = 2 is not supported; allowed: at most n_group = 1"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok = 9"),
        ({"n_shared_experts": 2}, "n_shared_experts = 2"),
        ({"time_step_limit": [1.0, 0.0]}, "two numbers in ascending order"),
        ({"mamba_num_heads": 5}, "mamba_num_heads = 5 is not supported; allowed: a multiple of n_groups = 2"),
        ({"mtp_hybrid_override_pattern": "ME"}, "mtp_hybrid_override_pattern = 'ME'"),
        ({"num_nextn_predict_layers": 3}, "num_nextn_predict_layers = 3"),
        ({"use_bias": True}, "use_bias = True is not supported; allowed: False"),
        (
            {"layers_block_type": ["mamba", "moe"]},
            "hybrid_override_pattern = 'ME\\*-ME' is not supported; allowed: the blocks that",
        ),
        ({"attention_head_dim": 64}, "attention_head_dim = 64"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps = 1e-06"),
        ({"norm_eps": 1e-6}, "norm_eps = 1e-06"),
    ],
)
def test_a_config_that_would_change_the_arithmetic_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_config(config_of("ME*-ME") | change)


def test_equal_scores_go_to_the_lower_expert() -> None:
    from homestretch.engine.backends.reference import hybrid
    from homestretch.engine.backends.reference.lowering import Rows
    from homestretch.engine.program import Op, Router

    router = Router(experts=8, top=3, groups=4, top_groups=2, normalise=True, scale=2.0)
    op = Op(attrs=router, ins=(0,), outs=(1, 2), weights=("gate", "bias"))
    weights = {"gate": torch.zeros(8, 4), "bias": torch.tensor([0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5])}
    rows = Rows(weights=weights, memory=None, start=0, count=2, tile=True)  # type: ignore[arg-type]
    ids, shares = hybrid.router(op, [torch.ones(2, 4)], rows)
    assert ids.tolist() == [[2, 3, 6], [2, 3, 6]]
    assert torch.allclose(shares, torch.full((2, 3), 2 / 3))
