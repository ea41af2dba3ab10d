"""Counts drafts where replies do not: the server's metrics or its log, read before and after a request."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from homestretch.lab.client import Target
from homestretch.lab.servers import ServerKind, metrics

PATIENCE_S = 0.5


class FromMetrics:
    """Differences of a server's counters."""

    def __init__(self, kind: ServerKind, target: Target) -> None:
        self._kind, self._target = kind, target

    def mark(self) -> Any:
        return self._kind.drafts_in_metrics(metrics(self._target))

    def since(self, mark: Any) -> dict[str, Any] | None:
        after = self._kind.drafts_in_metrics(metrics(self._target))
        if mark is None or after is None:
            return None
        accepted, drafted = after[0] - mark[0], after[1] - mark[1]
        return {"drafted": round(drafted), "accepted": round(accepted), "source": "the server's metrics"}


class FromLog:
    """What the server's log says between two moments; it may be written a little late."""

    def __init__(self, kind: ServerKind, path: Path) -> None:
        self._kind, self._path = kind, path

    def mark(self) -> Any:
        return self._path.stat().st_size if self._path.exists() else 0

    def since(self, mark: Any) -> dict[str, Any] | None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if not self._path.exists():
                return None
            with self._path.open("rb") as file:
                file.seek(mark)
                text = file.read().decode(errors="replace")
            counted = self._kind.drafts_in_log(text)
            if counted is not None:
                return {"drafted": counted[1], "accepted": counted[0], "source": "the server's log"}
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)


def source(kind: ServerKind, target: Target, log: Path | None) -> FromMetrics | FromLog | None:
    """Metrics where they hold draft counters, else a log of a kind that writes of drafts, else None."""
    if kind.drafts_in_metrics(metrics(target)) is not None:
        return FromMetrics(kind, target)
    if log is not None and type(kind).drafts_in_log is not ServerKind.drafts_in_log:
        return FromLog(kind, log)
    return None
