"""Quality, memory and race runs of the setup page, made from the counts it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagefiles import FIRST, contract, guard_lines, number, record, seal, write_json, write_lines

from homestretch.lab.game.course import RANGES, buzzers_ms
from homestretch.lab.game.files import Exchange, Lane, encode
from homestretch.lab.game.judge import judge
from homestretch.lab.game.programs import sandboxed
from homestretch.lab.game.race import SYSTEM
from homestretch.lab.game.seasons import Season, season
from homestretch.lab.types import Card

INST_RUN, LCB_RUN, THINK_RUN = "neb-1010-inst-r0", "ned-1010-inst-r0", "nec-1010-think-r0"
FIT_RUN, RACE_RUN = "nee-1010-fit-r0", "nef-1010-race-r0"
QUALITY = {"mmlupro": INST_RUN, "gpqa": INST_RUN, "ifeval": INST_RUN, "ruler": INST_RUN, "lcb": LCB_RUN, "think": THINK_RUN}
COUNTS = {  # part: asked, right, cut off, unparsed, limit
    "mmlupro": (400, 175, 0, 2, 1024),
    "gpqa": (198, 81, 0, 1, 1024),
    "ifeval": (200, 134, 1, 0, 4096),
    "lcb": (40, 12, 7, 0, 32768),
    "think": (30, 17, 12, 0, 16384),
}
RULER = {
    8192: {"multikey": 10, "common_words": 9, "multihop_qa": 7, "variables": 2},
    32768: {"multikey": 10, "common_words": 6, "multihop_qa": 4, "variables": 2},
}
FIT = {
    4096: (3892, 23.44),
    8192: (7782, 23.46),
    16384: (15564, 24.16),
    32768: (31129, 25.11),
    65536: (62259, 27.33),
    131072: (124518, 31.66),
}
LETTERS = ("mmlupro", "gpqa", "think")
Z = 1.959964


def margin(right: int, asked: int) -> tuple[float, float, float]:
    p, z2 = right / asked, Z * Z
    half = Z / (1 + z2 / asked) * (p * (1 - p) / asked + z2 / (4 * asked * asked)) ** 0.5
    centre = (p + z2 / (2 * asked)) / (1 + z2 / asked)
    return 100 * half, 100 * (centre - half), 100 * (centre + half)


def score(prefix: str, asked: int, right: int, cut: int, unparsed: int, source: str) -> dict[str, Any]:
    half, low, high = margin(right, asked)
    return {
        f"{prefix}.right_pct": number(100 * right / asked, "%", asked, source, low=low, high=high),
        f"{prefix}.margin_pts": number(half, "pts", asked, source),
        f"{prefix}.right": number(right, "answers", asked, source),
        f"{prefix}.asked": number(asked, "answers", asked, source),
        f"{prefix}.cut_off": number(cut, "answers", asked, source),
        f"{prefix}.unparsed": number(unparsed, "answers", asked, source),
        f"{prefix}.errors": number(0, "answers", asked, source),
    }


def answers(asked: int, right: int, cut: int, unparsed: int, prefix: str, tokens: int = 2) -> list[dict[str, Any]]:
    verdicts = ["right"] * right + ["cut"] * cut + ["unparsed"] * unparsed
    verdicts += ["wrong"] * (asked - len(verdicts))
    return [
        {
            "row": f"{prefix}-{index}",
            "verdict": verdict,
            "answer": "A" if verdict == "right" else "B" if verdict == "wrong" else "",
            "tokens": tokens,
            "finish_reason": "length" if verdict == "cut" else "stop",
            "seconds": 1.5 if tokens < 100 else 194.5,
        }
        for index, verdict in enumerate(verdicts)
    ]


def requests(part: str, rows: list[dict[str, Any]], limit: int, thinking: bool) -> list[dict[str, Any]]:
    out = []
    for row in rows:
        asked: dict[str, Any] = {"row": row["row"], **row.get("detail", {})}
        if part in LETTERS:
            asked |= {"key": "A", "options": 10}
        if part == "ruler":
            asked |= {"references": ["4711", "0815"], "every": True}
        item = record(part, f"{part}-{row['row']}", 0.1, 1.4, 120, detail=asked)
        took = row["seconds"]
        item["events"] = [(took / 2, "content", row["tokens"]), (took, "finish", None), (took, "usage", None)]
        item |= {"end_s": took, "k1": row["tokens"]}
        item["usage"] = {**item["usage"], "completion_tokens": row["tokens"]}
        item["finish_reason"] = row["finish_reason"]
        item["settings"] = {**item["settings"], "max_tokens": limit, "chat_template_kwargs": {"enable_thinking": thinking}}
        out.append(item)
    return out


def reply(row: dict[str, Any]) -> dict[str, Any]:
    """A reply that earns its verdict."""
    right, part = row["verdict"] == "right", row["part"]
    if part == "lcb":
        text = f"```python\nprint({int(right)})\n```"
    elif part == "ruler":
        text = f"The numbers are 4711 and {'0815' if right else '1234'}."
    elif part == "ifeval":
        text = "As you asked, in three lines."
    else:
        text = f"The answer is {row['answer']}." if row["answer"] else "I would rather not say."
    return {"id": f"{part}-{row['row']}", "text": text}


def quality_runs(runs: Path, card: Card) -> None:
    for run in (INST_RUN, LCB_RUN, THINK_RUN):
        folder = runs / run
        numbers: dict[str, Any] = {}
        parts: dict[str, Any] = {}
        settings: dict[str, Any] = {"measure.at_once": 8}
        for part, (asked, right, cut, unparsed, limit) in COUNTS.items():
            if QUALITY[part] != run:
                continue
            tokens = 6873 if part == "think" else 2
            rows = answers(asked, right, cut, unparsed, part, tokens)
            write_lines(folder / f"answers-{part}.jsonl", rows)
            write_lines(folder / f"requests-{part}.jsonl", requests(part, rows, limit, part == "think"))
            write_lines(folder / f"replies-{part}.jsonl", [reply({**row, "part": part}) for row in rows])
            numbers |= score(part, asked, right, cut, unparsed, f"answers-{part}.jsonl")
            settings[f"{part}.max_tokens"] = limit
            parts[part] = {"state": "done", "measured": "2026-11-10"}
            if part == "think":
                numbers["think.median_tokens"] = number(6873, "tokens", asked, "answers-think.jsonl")
                numbers["think.median_s"] = number(194.5, "s", asked, "answers-think.jsonl")
        if run == INST_RUN:
            rows = []
            for depth, tasks in RULER.items():
                for task, right in tasks.items():
                    rows += [
                        {**row, "detail": {"depth": depth, "task": task}} for row in answers(10, right, 0, 0, f"{depth}-{task}")
                    ]
                    numbers[f"ruler.{depth}.{task}.right"] = number(right, "answers", 10, "answers-ruler.jsonl")
                numbers |= score(f"ruler.{depth}", 40, sum(tasks.values()), 0, 0, "answers-ruler.jsonl")
            write_lines(folder / "answers-ruler.jsonl", rows)
            write_lines(folder / "requests-ruler.jsonl", requests("ruler", rows, 128, False))
            write_lines(folder / "replies-ruler.jsonl", [reply({**row, "part": "ruler"}) for row in rows])
            settings["ruler.max_tokens"] = 128
            settings["ruler.depths"] = list(RULER)
            parts["ruler"] = {"state": "done", "measured": "2026-11-10"}
        command = ["homestretch", "measure", "card.toml", "--label", run, "--parts", ",".join(parts)]
        write_json(
            folder / "contract.json",
            contract(run, card, FIRST, "2026-11-10T14:00:00Z", settings, command, thinking=run == THINK_RUN),
        )
        write_json(
            folder / "result.json", {"schema": 1, "run": run, "scored_by": "homestretch 0.1.0", "parts": parts, "numbers": numbers}
        )
        guard_lines(folder, dict.fromkeys(parts, 60), 66, 0.8)
        (folder / "log.txt").write_text("\n".join(f"{part} done" for part in parts) + "\n")
        seal(folder)


def fit_run(folder: Path, card: Card) -> None:
    numbers: dict[str, Any] = {}
    rows, tries = [], []
    for size, (tokens, peak) in FIT.items():
        row = record("fit", f"fit-{size}", 1.0, 2.0, tokens, detail={"size": size})
        row["finish_reason"] = "stop"
        rows.append(row)
        numbers[f"fit.{size}.prompt_tokens"] = number(tokens, "tokens", 1, "requests-fit.jsonl")
        numbers[f"fit.{size}.filled_pct"] = number(100 * tokens / size, "%", 1, "requests-fit.jsonl")
        idle, rise = 9 * 2**30, round(peak * 2**30)
        used = [[0.5, idle + rise // 2], [1.0, idle + rise], [1.5, idle + rise // 3]]
        tries.append(
            {"size": size, "attempt": 1, "at": "x", "outcome": "answered", "idle": idle, "peak": idle + rise, "used": used}
        )
        numbers[f"fit.{size}.peak_gib"] = number(rise / 2**30, "GiB", 1, "memory-fit.jsonl")
    numbers["fit.largest_tokens"] = number(131072, "tokens", 6, "requests-fit.jsonl")
    write_lines(folder / "requests-fit.jsonl", rows)
    write_lines(folder / "memory-fit.jsonl", tries)
    write_lines(folder / "replies-fit.jsonl", [{"id": row["id"], "text": "text"} for row in rows])
    write_json(
        folder / "contract.json",
        contract(
            FIT_RUN,
            card,
            FIRST,
            "2026-11-10T18:00:00Z",
            {"fit.sizes": list(FIT)},
            ["homestretch", "measure", "card.toml", "--parts", "fit"],
        ),
    )
    part = {
        "state": "done",
        "measured": "2026-11-10",
        "detail": {"sizes": [{"size": size, "outcome": "answered", "finish_reason": "stop"} for size in FIT]},
    }
    write_json(
        folder / "result.json",
        {"schema": 1, "run": FIT_RUN, "scored_by": "homestretch 0.1.0", "parts": {"fit": part}, "numbers": numbers},
    )
    (folder / "log.txt").write_text("fit 4096\n")
    seal(folder)


def exchanges(season: Season) -> list[Exchange]:
    """Answers that miss every target but the last bench, with the page's thinking times."""
    order = {"5": season.tasks["seating"].targets[4]["answer"]}
    said = {
        "seating": f"```json\n{json.dumps(order)}\n```",
        "painter": "```python\nprint(0)\n```",
        "snake": "```python\nprint(0)\n```",
    }
    return [
        Exchange(
            range=at.number,
            task=at.task,
            sent_at="2026-11-10T20:00:00.000Z",
            request={
                "model": "nemotron-3.5-lightning",
                "messages": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": season.tasks[at.task].statement},
                ],
            },
            status=200,
            ended="answer",
            thinking_ms=ms,
            finish_reason="stop",
            answer=said.get(at.task, "I cannot tell."),
        )
        for at, ms in zip(RANGES, (2200, 500, 400, 3100), strict=True)
    ]


