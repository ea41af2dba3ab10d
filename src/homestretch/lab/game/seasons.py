"""A season: all four tasks made from its number, and the bytes that every machine must make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from homestretch.lab.errors import WrongUse
from homestretch.lab.game.course import RANGES
from homestretch.lab.game.draws import GAME
from homestretch.lab.game.tasks import Made, find

FIRST, LAST = 1, 999_999


@dataclass(frozen=True, kw_only=True)
class Season:
    """number and, by task name, what was made."""

    number: int
    tasks: Mapping[str, Made]

    def bytes(self) -> bytes:
        """The season as canonical JSON: sorted keys, no spaces, ASCII. Holds the solutions: never sent to a model."""
        tasks = {name: {"statement": made.statement, "targets": made.targets} for name, made in self.tasks.items()}
        data = {"game": GAME, "season": self.number, "tasks": tasks}
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    def sha256(self) -> str:
        return hashlib.sha256(self.bytes()).hexdigest()


@lru_cache(maxsize=16)
def season(number: int) -> Season:
    """Season `number`; WrongUse outside FIRST … LAST."""
    if not FIRST <= number <= LAST:
        raise WrongUse(f"--season {number}: a season is a whole number from {FIRST} to {LAST}")
    return Season(number=number, tasks={at.task: find(at.task).make(number) for at in RANGES})
