"""Spoiled checkpoints: each fault is named in one line, within a second, before any weight is read."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_nemotron import config_of, random_tensors, write_hf, write_mlx

from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.checkpoint.shards import Shards
from homestretch.engine.errors import CheckpointError
from homestretch.engine.families import build_model

Spoil = Callable[[Path], None]
CONFIG = config_of("ME*-")
TENSORS = random_tensors(CONFIG, 0)


def edit(name: str, change: Callable[[dict[str, Any]], Any]) -> Spoil:
    def spoil(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        change(found)
        (folder / name).write_text(json.dumps(found))

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], Any], name: str = "model.safetensors") -> Spoil:
    """Rewrite a weight file, its index with it."""

    def spoil(folder: Path) -> None:
        found = load_file(str(folder / name))
        change(found)
        save_file(found, str(folder / name), metadata={"format": "mlx", "bits": "4", "group_size": "64"})
        index = folder / "model.safetensors.index.json"
        if name == "model.safetensors" and index.exists():
            index.write_text(json.dumps({"weight_map": dict.fromkeys(found, name)}))

    return spoil


def truncate(name: str, by: int) -> Spoil:
    def spoil(folder: Path) -> None:
        size = (folder / name).stat().st_size
        with (folder / name).open("r+b") as file:
            file.truncate(max(0, size - by))

    return spoil


def header(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """Rewrite a safetensors header and leave the bytes behind it alone."""

    def spoil(folder: Path) -> None:
        data = (folder / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        found = json.loads(data[8 : 8 + length])
        change(found)
        text = json.dumps(found).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return spoil


def text(name: str, content: str) -> Spoil:
    return lambda folder: (folder / name).write_text(content) and None


IN_PROJ = "backbone.layers.0.mixer.in_proj"
CASES: dict[str, tuple[str, Spoil, str]] = {
    "truncated": ("mlx", truncate("model.safetensors", 5000), r"model.safetensors: truncated: \d+ bytes, its header needs \d+"),
    "truncated head": ("mlx", truncate("mtp-4bit.safetensors", 1), "mtp-4bit.safetensors: truncated"),
    "cut in the header": ("mlx", truncate("model.safetensors", 10**9), "0 bytes, but its header says 0"),
    "header of nonsense": ("hf", header(lambda h: h.update({"x": 3})), "its header is damaged"),
    "overlapping": (
        "hf",
        header(lambda h: h["lm_head.weight"].update(data_offsets=[0, 320 * 64 * 2])),
        "lies at bytes .* are wanted",
    ),
    "unknown type": ("hf", header(lambda h: h["lm_head.weight"].update(dtype="F8_E4M3")), "lm_head.weight has the type F8_E4M3"),
    "missing tensor": (
        "hf",
        tensors(lambda t: t.pop("backbone.layers.2.mixer.k_proj.weight")),
        r"tensor backbone.layers.2.mixer.k_proj.weight \[64, 64\] is missing",
    ),
    "missing expert": (
        "hf",
        tensors(lambda t: t.pop("backbone.layers.1.mixer.experts.3.up_proj.weight")),
        "tensor backbone.layers.1.mixer.experts.3.up_proj.weight is missing",
    ),
    "too few experts": (
        "hf",
        tensors(lambda t: [t.pop(f"backbone.layers.1.mixer.experts.7.{n}_proj.weight") for n in ("up", "down")]),
        r"switch_mlp.fc1.weight is \[7, 64, 64\], the config asks for \[8, 64, 64\]",
    ),
    "extra tensor": (
        "hf",
        tensors(lambda t: t.update({"backbone.layers.9.norm.weight": torch.ones(64)})),
        r"tensor backbone.layers.9.norm.weight \[64\] belongs to no part",
    ),
    "wrong shape": (
        "hf",
        tensors(lambda t: t.update({"backbone.norm_f.weight": torch.ones(63)})),
        r"backbone.norm_f.weight is \[63\], the config asks for \[64\]",
    ),
    "odd expert": (
        "hf",
        tensors(lambda t: t.update({"backbone.layers.1.mixer.experts.2.up_proj.weight": torch.ones(32, 64)})),
        "tensor backbone.layers.1.mixer.experts.2.up_proj.weight is",
    ),
    "no scales": ("mlx", tensors(lambda t: t.pop(f"{IN_PROJ}.scales")), f"tensor {IN_PROJ}.scales is missing"),
    "orphan scales": ("mlx", tensors(lambda t: t.pop(f"{IN_PROJ}.weight")), rf"{IN_PROJ}.(scales|biases) has no {IN_PROJ}.weight"),
    "misshapen biases": (
        "mlx",
        tensors(lambda t: t.update({f"{IN_PROJ}.biases": t[f"{IN_PROJ}.biases"].repeat(1, 2)})),
        f"{IN_PROJ}.biases is BF16",
    ),
    "incomplete head": (
        "mlx",
        tensors(lambda t: t.pop("layers.0.hnorm.weight"), "mtp-4bit.safetensors"),
        r"tensor mtp.layers.0.hnorm.weight \[64\] is missing",
    ),
    "unknown block kind": (
        "hf",
        edit("config.json", lambda c: c.update(hybrid_override_pattern="MEX-")),
        r"hybrid_override_pattern\[2\] = 'X'",
    ),
    "unknown key": ("hf", edit("config.json", lambda c: c.update(rope_pairs=3)), "unknown config key rope_pairs = 3"),
    "unknown model type": ("hf", edit("config.json", lambda c: c.update(model_type="gpt9")), "model type 'gpt9' is not supported"),
    "unknown mode": (
        "mlx",
        edit("config.json", lambda c: c["quantization"].update(mode="mxfp4")),
        "quantization: mode is 'mxfp4'; only 'affine'",
    ),
    "unknown bits": (
        "mlx",
        edit("config.json", lambda c: c["quantization"].update(bits=7)),
        "bits is 7; allowed are 2, 3, 4, 5, 6, 8",
    ),
    "unknown group": ("mlx", edit("config.json", lambda c: c["quantization"].update(group_size=16)), "group_size is 16"),
    "other bits than said": (
        "mlx",
        edit("config.json", lambda c: c["quantization"].update({IN_PROJ: {"bits": 8, "group_size": 64}})),
        f"{IN_PROJ}.weight is U32 .* whole groups of 64 values of 8 bits",
    ),
    "override of nothing": (
        "mlx",
        edit("config.json", lambda c: c["quantization"].update({"backbone.layers.7.mixer.in_proj": {"bits": 8, "group_size": 64}})),
        "names the layer backbone.layers.7.mixer.in_proj, which the files do not hold",
    ),
    "quantized another way": (
        "hf",
        edit("config.json", lambda c: c.update(quantization_config={"quant_method": "awq"})),
        "quantization_config is .*awq",
    ),
    "no json": ("hf", text("config.json", "{"), "config.json"),
    "a list": ("hf", text("generation_config.json", "[]"), "generation_config.json holds a list"),
    "ends of words": ("hf", edit("generation_config.json", lambda c: c.update(eos_token_id="</s>")), "eos_token_id is '</s>'"),
    "a hot temperature": ("hf", edit("generation_config.json", lambda c: c.update(temperature=-1)), "temperature is -1"),
    "no weights": ("hf", lambda folder: (folder / "model.safetensors").unlink(), "neither model.safetensors nor"),
    "shard outside": (
        "mlx",
        text("model.safetensors.index.json", '{"weight_map": {"a": "../../etc/passwd"}}'),
        "the shard '../../etc/passwd' is not a file beside it",
    ),
    "shard missing": ("mlx", text("model.safetensors.index.json", '{"weight_map": {"a": "b"}}'), "the shard b is missing"),
    "index of another model": (
        "mlx",
        text("model.safetensors.index.json", '{"weight_map": {"a": "model.safetensors"}}'),
        "tensor a is missing from model.safetensors",
    ),
    "two heads": ("mlx", lambda folder: (folder / "mtp-8bit.safetensors").write_bytes(b"") and None, "holds 2 MTP heads"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_spoiled_checkpoint_is_refused_at_once_by_name(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, spoil, message = CASES[case]
    folder = (write_hf if layout == "hf" else write_mlx)(tmp_path / "model", CONFIG, TENSORS)
    spoil(folder)
    monkeypatch.setattr(Shards, "read", lambda *_: pytest.fail("a weight was read"))
    started = time.process_time()  # its own time: on a busy machine the wall clock says more about others
    with pytest.raises(CheckpointError, match=message) as caught:
        build_model(open_checkpoint(folder))
    assert time.process_time() - started < 1.0
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("layout", ["hf", "mlx"])
def test_the_unspoiled_ones_are_opened(layout: str, tmp_path: Path) -> None:
    folder = (write_hf if layout == "hf" else write_mlx)(tmp_path / "model", CONFIG, TENSORS)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.layout == layout
    assert build_model(checkpoint).head is not None
    assert checkpoint.text.ends == {2, 4}
    assert (checkpoint.text.temperature, checkpoint.text.top_p, checkpoint.text.top_k) == (1.0, 0.95, None)
    assert checkpoint.text.eos_token == "<|im_end|>"
    assert "enable_thinking" in (checkpoint.text.chat_template or "")
    assert checkpoint.tokenizer().encode("the fox").ids


def test_greedy_defaults_and_missing_defaults(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "model", CONFIG, TENSORS)
    edit("generation_config.json", lambda c: c.update(do_sample=False))(folder)
    assert open_checkpoint(folder).text.temperature == 0.0
    (folder / "generation_config.json").unlink()
    found = open_checkpoint(folder).text
    assert (found.ends, found.temperature, found.source) == ({4}, None, "")
