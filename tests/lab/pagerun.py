"""Makes the setup page's own run from its printed figures: raw records whose arithmetic gives exactly those digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pagerest
from pagefiles import (
    FIRST,
    SECOND,
    TOKENS,
    WINDOW1,
    contract,
    guard_lines,
    read_card,
    record,
    write_json,
    write_lines,
)

from homestretch.lab.score import score
from homestretch.lab.types import Card, Setup, UnusedRun

SPEED_RUN, REFUSED_RUN = "nea2-1110-speed-r0", "nea1-1010-speed-r0"
DECODE = {"code": (141.6, 0.02300), "prose": (142.2, 0.01200)}
DRAFTS = [(486, 296), (486, 296), (486, 295), (485, 295)]
PREFILL = {2048: 6814.4, 8192: 7348.4, 32768: 6293.5}
CONC = {1: (132.6, 132.6), 2: (154.8, 78.1), 4: (207.3, 53.4), 8: (248.0, 33.1)}
CTX = {
    16384: (6961.7, 130.4, 130.6),
    32768: (6244.0, 132.6, 130.1),
    65536: (5233.6, 107.9, 108.1),
    131072: (3906.8, 86.9, 88.5),
}


def reply_text(words: int, characters: int) -> str:
    """A text of exactly that many words and characters, spaces included."""
    extra = characters - (words * 5 + words - 1)
    pieces = ["w" * (5 + extra // words + (1 if index < extra % words else 0)) for index in range(words)]
    return " ".join(pieces)


def speed_requests() -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Every request of the speed run by part, and the reply texts of the decode part by request id."""
    parts: dict[str, list[dict[str, Any]]] = {"decode": [], "prefill": [], "conc": [], "ctx": []}
    texts: dict[str, str] = {}
    drafts = iter(DRAFTS)
    window_s = (WINDOW1 - 1) / 139.5
    warm = record("decode", "warmup-1", 0.3, 3.6, 96, prompt_id="code", detail={"run": 0})
    parts["decode"].append(warm)
    for prompt, (rate, spread) in DECODE.items():
        for run, sign in ((1, -1), (2, 1)):
            total = (TOKENS - 1) / (rate * (1 + sign * spread / 2**0.5))
            row = record("decode", f"{prompt}-{run}", 0.21, total, 96, prompt_id=prompt, boundary=window_s, detail={"run": run})
            drafted, accepted = next(drafts)
            row["extras"] = {"drafts": {"source": "the reply", "drafted": drafted, "accepted": accepted}}
            parts["decode"].append(row)
            words = round(97.0 * total)
            texts[row["id"]] = reply_text(words, round(655.3 * total))
    for depth, rate in PREFILL.items():
        for run, factor in ((1, 0.99), (2, 1.0), (3, 1.01)):
            parts["prefill"].append(
                record(
                    "prefill",
                    f"{depth}-{run}",
                    depth / (rate * factor),
                    3.6,
                    depth,
                    prompt_id="filler",
                    detail={"depth": depth, "run": run},
                )
            )
    for level, (total_rate, request_rate) in CONC.items():
        for round_ in (1, 2):
            slowest = level * TOKENS / total_rate
            others = (request_rate * level - TOKENS / slowest) / (level - 1) if level > 1 else 0.0
            for slot in range(level):
                wall = slowest if slot == 0 else TOKENS / others
                parts["conc"].append(
                    record(
                        "conc",
                        f"{level}-{round_}",
                        0.1,
                        wall - 0.1,
                        96,
                        prompt_id="prose",
                        slot=slot,
                        of=level,
                        detail={"level": level, "round": round_, "slot": slot},
                    )
                )
    for depth, (rate, code, prose) in CTX.items():
        for prompt, decode in (("code", code), ("prose", prose)):
            for run in (1, 2):
                parts["ctx"].append(
                    record(
                        "ctx",
                        f"{depth}-{prompt}-{run}",
                        depth / rate,
                        (TOKENS - 1) / decode,
                        depth,
                        prompt_id=prompt,
                        detail={"depth": depth, "run": run},
                    )
                )
    return parts, texts


SETTINGS: dict[str, Any] = {
    "parts": ["decode", "prefill", "conc", "ctx"],
    **{f"{part}.version": 1 for part in ("decode", "prefill", "conc", "ctx")},
    "guard.allow_load": False,
    "ctx.prompt_ids": ["code", "prose"],
    "prefill.max_tokens": 512,
    "decode.prompt_ids": ["code", "prose"],
    "decode.runs": 2,
    "decode.max_tokens": 512,
    "decode.warmups": 1,
    "prefill.depths": list(PREFILL),
    "prefill.runs": 3,
    "conc.levels": list(CONC),
    "conc.rounds": 2,
    "conc.max_tokens": 512,
    "conc.prompt": "prose",
    "ctx.depths": list(CTX),
    "ctx.runs": 2,
    "ctx.max_tokens": 512,
}


