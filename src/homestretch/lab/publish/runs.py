"""Publishes runs into a site: recounts, filters, adds or updates the setup, rebuilds what changed. Old measurements stay."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from homestretch.lab import check
from homestretch.lab.check.signature import SIGNATURE
from homestretch.lab.doubts import DOUBTS
from homestretch.lab.errors import BrokenRun, WrongUse
from homestretch.lab.publish.filter import Filter
from homestretch.lab.publish.tree import earlier, filter_run, write_run
from homestretch.lab.records import sha256_of
from homestretch.lab.setups import SAFE_SLUG, Run, read_run, read_toml
from homestretch.lab.types import Card, EarlierRun, FileEntry, Setup, UnusedRun

Say = Callable[[str], None]
HEADLINES = {"decode": "decode.tokens_per_s"}


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """What became of one run. counts: parts whose numbers the page now shows; unused: part -> why it does not count."""

    name: str
    slug: str
    folder: Path
    report: check.Report
    files: list[FileEntry]
    counts: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)

    @property
    def held(self) -> list[FileEntry]:
        return [entry for entry in self.files if entry.state == "held"]


def publish(
    runs: Sequence[Path],
    site: Path,
    *,
    what: Filter | None = None,
    card: Path | None = None,
    reason: str = "",
    sign: Path | None = None,
    say: Say | None = None,
) -> list[PublishedRun]:
    """Add run folders to the site's source, `site/setups/SLUG/`, and rebuild `site/public`.

    what: the filter, this machine's names if None. card: used instead of the card in the runs' contracts. reason: publish the
    runs as unused, for this reason. sign: a private ssh key that signs each manifest. say: told what is being done.

    A run that the recount contradicts and a part that is not done are published as unused with that reason, and so is a part
    whose headline a doubt refuses when a better run is there. A part measured before stays: as an earlier run when time or
    engine differ, as an unused one when it was refused or measured on another machine the same way. WrongUse or BrokenRun
    when a run cannot be published at all.
    """
    from homestretch.lab.site.build import build

    what = what or Filter.of_this_machine()
    tell = say or (lambda text: None)
    done = [add(path, site, what, card, reason, sign, tell) for path in runs]
    ignore = site / ".gitignore"
    if not ignore.exists():
        ignore.write_text("public/\n", encoding="utf-8")
    tell("rebuilding the pages that changed")
    build(site / "setups", site / "public", what=what, say=say)
    return done


def add(path: Path, site: Path, what: Filter, card_path: Path | None, reason: str, sign: Path | None, tell: Say) -> PublishedRun:
    """Filter one run into its setup folder and write `setup.toml`."""
    run = read_run(path.resolve())
    if run.contract is None or run.result is None:
        raise BrokenRun(f"{path} cannot be published: {'; '.join(run.problems)}; measure or score it again")
    card = read_toml(card_path, Card) if card_path else run.contract.card
    if card is None:
        raise WrongUse(f"{path} was measured without a card; give one with --card FILE, so that the page can say what was measured")
    if not SAFE_SLUG.fullmatch(card.slug):
        raise WrongUse(f"the slug {card.slug!r} is refused: use lower-case letters, digits, '-' and '.', at most 120 characters")
    if what.scrub(card.slug) != card.slug:
        raise WrongUse(
            f"the slug {card.slug!r} is refused: it holds a private name; give the card another one, or --allow the word"
        )
    name = what.scrub(run.contract.run)
    if not name or any(not (char.isascii() and (char.isalnum() or char in "-_.")) for char in name) or name.startswith("."):
        raise WrongUse(f"the run name {name!r} is refused: use letters, digits, '-', '_' and '.'; measure with another --label")
    home = site / "setups" / card.slug
    target = home / "runs" / name
    if target.exists() and not same_run(path, target):
        raise WrongUse(f"{card.slug} already has another run named {name}; measure with another --label, or remove {target}")
    tell(f"recounting {name}")
    report = check.check_run(path)
    tell(f"filtering {name}")
    fresh = target.with_name(name + ".part")
    shutil.rmtree(fresh, ignore_errors=True)
    files = write_run(path, fresh, what)
    if sign is not None:
        check.sign(fresh, sign)
    elif (target / SIGNATURE).is_file() and not (fresh / SIGNATURE).exists():
        shutil.copyfile(target / SIGNATURE, fresh / SIGNATURE)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    old = read_toml(home / "setup.toml", Setup) if (home / "setup.toml").is_file() else Setup(card="card.toml", runs={})
    counts, unused = judged(run, report, reason)
    setup = joined(old, run, name, counts, unused, home, what)
    counts = [part for part in counts if setup.runs.get(part) == f"runs/{name}"]
    write_toml(home / "card.toml", scrubbed(card, what))
    write_toml(home / "setup.toml", setup)
    return PublishedRun(name=name, slug=card.slug, folder=target, report=report, files=files, counts=counts, unused=unused)


def same_run(path: Path, target: Path) -> bool:
    """Whether a published folder came from this very run: same contract, byte for byte before the filter."""
    try:
        entry = earlier(target).get("contract.json")
        return entry is not None and entry.sha256 == sha256_of(path / "contract.json")
    except OSError:
        return False


def judged(run: Run, report: check.Report, reason: str) -> tuple[list[str], dict[str, str]]:
    """Parts that may count, and the others with their reason."""
    counts: list[str] = []
    unused: dict[str, str] = {}
    wrong = next((row for row in report.rows if row.outcome == "differs"), None)
    for part, state in run.result.parts.items() if run.result else ():
        if reason:
            unused[part] = reason
        elif wrong is not None:
            unused[part] = f"the independent check failed: {wrong.name}, {wrong.note}"
        elif state.state != "done":
            unused[part] = f"{state.state}: {state.reason}" if state.reason else state.state
        else:
            counts.append(part)
    return counts, unused


def refusing(run: Run, part: str) -> str:
    """The refusing doubt that keeps a part's headline out, in words, "" when it may stand or the part has none."""
    number = run.result.numbers.get(HEADLINES.get(part, "")) if run.result else None
    if number is None:
        return ""
    for doubt in number.doubts:
        if doubt not in DOUBTS or DOUBTS[doubt].refuses:
            texts = run.result.doubts.get(doubt, []) if run.result else []
            return "; ".join(texts) or doubt.replace("_", " ")
    return ""


