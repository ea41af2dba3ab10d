"""Repeats a published measurement: fetches its contract, checks files at hand, measures here, compares number by number."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import msgspec

from homestretch.lab import compare, prompts
from homestretch.lab.errors import WrongUse
from homestretch.lab.records import sha256_of
from homestretch.lab.types import Contract

MAX_BYTES = 32 * 1024 * 1024
LEAST_PCT = 5.0


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A published run fetched into `folder`: contract and result, as the page's own raw files hold them."""

    folder: Path
    contract: Contract


@dataclass(frozen=True, kw_only=True)
class HashRow:
    """A file of the contract against the one at hand. state: same, other, not here."""

    name: str
    state: str
    wanted: str
    here: str = ""


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """One number of both runs. state: repeats, does not repeat, not measured."""

    name: str
    page: float | int | None
    here: float | int | None
    allowed_pct: float | None
    state: str


class Links(HTMLParser):
    """The raw folders of a page's counting runs, from its `link rel=alternate` lines."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("data-run") and values.get("href"):
            self.found[str(values["data-run"])] = str(values["href"])


def fetch(address: str) -> bytes:
    """A file or an http(s) address, at most 32 MiB. WrongUse says what could not be read."""
    if address.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(address, timeout=60) as reply:
                data: bytes = reply.read(MAX_BYTES + 1)
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise WrongUse(
                f"{address} could not be fetched: {error}; check the address, or download the page and give the file"
            ) from error
    else:
        try:
            data = Path(address).read_bytes()
        except OSError as error:
            raise WrongUse(f"{address} cannot be read: {error.strerror}; give a page, its address, or a run folder") from error
    if len(data) > MAX_BYTES:
        raise WrongUse(f"{address} is refused: more than {MAX_BYTES:,} bytes")
    return data


def beside(page: str, href: str) -> str:
    """The address of a link, seen from its page."""
    if page.startswith(("http://", "https://")):
        return urllib.parse.urljoin(page, href)
    if urllib.parse.urlsplit(href).scheme:
        raise WrongUse(f"the page links its contract as {href}, which is not beside it")
    return os.path.normpath(str(Path(page).parent / urllib.parse.unquote(href)))


def origin(source: str, into: Path, run: str = "") -> Origin:
    """Fetch contract and result of a run folder or of a setup page into `into`.

    run: which of the page's runs, the first (its speed run) if "". WrongUse when the page names no contract.
    """
    folder = Path(source)
    if not source.startswith(("http://", "https://")) and folder.is_dir():
        addresses = {name: str(folder / name) for name in ("contract.json", "result.json")}
    else:
        links = Links()
        links.feed(fetch(source).decode("utf-8", errors="replace"))
        if not links.found:
            raise WrongUse(f"{source} names no contract; give the page of a setup, or a run folder")
        if run and run not in links.found:
            raise WrongUse(f"the page has no run {run!r}; it has {', '.join(links.found)}")
        href = links.found[run] if run else next(iter(links.found.values()))
        base = beside(source, href)
        addresses = {"contract.json": base, "result.json": base.removesuffix("contract.json") + "result.json"}
    into.mkdir(parents=True, exist_ok=True)
    for name, address in addresses.items():
        (into / name).write_bytes(fetch(address))
    try:
        contract = msgspec.json.decode((into / "contract.json").read_bytes(), type=Contract)
    except msgspec.MsgspecError as error:
        raise WrongUse(f"the contract of {source} cannot be used: {error}") from error
    return Origin(folder=into, contract=contract)


def hashes(contract: Contract, weights: Path | None, engine: Path | None, prompts_file: Path | None) -> list[HashRow]:
    """Every hash of the contract against the file at hand: prompts (ours if none is given), engine file, weight files."""
    out = []
    for name, wanted in sorted(contract.hashes.items()):
        path: Path | None = None
        here = ""
        if name == "prompts":
            here = prompts.read(prompts_file)[1]
        elif name.startswith(("engine/", "card/engine/")):
            path = engine or located(contract, name)
        elif name.startswith(("weights/", "card/weights/")):
            file = name.rsplit("/", 1)[-1]
            path = weights / file if weights is not None and weights.is_dir() else weights
        if path is not None and path.is_file():
            here = sha256_of(path)
        out.append(
            HashRow(name=name, state="not here" if not here else "same" if here == wanted else "other", wanted=wanted, here=here)
        )
    return out


def located(contract: Contract, name: str) -> Path | None:
    """The engine's program as this machine would find it."""
    command = contract.card.start.command if contract.card else []
    found = shutil.which(command[0]) if command and name.startswith("engine/") else None
    return Path(found).resolve() if found else None


def judge(page: Path, here: Path) -> tuple[list[Repeated], dict[str, list[str]]]:
    """Each number of the page's run against the new one, and the parts that cannot be compared with the settings that differ.

    Speed repeats when it differs by no more than 5 % or twice the larger spread, quality when the two intervals overlap.
    """
    found = compare.compare(page, here)
    rows = []
    for row in found.rows:
        first, second = row.first, row.second
        if first.value is None or second.value is None:
            rows.append(Repeated(name=row.name, page=first.value, here=second.value, allowed_pct=None, state="not measured"))
            continue
        if first.low is not None and second.low is not None and first.high is not None and second.high is not None:
            allowed, fine = None, not (first.high < second.low or second.high < first.low)
        else:
            allowed = max(LEAST_PCT, 2 * max(first.spread_pct or 0.0, second.spread_pct or 0.0))
            off = abs(row.difference_pct) if row.difference_pct is not None else 0.0 if first.value == second.value else 100.0
            fine = off <= allowed
        rows.append(
            Repeated(
                name=row.name,
                page=first.value,
                here=second.value,
                allowed_pct=allowed,
                state="repeats" if fine else "does not repeat",
            )
        )
    return rows, found.refusals
