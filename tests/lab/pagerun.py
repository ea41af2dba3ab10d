"""Makes the setup page's own run from its printed figures: raw records whose arithmetic gives exactly those digits."""

from __future__ import annotations

import statistics
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
    number,
    read_card,
    record,
    seal,
    write_json,
    write_lines,
)

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
            row = record(
                "decode", f"decode-{prompt}-{run}", 0.21, total, 96, prompt_id=prompt, boundary=window_s, detail={"run": run}
            )
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
                    f"prefill-{depth}-{run}",
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
                        f"conc-{level}-{round_}",
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
                        f"ctx-{depth}-{prompt}-{run}",
                        depth / rate,
                        (TOKENS - 1) / decode,
                        depth,
                        prompt_id=prompt,
                        detail={"depth": depth, "run": run},
                    )
                )
    return parts, texts


def decode_rate(row: dict[str, Any]) -> float:
    counting = [event for event in row["events"] if event[1] == "content"]
    return (row["usage"]["completion_tokens"] - 1) / (counting[-1][0] - counting[0][0])


def ttft(row: dict[str, Any]) -> float:
    return next(event[0] for event in row["events"] if event[1] == "content")


def cv(values: list[float]) -> float:
    return 100 * statistics.stdev(values) / statistics.fmean(values)


def speed_numbers(parts: dict[str, list[dict[str, Any]]], texts: dict[str, str]) -> dict[str, Any]:
    """Numbers of `result.json`, counted from the raw rows above; the site prints these."""
    out: dict[str, Any] = {}
    src = "requests-decode.jsonl"
    medians, words, characters, windows, spreads = [], [], [], [], []
    for prompt in DECODE:
        rows = [row for row in parts["decode"] if row["prompt_id"] == prompt and row["detail"]["run"]]
        rates = [decode_rate(row) for row in rows]
        lines = ",".join(str(parts["decode"].index(row) + 1) for row in rows)
        medians.append(statistics.median(rates))
        spreads.append(cv(rates))
        seconds = [TOKENS / rate * (TOKENS - 1) / TOKENS for rate in rates]
        words.append(statistics.median([len(texts[r["id"]].split()) / s for r, s in zip(rows, seconds, strict=True)]))
        characters.append(statistics.median([len(texts[r["id"]]) / s for r, s in zip(rows, seconds, strict=True)]))
        window = []
        for row in rows:
            counting = [event for event in row["events"] if event[1] == "content"]
            seen = 0
            for at, _, size in counting:
                seen += size
                if seen >= WINDOW1:
                    window.append((seen - 1) / (at - counting[0][0]))
                    break
        windows.append(statistics.median(window))
        out[f"decode.{prompt}.tokens_per_s"] = number(medians[-1], "tok/s", 2, f"{src}:{lines}", spread_pct=spreads[-1])
        out[f"decode.{prompt}.spread_pct"] = number(spreads[-1], "%", 2, f"{src}:{lines}")
    out["decode.tokens_per_s"] = number(statistics.fmean(medians), "tok/s", 4, src, spread_pct=max(spreads))
    out["decode.spread_pct"] = number(max(spreads), "%", 4, src)
    out["decode.words_per_s"] = number(statistics.fmean(words), "words/s", 4, "replies-decode.jsonl")
    out["decode.characters_per_s"] = number(statistics.fmean(characters), "chars/s", 4, "replies-decode.jsonl")
    out["decode.words_500_s"] = number(500 / statistics.fmean(words), "s", 4, "replies-decode.jsonl")
    out["decode.window1.tokens_per_s"] = number(statistics.fmean(windows), "tok/s", 4, src)
    drafted = sum(row.get("extras", {}).get("drafts", {}).get("drafted", 0) for row in parts["decode"])
    accepted = sum(row.get("extras", {}).get("drafts", {}).get("accepted", 0) for row in parts["decode"])
    out["drafts.acceptance_pct"] = number(100 * accepted / drafted, "%", 4, src)
    out["drafts.mean_accepted_length"] = number(2048 / (2048 - accepted), "tokens", 4, src)
    for depth in PREFILL:
        rows = [row for row in parts["prefill"] if row["detail"]["depth"] == depth]
        lines = ",".join(str(parts["prefill"].index(row) + 1) for row in rows)
        src = f"requests-prefill.jsonl:{lines}"
        out[f"prefill.{depth}.tokens_per_s"] = number(statistics.median(depth / ttft(row) for row in rows), "tok/s", 3, src)
        out[f"prefill.{depth}.ttft_s"] = number(statistics.median(ttft(row) for row in rows), "s", 3, src)
    for level in CONC:
        totals, singles = [], []
        for round_ in (1, 2):
            rows = [row for row in parts["conc"] if row["detail"]["level"] == level and row["detail"]["round"] == round_]
            last = max(event[0] for row in rows for event in row["events"] if event[1] == "content")
            totals.append(level * TOKENS / last)
            singles.append(statistics.fmean(TOKENS / max(e[0] for e in row["events"] if e[1] == "content") for row in rows))
        out[f"conc.{level}.total_tokens_per_s"] = number(statistics.median(totals), "tok/s", 2, "requests-conc.jsonl")
        out[f"conc.{level}.request_tokens_per_s"] = number(statistics.median(singles), "tok/s", 2, "requests-conc.jsonl")
    for depth in CTX:
        rows = [row for row in parts["ctx"] if row["detail"]["depth"] == depth]
        src = "requests-ctx.jsonl:" + ",".join(str(parts["ctx"].index(row) + 1) for row in rows)
        out[f"ctx.{depth}.prefill.tokens_per_s"] = number(statistics.median(depth / ttft(row) for row in rows), "tok/s", 4, src)
        out[f"ctx.{depth}.ttft_s"] = number(statistics.median(ttft(row) for row in rows), "s", 4, src)
        for prompt in DECODE:
            rates = [decode_rate(row) for row in rows if row["prompt_id"] == prompt]
            out[f"ctx.{depth}.decode.{prompt}.tokens_per_s"] = number(statistics.median(rates), "tok/s", 2, src)
    return out