def joined(old: Setup, run: Run, name: str, counts: list[str], unused: dict[str, str], home: Path, what: Filter) -> Setup:
    """The setup with the run in it. Runs of the same part that counted before stay, named.

    A run whose headline is refused counts only while there is no better one: its figures then stand with their doubt.
    """
    here = f"runs/{name}"
    machine = run.contract.machine_name if run.contract else ""
    runs = {part: place for part, place in spread_groups(old, home).items() if place != here}
    kept_unused = [entry for entry in old.unused if entry.run != here]
    kept_earlier = [entry for entry in old.earlier if entry.run != here]
    for part in counts:
        before = runs.get(part)
        if before is not None:
            other = read_run(home / before)
            weak, weak_before = refusing(run, part), refusing(other, part)
            if weak and not weak_before:
                unused[part] = weak
                continue
            there = other.contract.machine_name if other.contract else ""
            if weak_before or repeated_elsewhere(other, run):
                text = weak_before or (f"repeated on the {machine}" if machine else "repeated on another machine")
                kept_unused.append(UnusedRun(part=part, run=before, reason=what.scrub(text), machine=there))
            else:
                kept_earlier.append(EarlierRun(part=part, run=before, replaced=datetime.now(UTC).date().isoformat()))
        runs[part] = here
    kept_unused += [UnusedRun(part=part, run=here, reason=what.scrub(text), machine=machine) for part, text in unused.items()]
    machines = {**old.machines, **({name: what.scrub(machine)} if machine else {})}
    return Setup(card="card.toml", runs=runs, machines=machines, unused=kept_unused, earlier=kept_earlier, notes=old.notes)


def spread_groups(old: Setup, home: Path) -> dict[str, str]:
    """The setup's runs with groups written out part by part."""
    from homestretch.lab.setups import GROUPS

    out: dict[str, str] = {}
    for part, place in old.runs.items():
        if part not in GROUPS:
            out[part] = place
            continue
        other = read_run(home / place)
        for name in GROUPS[part]:
            if other.result is not None and name in other.result.parts:
                out.setdefault(name, place)
    return out


def repeated_elsewhere(before: Run, now: Run) -> bool:
    """Whether two runs measured the same engine on two machines that their contracts name."""
    one, two = before.contract, now.contract
    if one is None or two is None or not one.machine_name or not two.machine_name or one.machine_name == two.machine_name:
        return False
    versions = [contract.card.engine.version if contract.card else "" for contract in (one, two)]
    return versions[0] == versions[1]


def scrubbed(card: Card, what: Filter) -> Card:
    """The card with every text through the filter."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return what.scrub(value)
        if isinstance(value, list):
            return [clean(item) for item in value]
        return {key: clean(item) for key, item in value.items()} if isinstance(value, dict) else value

    return msgspec.convert(clean(msgspec.to_builtins(card)), Card)


def write_toml(path: Path, value: Card | Setup) -> None:
    """A TOML file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.toml.encode(without_null(msgspec.to_builtins(value))))
    part.replace(path)


def without_null(value: Any) -> Any:
    """TOML has no null: such fields are left out."""
    if isinstance(value, dict):
        return {key: without_null(item) for key, item in value.items() if item is not None}
    return [without_null(item) for item in value if item is not None] if isinstance(value, list) else value


def preview(path: Path, what: Filter) -> list[tuple[FileEntry, list[tuple[int, str, str]]]]:
    """The dry run: each file's entry, and its changed lines as (line, before, after). Writes nothing."""
    return [(judged.entry, judged.changes) for judged in filter_run(path, what)]
