"""Scores a run folder from its raw files: answers, numbers and doubts; can be done again at any time, without the server."""

from __future__ import annotations

from pathlib import Path

from homestretch import __version__
from homestretch.lab import parts, seen
from homestretch.lab.doubts import DOUBTS
from homestretch.lab.errors import BrokenRun
from homestretch.lab.records import RunFolder
from homestretch.lab.types import Answer, Number, PartResult, Result


def score(path: Path) -> Result:
    """Writes `answers-PART.jsonl`, `result.json` and `manifest.json`; BrokenRun names the file that cannot be read."""
    run = RunFolder.open(path)
    contract = run.contract()
    results: dict[str, PartResult] = {}
    numbers: dict[str, Number] = {}
    answers: dict[str, tuple[Answer, ...]] = {}
    doubts: seen.Doubts = {}
    for name in run.parts():
        part = parts.load(name)
        version = contract.settings[f"{name}.version"].value
        if version != part.version:
            raise BrokenRun(f"{path}: part {name} was measured in version {version}, this lab scores version {part.version}")
        scored = part.score(run)
        results[name] = scored.part
        numbers |= scored.numbers
        if scored.answers:
            answers[name] = scored.answers
        doubts = seen.merge(doubts, {key: list(texts) for key, texts in scored.doubts.items()})
    if contract.settings["guard.allow_load"].value:
        doubts = seen.merge(doubts, {"disturbed": [_allowed(run)]})
    unknown = {name for number in numbers.values() for name in number.doubts} | set(doubts)
    if extra := unknown - set(DOUBTS):
        raise BrokenRun(f"no doubt is called {', '.join(sorted(extra))}; they are listed in lab/doubts.py")
    result = Result(run=contract.run, scored_by=f"homestretch {__version__}", parts=results, numbers=numbers, doubts=doubts)
    run.write_derived(result, answers)
    return result


def _allowed(run: RunFolder) -> str:
    """What the quiet samples saw while load was allowed."""
    samples = run.guard_samples("quiet")
    worst = max((load for sample in samples for load in sample.foreign), key=lambda load: load.cpu_pct, default=None)
    seen_most = f"at most {worst.cpu_pct:.1f} % of one core, from {worst.name}" if worst else "none"
    return f"--allow-load was given; foreign load seen in {len(samples)} samples of 10 s: {seen_most}"
