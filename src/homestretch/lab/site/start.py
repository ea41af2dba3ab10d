"""The Setup section: what is needed, steps, the start command with each part explained, differences, sources, exact commands."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from homestretch.lab.setups import GROUPS, PARTS, LoadedSetup
from homestretch.lab.site.sentences import NAMES
from homestretch.lab.site.words import listed
from homestretch.lab.types import Link, Part

WIDE = 72


@dataclass(frozen=True, kw_only=True)
class Need:
    """A line of "What you need": a term, its text, and where to get it."""

    term: str
    text: str
    url: str = ""
    by: str = ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """An exact command of one run, for reproduction."""

    title: str
    run: str
    text: str


@dataclass(frozen=True, kw_only=True)
class StartSection:
    """Everything the Setup section shows."""

    needs: list[Need]
    files: list[tuple[str, int, str]]
    steps: list[str]
    command: str
    text: str
    port: int
    parts: list[Part]
    sampling: str


def start(setup: LoadedSetup) -> StartSection:
    """The section's data; a card always has one."""
    card = setup.card
    model = f"{card.model.repository or card.model.location}{' @' + card.model.revision if card.model.revision else ''}"
    needs = [
        Need(term="Hardware", text=card.machine.note or card.machine.label),
        Need(term="Model", text=f"{model}{' (' + card.model.description + ')' if card.model.description else ''}"),
        *(Need(term=link.label, text=shown(link), url=link.url) for link in card.model.links),
        Need(term="Engine", text=card.engine.description or f"{card.engine.name} {card.engine.version}", url=card.engine.url),
    ]
    if card.recipe:
        needs.append(
            Need(term=card.recipe.title, text=card.recipe.path or "the recipe", url=card.recipe.url, by=card.recipe.author)
        )
    return StartSection(
        needs=needs,
        files=[(item.name, item.bytes, item.sha256) for item in card.model.files],
        steps=card.start.steps,
        command=wrapped(filled(setup)),
        text=f"{engine_text(setup)}; {shlex.join(filled(setup))}",
        port=card.start.port,
        parts=[Part(argument=in_place(part.argument, setup), meaning=part.meaning) for part in card.start.parts],
        sampling=sampling(setup),
    )


def engine_text(setup: LoadedSetup) -> str:
    """The engine with its file and hash: `TensorFold 1.2.5 tensorfold-….tar.gz (sha256 …)`."""
    engine = setup.card.engine
    words = [engine.name, engine.version, engine.artifact, f"(sha256 {engine.sha256})" if engine.sha256 else ""]
    return " ".join(word for word in words if word)


def shown(link: Link) -> str:
    """A link's address without its scheme, as text."""
    return link.url.split("://", 1)[-1].rstrip("/")


def filled(setup: LoadedSetup) -> list[str]:
    """The start command with location, port, window and name in place."""
    return [in_place(word, setup) for word in setup.card.start.command]


def in_place(text: str, setup: LoadedSetup) -> str:
    """A word of the start command with the card's own values for its places."""
    card = setup.card
    values = {"location": card.model.location, "port": card.start.port, "window": card.window.value, "name": card.model.id}
    for place, value in values.items():
        text = text.replace(f"{{{place}}}", str(value))
    return text


def wrapped(words: list[str]) -> str:
    """A command over lines that break before options, as a shell reads it."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word) if word else "''")
    return " \\\n  ".join(" ".join(line) for line in lines if line)


def sampling(setup: LoadedSetup) -> str:
    """Window, slots, sampling and thinking with the source of each, from the card."""
    card = setup.card
    out = [f"Window: {number(card.window.value)} tokens ({card.window.source})."]
    out.append(f"Slots: {number(card.slots.value)} ({card.slots.source}).")
    value = card.sampling.value
    text = listed([f"{name.replace('_', '-')} {item}" for name, item in value.items()]) if isinstance(value, dict) else str(value)
    out.append(f"Sampling: {text} ({card.sampling.source}).")
    if card.thinking.field:
        default = "on" if card.thinking.default else "off"
        out.append(f"Thinking: switched in each request by {card.thinking.field}; the chat template has it {default} by default.")
    return " ".join(out)


def number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def commands(setup: LoadedSetup, parts: tuple[str, ...]) -> list[Command]:
    """The exact command of each run that counts for one of these parts, once per run."""
    out: dict[str, Command] = {}
    for part in (name for name in PARTS if name in parts):
        run = setup.counting.get(part)
        if run is None or run.contract is None or not run.contract.command or run.name in out:
            continue
        mine = [name for name in parts if name in setup.counting and setup.counting[name].name == run.name]
        whole = [
            group
            for group, members in GROUPS.items()
            if len(mine) > 1 and all(name in mine for name in members if name in setup.counting)
        ]
        title = NAMES[whole[0]] if whole else listed([NAMES[name] for name in mine])
        out[run.name] = Command(title=title[:1].upper() + title[1:], run=run.name, text=shlex.join(run.contract.command))
    return list(out.values())
