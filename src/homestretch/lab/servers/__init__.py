"""Servers the lab can start or attach to, one file a kind: when they are ready, what they say of themselves, their drafts."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from homestretch.lab.client import Target, call, try_json
from homestretch.lab.errors import WrongUse
from homestretch.lab.servers.managed import ManagedServer

__all__ = ["Facts", "ManagedServer", "ServerKind", "load", "names", "number"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a server says of itself. Each *_source names where that stood; "" and None where it says nothing."""

    version: str = ""
    start_line: str = ""
    slots: int | None = None
    slots_source: str = ""
    window: int | None = None
    window_source: str = ""
    drafts: str = ""


class ServerKind:
    """One kind of server; a file `lab/servers/NAME.py` holds a subclass and `KIND = ItsClass()`, `name` equal to the file's.

    no_cache: fields that ask it to keep no prompt (`--no-cache-prompt`); {} where that is a matter of its start command.
    """

    name: ClassVar[str]
    no_cache: ClassVar[dict[str, Any]] = {}

    def ready(self, target: Target) -> bool:
        """Whether the model is loaded and requests will be answered."""
        answer = try_json(target, "/models", timeout_s=5.0)
        return isinstance(answer, dict) and bool(answer.get("data"))

    def read_log(self, log: str) -> Facts:
        """What the log tells; the parsing is tested on recorded output."""
        return Facts()

    def ask(self, target: Target, model: str) -> Facts:
        """What its API tells."""
        answer = try_json(target, "/models", timeout_s=10.0)
        for entry in (answer or {}).get("data", []) if isinstance(answer, dict) else []:
            if isinstance(entry, dict) and entry.get("id") == model:
                window = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
                if isinstance(window, int):
                    return Facts(window=window, window_source="the server's /v1/models")
        return Facts()

    def facts(self, target: Target, model: str, log: str) -> Facts:
        """Log and API together; what the log says of itself comes first."""
        said, told = self.read_log(log), self.ask(target, model)
        return Facts(
            version=said.version or told.version,
            start_line=said.start_line or told.start_line,
            slots=said.slots if said.slots is not None else told.slots,
            slots_source=said.slots_source or told.slots_source,
            window=said.window if said.window is not None else told.window,
            window_source=said.window_source or told.window_source,
            drafts=said.drafts or told.drafts,
        )

    def drafts_in_log(self, log: str) -> tuple[int, int] | None:
        """(accepted, drafted) summed over what a piece of log reports; None where it reports none."""
        return None

    def drafts_in_metrics(self, text: str) -> tuple[float, float] | None:
        """(accepted, drafted) counters of its Prometheus text; None where there are none."""
        return None


def names() -> tuple[str, ...]:
    """Kinds that are present."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name != "managed"))


def load(name: str) -> ServerKind:
    """The kind called `name`; WrongUse when there is none."""
    if name not in names():
        raise WrongUse(f"engine.server {name!r} is no kind of server; there are: {', '.join(names())}")
    kind = importlib.import_module(f"{__name__}.{name}").KIND
    if not isinstance(kind, ServerKind) or kind.name != name:
        raise WrongUse(f"lab/servers/{name}.py must hold KIND, a ServerKind whose name is {name!r}")
    return kind


def number(pattern: str, text: str) -> int | None:
    """The last whole number that a pattern's first group finds; thousands commas are allowed."""
    found = re.findall(pattern, text)
    return int(found[-1].replace(",", "")) if found else None


def line(pattern: str, text: str) -> str:
    """The last line that holds a pattern, trimmed."""
    return next((row.strip() for row in reversed(text.splitlines()) if re.search(pattern, row)), "")


def counter(name: str, text: str) -> float | None:
    """Sum of a Prometheus counter over its labels; None where the text does not hold it."""
    values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})?\s+([0-9.eE+]+)\s*$", text, re.M)
    return sum(float(value) for value in values) if values else None


def metrics(target: Target) -> str:
    """The server's /metrics, "" where it has none."""
    raw = call(target, "//metrics", timeout_s=10.0)
    return raw.body().decode(errors="replace") if raw.status == 200 and not raw.error else ""