SETTINGS: dict[str, Any] = {
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
    steps = {"decode": 4, "prefill": 9, "conc": 8, "ctx": 16}
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
    result = {
        "schema": 1,
        "run": SPEED_RUN,
        "scored_by": "homestretch 0.1.0",
        "parts": {
            part: {
                "state": "done",
                "measured": created[:10],
                "guard": {
                    "steps": steps[part],
                    "discarded": 0,
                    "samples": samples[part],
                    "busiest_name": "run.py",
                    "busiest_pct": 1.8 if part == "ctx" else 0.9,
                },
            }
            for part in parts
        },
        "numbers": speed_numbers(parts, texts),
    }
    write_json(folder / "result.json", result)
    guard_lines(folder, sum(samples.values()), 42, 1.8)
    (folder / "server.log").write_text(
        "TensorFold 1.2.5: nemotron-3.5-lightning on GB10, window 262144 tokens, 8 streams at once\n"
    )
    (folder / "log.txt").write_text("decode code 1 of 2\ndecode code 2 of 2\n")
    write_json(folder / "instrument.json", {"decode_error_pct": 0.02, "ttft_error_s": 0.0004})
    seal(folder)


def refused_run(folder: Path, card: Card) -> None:
    """The first speed run, whose two code runs differ too much for any median."""
    rows = []
    for run, rate, drafted, accepted in ((1, 132.4, 490, 281), (2, 399.2, 492, 475)):
        row = record("decode", f"decode-code-{run}", 0.21, (TOKENS - 1) / rate, 96, prompt_id="code", detail={"run": run})
        row["extras"] = {"drafts": {"source": "the reply", "drafted": drafted, "accepted": accepted}}
        rows.append(row)
    rates = [decode_rate(row) for row in rows]
    write_lines(folder / "requests-decode.jsonl", rows)
    write_lines(folder / "replies-decode.jsonl", [{"id": row["id"], "text": "text"} for row in rows])
    settings = {**SETTINGS, "decode.prompt_ids": ["code"]}
    write_json(
        folder / "contract.json",
        contract(REFUSED_RUN, card, FIRST, "2026-11-10T09:00:00Z", settings, ["homestretch", "measure", "card.toml"]),
    )
    value = number(
        statistics.median(rates), "tok/s", 2, "requests-decode.jsonl:1,2", spread_pct=cv(rates), doubts=["spread_over_limit"]
    )
    write_json(
        folder / "result.json",
        {
            "schema": 1,
            "run": REFUSED_RUN,
            "scored_by": "homestretch 0.1.0",
            "parts": {"decode": {"state": "done", "measured": "2026-11-10"}},
            "numbers": {
                "decode.code.tokens_per_s": value,
                "decode.code.spread_pct": number(cv(rates), "%", 2, "requests-decode.jsonl:1,2"),
            },
            "doubts": {"spread_over_limit": ["decode, code prompt: 71.0 % over the limit of 15 %"]},
        },
    )
    (folder / "log.txt").write_text("decode code 1 of 2\n")
    seal(folder)


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