def speed_run(folder: Path, card: Card, machine: str, created: str) -> None:
    parts, texts = speed_requests()
    samples = {"decode": 40, "prefill": 90, "conc": 178, "ctx": 520}
    for part, rows in parts.items():
        write_lines(folder / f"requests-{part}.jsonl", rows)
        write_lines(folder / f"replies-{part}.jsonl", [{"id": row["id"], "text": texts.get(row["id"], "text")} for row in rows])
    command = [
        "homestretch",
        "measure",
        "card.toml",
        "--label",
        SPEED_RUN,
        "--parts",
        "speed",
        "--prefill-depths",
        "2048,8192,32768",
    ]
    write_json(folder / "contract.json", contract(SPEED_RUN, card, machine, created, SETTINGS, command))
    guard_lines(folder, samples, 42, 1.8)
    (folder / "server.log").write_text(
        "TensorFold 1.2.5: nemotron-3.5-lightning on GB10, window 262144 tokens, 8 streams at once\n"
    )
    (folder / "log.txt").write_text("decode code 1 of 2\ndecode code 2 of 2\n")
    checked = {"behaviour": "single", "streams": 1, "tokens": 128, "true_decode": 200.0, "measured_decode": 200.04, "attempt": 1}
    checked |= {"decode_error_pct": 0.02, "page_decode_error_pct": 0.02, "ttft_error_s": 0.0004, "total_error_pct": 0.05}
    errors = {"decode_error_pct": 0.02, "ttft_error_s": 0.0004, "total_error_pct": 0.05, "limit_pct": 0.5, "limit_ttft_s": 0.005}
    write_json(folder / "instrument.json", {"at": created, "ok": True, **errors, "checks": [checked]})
    score(folder)


def refused_run(folder: Path, card: Card) -> None:
    """The first speed run, whose two code runs differ too much for any median."""
    rows = []
    for run, rate, drafted, accepted in ((1, 132.4, 490, 281), (2, 399.2, 492, 475)):
        row = record("decode", f"code-{run}", 0.21, (TOKENS - 1) / rate, 96, prompt_id="code", detail={"run": run})
        row["extras"] = {"drafts": {"source": "the reply", "drafted": drafted, "accepted": accepted}}
        rows.append(row)
    write_lines(folder / "requests-decode.jsonl", rows)
    write_lines(folder / "replies-decode.jsonl", [{"id": row["id"], "text": "text"} for row in rows])
    settings = {**SETTINGS, "decode.prompt_ids": ["code"], "parts": ["decode"]}
    command = ["homestretch", "measure", "card.toml", "--label", REFUSED_RUN, "--parts", "decode"]
    write_json(folder / "contract.json", contract(REFUSED_RUN, card, FIRST, "2026-11-10T09:00:00Z", settings, command))
    (folder / "log.txt").write_text("decode code 1 of 2\n")
    score(folder)


def make(root: Path) -> Path:
    """The whole setup folder of the page under `root`; returns it."""
    card = read_card()
    folder = root / card.slug
    runs = folder / "runs"
    (folder / "card.toml").parent.mkdir(parents=True, exist_ok=True)
    (folder / "card.toml").write_bytes(msgspec.toml.encode(card))
    speed_run(runs / SPEED_RUN, card, SECOND, "2026-11-10T12:00:00Z")
    refused_run(runs / REFUSED_RUN, card)
    pagerest.quality_runs(runs, card)
    pagerest.fit_run(runs / pagerest.FIT_RUN, card)
    pagerest.race_run(runs / pagerest.RACE_RUN, card)
    setup = Setup(
        card="card.toml",
        runs={
            "speed": f"runs/{SPEED_RUN}",
            **{part: f"runs/{run}" for part, run in pagerest.QUALITY.items()},
            "fit": f"runs/{pagerest.FIT_RUN}",
            "gauntlet": f"runs/{pagerest.RACE_RUN}",
        },
        machines={SPEED_RUN: SECOND, REFUSED_RUN: FIRST, **dict.fromkeys({*pagerest.QUALITY.values(), pagerest.FIT_RUN}, FIRST)},
        unused=[
            UnusedRun(
                part="speed",
                run=f"runs/{REFUSED_RUN}",
                reason="one of the two code runs had copied a block of code out of its own prompt, "
                "which copy drafts match almost every time",
                machine=FIRST,
            )
        ],
    )
    (folder / "setup.toml").write_bytes(msgspec.toml.encode(setup))
    return folder