def race_run(folder: Path, card: Card) -> None:
    made = season(21)
    lane = Lane(
        season=21,
        date="2026-11-10",
        model=card.model.id,
        setup=card.slug,
        sampling={"temperature": 1.0, "top_p": 0.95},
        sampling_source=card.sampling.source,
        max_tokens=4096,
        buzzers_ms=list(buzzers_ms(False)),
        lab_version="0.1.0",
        command=["homestretch", "play", "card.toml", "--season", "21"],
    )
    io = exchanges(made)
    race = judge(lane, io, sandboxed)
    home = folder / "gauntlet"
    home.mkdir(parents=True)
    (home / "result.json").write_bytes(encode(race))
    (home / "model.json").write_bytes(encode(lane))
    (home / "system.txt").write_text(SYSTEM)
    write_lines(home / "io.jsonl", io)
    write_lines(home / "log.jsonl", [{"at": "2026-11-10T20:00:00Z", "ms": 0, "kind": "start"}])
    (home / "verify.txt").write_text("judged again: the same bytes\n")
    source = "gauntlet/result.json"
    numbers = {
        "gauntlet.finish_s": number((race.finish_ms or 0) / 1000, "s", 1, source),
        "gauntlet.hits": number(race.hits, "targets", 20, source),
        "gauntlet.loops": number(race.loops, "loops", 20, source),
        "gauntlet.loops_s": number(race.loops_ms / 1000, "s", 20, source),
        "gauntlet.thinking_s": number(race.thinking_ms / 1000, "s", 4, source),
        "gauntlet.buzzers": number(race.buzzers, "buzzers", 4, source),
    }
    write_json(folder / "contract.json", contract(RACE_RUN, card, FIRST, "2026-11-10T20:00:00Z", {}, lane.command))
    parts = {"gauntlet": {"state": "done", "measured": "2026-11-10"}}
    write_json(
        folder / "result.json", {"schema": 1, "run": RACE_RUN, "scored_by": "homestretch 0.1.0", "parts": parts, "numbers": numbers}
    )
    seal(folder)
