"""A small setup folder: one speed run with few requests and the four quality tests; many of them make a large site."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pagerest
from pagefiles import contract, read_card, record, seal, write_json, write_lines

from homestretch.lab.types import Card, Setup

ENGINES = ("TensorFold", "llama.cpp", "vLLM", "mlx-lm", "Homestretch")
MODELS = ("Nemotron 3.5 Lightning 30B-A3B", "Qwen3 8B", "SmolLM2 135M", "Gemma 3 27B")
PARTS = ("decode", "conc")


def small_card(index: int, memory_class_gb: int) -> Card:
    base = read_card()
    engine, model = ENGINES[index % len(ENGINES)], MODELS[index % len(MODELS)]
    return msgspec.structs.replace(
        base,
        slug=f"small-{index:03}",
        title=f"{model} with {engine}, setup {index}",
        summary="",
        memory_class_gb=memory_class_gb,
        engine=msgspec.structs.replace(base.engine, name=engine, version=f"1.{index}"),
        model=msgspec.structs.replace(base.model, name=model),
        specialist="",
        differences=[],
        notes={},
    )


def make(root: Path, index: int, memory_class_gb: int) -> Path:
    """`root/small-INDEX`; its speed and counts follow from the index."""
    card = small_card(index, memory_class_gb)
    home = root / card.slug
    run = home / "runs" / "r0"
    rate = 20.0 + 7 * (index % 41)
    rows = [record("decode", f"code-{turn}", 0.2, 511 / rate, 96, prompt_id="code", detail={"run": turn}) for turn in (1, 2)]
    write_lines(run / "requests-decode.jsonl", rows)
    write_lines(run / "replies-decode.jsonl", [{"id": row["id"], "text": "some words of a reply"} for row in rows])
    numbers = {
        "decode.code.tokens_per_s": {
            "value": rate,
            "unit": "tok/s",
            "n": 2,
            "spread_pct": 0.0,
            "source": "requests-decode.jsonl:1,2",
        },
        "decode.code.spread_pct": {"value": 0.0, "unit": "%", "n": 2},
        "decode.tokens_per_s": {"value": rate, "unit": "tok/s", "n": 2, "source": "requests-decode.jsonl"},
        "decode.spread_pct": {"value": 0.0, "unit": "%", "n": 2},
    }
    parts = {"decode": {"state": "done", "measured": "2026-11-11"}}
    for part in ("mmlupro", "gpqa", "ifeval", "lcb"):
        right = 4 + (index + len(part)) % 13
        answers = pagerest.answers(20, right, 0, 0, part)
        write_lines(run / f"answers-{part}.jsonl", answers)
        numbers |= pagerest.score(part, 20, right, 0, 0, f"answers-{part}.jsonl")
        parts[part] = {"state": "done", "measured": "2026-11-11"}
    settings = {"decode.prompt_ids": ["code"], "decode.runs": 2, "decode.max_tokens": 512}
    day = f"2026-11-{1 + index % 28:02}T10:00:00Z"
    write_json(run / "contract.json", contract("r0", card, "", day, settings, ["homestretch", "measure", "card.toml"]))
    write_json(
        run / "result.json", {"schema": 1, "run": "r0", "scored_by": "homestretch 0.1.0", "parts": parts, "numbers": numbers}
    )
    (run / "log.txt").write_text("decode code 1 of 2\n")
    seal(run)
    (home / "card.toml").write_bytes(msgspec.toml.encode(card))
    runs = dict.fromkeys(parts, "runs/r0")
    (home / "setup.toml").write_bytes(msgspec.toml.encode(Setup(card="card.toml", runs=runs)))
    return home
