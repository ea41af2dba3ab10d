"""GGUF: packed weights are exact, other types are widened and said so, and every kind of damage is refused in one line."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Storage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import HIDDEN, KV_HEADS, VOCAB, write_tiny

from homestretch.engine.checkpoint import Affine
from homestretch.engine.checkpoint.affine import dequantize
from homestretch.engine.checkpoint.gguf import GROUP
from homestretch.engine.checkpoint.gguf_header import read_header
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.errors import CheckpointError
from homestretch.engine.families import build_model
from homestretch.engine.tokenizer import Tokenizer


@pytest.mark.parametrize("storage", [Storage.Q4_0, Storage.Q4_1, Storage.Q8_0, Storage.F16, Storage.BF16, Storage.F32])
def test_weights_are_exactly_what_the_file_says(tmp_path: Path, storage: Storage) -> None:
    meant = write_tiny(tmp_path / "tiny.gguf", storage=storage)
    checkpoint = open_checkpoint(tmp_path / "tiny.gguf")
    assert checkpoint.notes == ()
    assert set(checkpoint.specs) == set(meant)
    for name, value in meant.items():
        weight, spec = checkpoint.read(name), checkpoint.specs[name]
        assert spec.shape == value.shape
        packed = value.ndim > 1 and storage in (Storage.Q4_0, Storage.Q4_1, Storage.Q8_0)
        assert isinstance(weight, Affine) == packed == bool(spec.bits)
        if isinstance(weight, Affine):
            assert (weight.bits, weight.group) == (spec.bits, GROUP)
            assert weight.scales.dtype == torch.float16
            wide = dequantize(weight)
        else:
            wide = weight.to(torch.float32)
        assert torch.equal(wide, torch.from_numpy(value)), name


@pytest.mark.parametrize(("storage", "bits"), [(Storage.Q4_0, 4), (Storage.Q4_1, 4), (Storage.Q8_0, 8)])
def test_random_blocks_of_every_bit_pattern_are_exact(tmp_path: Path, storage: Storage, bits: int) -> None:
    """Any bytes in the integers, and scales over the whole range of halves, also where -8d or -128d leaves it."""
    drawn = np.random.default_rng(1)
    size = gguf.GGML_QUANT_SIZES[storage][1]
    blocks = drawn.integers(0, 256, (VOCAB * HIDDEN // GROUP, size), dtype=np.uint8)
    floats = drawn.choice(np.array([0.0, -0.0, 6e-8, 1e-3, -2.5, 300.0, 60000.0, -65504.0], dtype=np.float16), (len(blocks), 2))
    blocks[:, : 4 if storage is Storage.Q4_1 else 2] = floats[:, : 2 if storage is Storage.Q4_1 else 1].copy().view(np.uint8)
    write_tiny(tmp_path / "tiny.gguf", storage={"token_embd.weight": storage})
    raw = (tmp_path / "tiny.gguf").read_bytes()
    entry = read_header(tmp_path / "tiny.gguf").entries["token_embd.weight"]
    (tmp_path / "tiny.gguf").write_bytes(raw[: entry.offset] + blocks.tobytes() + raw[entry.offset + entry.bytes :])
    weight = open_checkpoint(tmp_path / "tiny.gguf").read("token_embd.weight")
    assert isinstance(weight, Affine)
    assert weight.bits == bits
    expected = gguf.dequantize(blocks.reshape(VOCAB, -1), storage)
    assert torch.equal(dequantize(weight), torch.from_numpy(expected))


@pytest.mark.parametrize("storage", [Storage.Q4_0, Storage.Q4_1, Storage.Q8_0])
def test_a_scale_that_is_no_number_is_refused(tmp_path: Path, storage: Storage) -> None:
    write_tiny(tmp_path / "tiny.gguf", storage=storage)
    entry = read_header(tmp_path / "tiny.gguf").entries["blk.0.attn_q.weight"]
    content = bytearray((tmp_path / "tiny.gguf").read_bytes())
    content[entry.offset : entry.offset + 2] = np.array([np.nan], dtype=np.float16).tobytes()
    (tmp_path / "tiny.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"blk.0.attn_q.weight holds values that are no finite"):
        open_checkpoint(tmp_path / "tiny.gguf").read("blk.0.attn_q.weight")


def test_other_types_are_widened_to_bf16_and_named(tmp_path: Path) -> None:
    wide = np.random.default_rng(0).standard_normal((VOCAB, 256)).astype(np.float32)
    write_tiny(
        tmp_path / "t.gguf",
        storage={"extra.weight": Storage.Q5_1, "more.weight": Storage.Q5_0},
        tensors={"extra.weight": wide, "more.weight": wide},
    )
    checkpoint = open_checkpoint(tmp_path / "t.gguf")
    assert len(checkpoint.notes) == 2
    assert "1 Q5_1 tensor (extra.weight) widened to bf16" in checkpoint.notes[1]
    assert checkpoint.specs["extra.weight"].dtype == "bfloat16"
    weight = checkpoint.read("extra.weight")
    assert isinstance(weight, torch.Tensor)
    expected = torch.from_numpy(gguf.dequantize(gguf.quantize(wide, Storage.Q5_1), Storage.Q5_1))
    assert torch.equal(weight, expected.to(torch.bfloat16))


def test_the_embedded_model_opens_in_less_than_a_second(smollm: Path) -> None:
    spent = []
    for _ in range(3):
        started = time.process_time()
        build_model(open_checkpoint(smollm))
        spent.append(time.process_time() - started)
    assert min(spent) < 1.0


def test_text_defaults(tmp_path: Path) -> None:
    change: dict[str, Any] = {"tokenizer.chat_template": "{{ x }}", "general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    write_tiny(tmp_path / "t.gguf", change=change | {"tokenizer.ggml.eos_token_id": 5})
    text = open_checkpoint(tmp_path / "t.gguf").text
    assert text.ends == {0, 2, 5}, "named by id, and control tokens known to end a reply"
    assert (text.temperature, text.top_k, text.top_p) == (0.5, 20, None)
    assert text.chat_template == "{{ x }}"
    assert (text.bos_token, text.source) == ("<|im_start|>", "general.sampling in the GGUF")


def test_bos_goes_before_a_plain_prompt_where_the_file_says_so(tmp_path: Path) -> None:
    write_tiny(tmp_path / "t.gguf", change={"tokenizer.ggml.add_bos_token": True})
    tokenizer = Tokenizer(open_checkpoint(tmp_path / "t.gguf").tokenizer())
    assert (tokenizer.begin, tokenizer.end) == ((1,), ())
    assert 1 not in tokenizer.encode("abc", special=True)


DAMAGES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown architecture": ({"architecture": "mystery"}, "model type 'mystery' is not supported"),
    "missing key": ({"change": {"llama.block_count": None}}, "llama.block_count is missing"),
    "unknown key": ({"change": {"llama.logit_scale": 2.0}}, r"unknown config key llama.logit_scale = 2.0"),
    "value of another type": ({"change": {"llama.block_count": "two"}}, "llama.block_count = 'two' is not supported"),
    "zero layers": ({"change": {"llama.block_count": 0}}, "llama.block_count = 0"),
    "experts": ({"change": {"llama.expert_count": 8}}, "llama.expert_count = 8 is not supported"),
    "yarn": ({"change": {"llama.rope.scaling.type": "yarn"}}, "llama.rope.scaling.type = 'yarn'"),
    "uneven heads": ({"change": {"llama.attention.head_count_kv": 3}}, "llama.attention.head_count = 4"),
    "too few layers in the config": ({"change": {"llama.block_count": 1}}, r"blk.1.attn_k.weight \[32, 64\] belongs to no part"),
    "too many layers in the config": ({"change": {"llama.block_count": 3}}, r"blk.2.attn_norm.weight \[64\] is missing"),
    "missing tensor": ({"tensors": {"blk.1.ffn_up.weight": None}}, r"blk.1.ffn_up.weight \[160, 64\] is missing"),
    "left-over tensor": ({"tensors": {"blk.0.ghost.weight": np.zeros((4, 32))}}, "blk.0.ghost.weight"),
    "misshapen tensor": (
        {"tensors": {"blk.0.attn_k.weight": np.zeros((KV_HEADS * 8, HIDDEN))}},
        r"blk.0.attn_k.weight is \[16, 64\], the config asks for \[32, 64\]",
    ),
    "not finite": (
        {"tensors": {"output_norm.weight": np.full((HIDDEN,), np.nan)}},
        "output_norm.weight holds values that are no finite",
    ),
    "another vocabulary": ({"change": {"tokenizer.ggml.model": "llama"}}, "tokenizer.ggml.model = 'llama' is not supported"),
    "unknown split": ({"change": {"tokenizer.ggml.pre": "nobody"}}, "tokenizer.ggml.pre = 'nobody' is not supported"),
    "no tokens": ({"change": {"tokenizer.ggml.tokens": None}}, "tokenizer.ggml."),
    "merges of strangers": ({"change": {"tokenizer.ggml.merges": ["zz yy"]}}, "merges do not fit"),
    "merges that are no pairs": ({"change": {"tokenizer.ggml.merges": ["abc"]}}, r"merges\[0\] = 'abc' is no pair"),
    "end token out of range": ({"change": {"tokenizer.ggml.eos_token_id": 999}}, "eos_token_id = 999 is none of the 320 tokens"),
    "too few token types": ({"change": {"tokenizer.ggml.token_type": [1, 2]}}, "token_type does not hold one type"),
    "more tokens than rows": (
        {"change": {"llama.vocab_size": 300}, "tensors": {"token_embd.weight": np.zeros((300, HIDDEN))}},
        "320 tokens in the vocabulary, but token_embd.weight has 300 rows",
    ),
    "one part of many": ({"change": {"split.count": 2}}, "one of 2 parts"),
}


def use(path: Path) -> None:
    """Everything that reads a checkpoint."""
    checkpoint = open_checkpoint(path)
    model = build_model(checkpoint)
    checkpoint.tokenizer()
    for name, spec in model.weights.items():
        if spec.shared_with is None and spec.values is None:
            checkpoint.read(name)


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    arguments, fault = DAMAGES[name]
    write_tiny(tmp_path / "tiny.gguf", **arguments)
    with pytest.raises(CheckpointError, match=fault) as refused:
        use(tmp_path / "tiny.gguf")
    assert "\n" not in str(refused.value)
    assert "tiny.gguf" in str(refused.value)


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    write_tiny(tmp_path / "whole.gguf", storage=Storage.Q4_1)
    whole = (tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(64), *range(64, len(whole), 997), len(whole) - 40]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut.gguf") as refused:
            use(path)
        assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write_tiny(path, storage=Storage.Q8_0)
    return path


@given(st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_bytes_give_a_model_or_one_line(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of the header are overwritten: the file still opens, or is refused; nothing else may happen."""
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 24_000))
        new = data.draw(st.binary(min_size=1, max_size=8))
        content[at : at + len(new)] = new
    path = tmp_path / "changed.gguf"
    path.write_bytes(content)
    said = ""
    try:
        use(path)
    except CheckpointError as refused:
        said = str(refused)
    assert "\n" not in said


