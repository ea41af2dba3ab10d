"""What the 10-second samples saw while a quality part ran: the busiest other process, and each sample over a quarter of a core."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from homestretch.lab.types import GuardSample

if TYPE_CHECKING:
    from homestretch.lab.records import RunFolder

LIMIT_PCT = 25.0


def notes(run: RunFolder, part: str) -> list[str]:
    """One sentence about foreign load during the part; none when nobody sampled."""
    samples = during(run, part)
    if not samples:
        return []
    over: Counter[str] = Counter()
    most, name = 0.0, ""
    for sample in samples:
        for load in sample.foreign:
            if load.cpu_pct > most:
                most, name = load.cpu_pct, load.name
        busy = max((load for load in sample.foreign if load.cpu_pct > LIMIT_PCT), key=lambda load: load.cpu_pct, default=None)
        if busy is not None:
            over[busy.name] += 1
    text = f"The busiest other process was sampled every 10 s ({len(samples)} samples): at most {most:.1f} % of one core"
    text += f" ({name})." if name else "."
    if over:
        named = ", ".join(f"{count} of {process}" for process, count in over.most_common())
        text += f" Above {LIMIT_PCT:.0f} %: {sum(over.values())} of them ({named})."
    return [text]


def during(run: RunFolder, part: str) -> list[GuardSample]:
    """Quiet samples taken while a question of the part was being answered."""
    return [sample for sample in run.guard_samples("quiet") if sample.step.split("/")[0] == part]
