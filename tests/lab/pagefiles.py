"""Raw files as a run writes them: requests, contract, guard samples, manifest; for the made-up runs of these tests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from homestretch.lab.types import Card, Contract, Sourced

FIRST, SECOND = "first DGX Spark", "second DGX Spark"
TOKENS, WINDOW1 = 512, 256
SAMPLING = {"temperature": 1.0, "top_p": 0.95, "min_p": 0.0}


def read_card() -> Card:
    """The card of the setup page: words of its author, sources, command."""
    return msgspec.toml.decode((Path(__file__).parent / "fixtures" / "page-card.toml").read_bytes(), type=Card)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def stream(ttft: float, total_s: float, tokens: int = TOKENS, boundary: float | None = None) -> list[tuple[float, str, int | None]]:
    """Events of a reply: one token first, then two or three an event; `boundary` = when token 256 arrives."""
    sizes: list[int] = [1]
    left = WINDOW1 - 1
    for end in (WINDOW1, tokens):
        left = end - sum(sizes)
        while left:
            size = min(left, 2 + len(sizes) % 2)
            sizes.append(size)
            left -= size
    events: list[tuple[float, str, int | None]] = [(round(ttft / 2, 9), "role", None)]
    done = 0
    first_half = boundary if boundary is not None else total_s * (WINDOW1 - 1) / (tokens - 1)
    for size in sizes:
        done += size
        if done <= WINDOW1:
            at = first_half * (done - 1) / (WINDOW1 - 1)
        else:
            at = first_half + (total_s - first_half) * (done - WINDOW1) / (tokens - WINDOW1)
        events.append((ttft + at, "content", size))
    events.append((ttft + total_s, "finish", None))
    events.append((ttft + total_s, "usage", None))
    return events


def record(part: str, step: str, ttft: float, total_s: float, prompt_tokens: int, **more: Any) -> dict[str, Any]:
    boundary = more.pop("boundary", None)
    events = stream(ttft, total_s, boundary=boundary)
    name = f"{step}-{more.get('slot', 0)}" if part == "conc" else step
    more.pop("slot", None)
    return {
        "id": name,
        "part": part,
        "step": step,
        "at": "2026-11-10T12:00:00Z",
        "prompt_sha256": sha(f"prompt {name}"),
        "prompt_tokens": prompt_tokens,
        "prompt_tokens_source": "usage",
        "settings": {
            "model": "nemotron-3.5-lightning",
            "stream": True,
            "max_tokens": TOKENS,
            "seed": 42,
            **SAMPLING,
            "chat_template_kwargs": {"enable_thinking": False},
        },
        "events": events,
        "end_s": events[-1][0],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": TOKENS, "cached_tokens": 0},
        "usage_where": "last chunk",
        "k1": 1,
        "k1_source": "usage on every event",
        "finish_reason": "length",
        "status": 200,
        **more,
    }


def number(value: float, unit: str, n: int, source: str, **more: Any) -> dict[str, Any]:
    return {"value": value, "unit": unit, "n": n, "source": source, **more}


def contract(
    run: str, card: Card, machine: str, created: str, settings: dict[str, Any], command: list[str], thinking: bool = False
) -> Contract:
    base = {f"sampling.{key}": Sourced(value=value, source=card.sampling.source) for key, value in SAMPLING.items()}
    return Contract(
        run=run,
        label=run,
        created=created,
        lab_version="0.1.0",
        card=card,
        base_url="http://127.0.0.1:45541/v1",
        model=card.model.id,
        machine_name=machine,
        settings={
            **base,
            "request.seed": Sourced(value=42, source="default"),
            "thinking": Sourced(value=thinking, source="the test's own setting"),
            "server.slots": card.slots,
            "server.window": card.window,
            "server.version": Sourced(value="TensorFold 1.2.5", source="the server itself"),
            **{name: Sourced(value=value, source="default") for name, value in settings.items()},
        },
        hashes={"prompts": sha("prompts"), "engine": card.engine.sha256},
        machine={"cpu": "GB10", "cores": 20, "memory_bytes": 128 * 2**30},
        command=command,
    )


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def write_lines(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def seal(folder: Path) -> None:
    """`manifest.json` over every other file."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }
    write_json(folder / "manifest.json", {"schema": 1, "files": files})


def guard_lines(folder: Path, samples: dict[str, int], quiet: int, busiest: float) -> None:
    """samples: how many of the guard's each part's steps have; busiest: the most that the quiet check saw, percent of a core."""
    load = {"name": "run.py", "pid": 4242, "cpu_pct": 0.6}
    steps = [f"{part}/step" for part, count in samples.items() for _ in range(count)]
    write_lines(
        folder / "guard.jsonl",
        [
            {"at": "2026-11-10T12:00:00Z", "mono": 0.5 * i, "step": step, "foreign": [load], "available_bytes": 2**36}
            for i, step in enumerate(steps)
        ],
    )
    write_lines(
        folder / "quiet.jsonl",
        [
            {"at": "2026-11-10T12:00:00Z", "mono": 10.0 * i, "foreign": [{**load, "cpu_pct": busiest if i == 7 else 0.5}]}
            for i in range(quiet)
        ],
    )