def header(*, version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest + bytes(64)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


HEADERS = {
    "another magic": (b"GGML" + bytes(60), "not a GGUF file"),
    "version 1": (header(version=1), "GGUF version 1 is not supported"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "a billion keys": (header(keys=10**9), "key 0 is '', which is no name"),
    "an endless key": (header(keys=1, rest=struct.pack("<Q", 2**60)), "at most 256 are allowed"),
    "a key that is no text": (header(keys=1, rest=text(b"\xff\xfe") + struct.pack("<IB", 0, 1)), "no UTF-8 text"),
    "an unknown value type": (header(keys=1, rest=text(b"a") + struct.pack("<I", 77)), "a has the unknown value type 77"),
    "an endless array": (header(keys=1, rest=text(b"a") + struct.pack("<IIQ", 9, 4, 2**62)), "the file ends inside a"),
    "an array of arrays": (header(keys=1, rest=text(b"a") + struct.pack("<IIQ", 9, 9, 1)), "array of arrays"),
    "a key twice": (header(keys=2, rest=(text(b"a") + struct.pack("<IB", 0, 1)) * 2), "the key a is there twice"),
    "nine dimensions": (header(tensors=1, rest=text(b"w") + struct.pack("<I", 9)), "tensor w has 9 dimensions"),
    "an unknown storage type": (
        header(tensors=1, rest=text(b"w") + struct.pack("<IQIQ", 1, 32, 99, 0)),
        "tensor w has the unknown storage type 99",
    ),
    "a type for scratch only": (
        header(tensors=1, rest=text(b"w") + struct.pack("<IQIQ", 1, 256, 15, 0)) + bytes(300),
        "tensor w is stored as Q8_K, which cannot be read",
    ),
    "integers": (header(tensors=1, rest=text(b"w") + struct.pack("<IQIQ", 1, 4, 26, 0)), "stored as I32, which cannot be read"),
    "half a block": (header(tensors=1, rest=text(b"w") + struct.pack("<IQIQ", 1, 33, 8, 0)), "rows are whole blocks of 32"),
    "an offset between": (header(tensors=1, rest=text(b"w") + struct.pack("<IQIQ", 1, 4, 0, 7)), "no multiple of the alignment"),
    "a tensor twice": (header(tensors=2, rest=(text(b"w") + struct.pack("<IQIQ", 1, 4, 0, 0)) * 2), "tensor w is there twice"),
    "one over the other": (
        header(tensors=2, rest=b"".join(text(name) + struct.pack("<IQIQ", 1, 8, 0, 0) for name in (b"v", b"w"))),
        "lies over tensor",
    ),
    "larger than the file": (
        header(tensors=1, rest=text(b"w") + struct.pack("<IQQIQ", 2, 2**40, 2**20, 0, 0)),
        "the file ends inside tensor w",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_spoiled_headers(tmp_path: Path, name: str) -> None:
    content, fault = HEADERS[name]
    (tmp_path / "spoiled.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=fault):
        open_checkpoint(tmp_path / "spoiled.gguf")


def test_opening_says_what_a_path_lacks(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"neither a config.json nor a .gguf"):
        open_checkpoint(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="neither a file nor a folder"):
        open_checkpoint(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match=r"neither a config.json nor a .gguf"):
        open_checkpoint(tmp_path)
    write_tiny(tmp_path / "a.gguf")
    assert open_checkpoint(tmp_path).path == tmp_path / "a.gguf"
    write_tiny(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match="name one of them"):
        open_checkpoint(tmp_path)
