"""Reads setup folders: one page's card, the runs that count for each part, and the runs that do not, with their reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from homestretch.lab.errors import BrokenRun, WrongUse
from homestretch.lab.types import Card, Contract, EarlierRun, Result, Setup, UnusedRun

SPEED = ("decode", "prefill", "conc", "ctx")
QUALITY = ("mmlupro", "gpqa", "ifeval", "lcb", "ruler", "think")
GROUPS = {"speed": SPEED, "quality": QUALITY}
PARTS = (*SPEED, *QUALITY, "fit", "gauntlet")
SAFE_SLUG = re.compile(r"[a-z0-9][a-z0-9.-]{0,119}")
MAX_JSON_BYTES = 32 * 1024 * 1024

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder as far as it could be read; problems say what could not."""

    name: str
    folder: Path
    contract: Contract | None
    result: Result | None
    problems: tuple[str, ...] = ()

    @property
    def date(self) -> str:
        """The day of the run, `YYYY-MM-DD`, from its contract or "" when there is none."""
        return self.contract.created[:10] if self.contract else ""


@dataclass(frozen=True, kw_only=True)
class LoadedSetup:
    """A setup folder, read. counting: part -> the run whose numbers the page shows."""

    slug: str
    folder: Path
    card: Card
    setup: Setup
    counting: dict[str, Run]
    unused: list[tuple[UnusedRun, Run]] = field(default_factory=list)
    earlier: list[tuple[EarlierRun, Run]] = field(default_factory=list)
    problems: tuple[str, ...] = ()

    def runs(self) -> list[Run]:
        """Every run of the setup once, counting ones first, in a stable order."""
        seen: dict[str, Run] = {}
        for part in PARTS:
            if part in self.counting:
                seen.setdefault(self.counting[part].name, self.counting[part])
        for _, run in [*self.unused, *self.earlier]:
            seen.setdefault(run.name, run)
        return list(seen.values())

    def machine_name(self, run: Run) -> str:
        """How the page calls the machine of a run: the setup's name for it, the contract's, or ""."""
        return self.setup.machines.get(run.name) or (run.contract.machine_name if run.contract else "")

    @property
    def date(self) -> str:
        """The latest day on which a counting run was made."""
        return max((run.date for run in self.counting.values()), default="")


def inside(root: Path, relative: str) -> Path:
    """`root/relative`, refused when it is absolute, climbs out of root, or passes through a symbolic link."""
    path = root / relative
    if Path(relative).is_absolute() or ".." in Path(relative).parts or not relative:
        raise WrongUse(f"the path {relative!r} in {root.name} is refused: it must be relative and stay inside the setup folder")
    step = root
    for piece in Path(relative).parts:
        step = step / piece
        if step.is_symlink():
            raise WrongUse(
                f"the path {relative!r} in {root.name} is refused: {piece!r} is a symbolic link; put the files themselves there"
            )
    return path


def read_json(path: Path, kind: type[Kind]) -> Kind:
    """Decode one JSON file strictly. BrokenRun names the file and the fault; files over 32 MiB are refused."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise BrokenRun(f"{path.name} is refused: {path.stat().st_size:,} bytes, at most {MAX_JSON_BYTES:,} are read")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BrokenRun(f"{path.name} cannot be read: {reason(error)}") from error


def read_toml(path: Path, kind: type[Kind]) -> Kind:
    """Decode one TOML file strictly. WrongUse names the file and the fault."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise WrongUse(f"{path.name} is refused: {path.stat().st_size:,} bytes, at most {MAX_JSON_BYTES:,} are read")
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise WrongUse(f"{path.name} cannot be read: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The fault without the path of the machine it happened on."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def read_run(folder: Path) -> Run:
    """Read contract and result of a run folder; what cannot be read becomes a problem, never an exception."""
    problems: list[str] = []
    contract: Contract | None = None
    result: Result | None = None
    try:
        contract = read_json(inside(folder, "contract.json"), Contract)
    except (BrokenRun, WrongUse) as error:
        problems.append(str(error))
    try:
        result = read_json(inside(folder, "result.json"), Result)
    except (BrokenRun, WrongUse) as error:
        problems.append(str(error))
    return Run(name=folder.name, folder=folder, contract=contract, result=result, problems=tuple(problems))


def read_setup(folder: Path) -> LoadedSetup:
    """Read `folder/setup.toml`, its card and its runs.

    Raises WrongUse when the setup or card cannot be used at all. A run that cannot be read leaves its part out and is
    named in `problems`, so that one broken run does not hide the rest of the page.
    """
    if folder.is_symlink():
        raise WrongUse(f"{folder.name} is refused: the setup folder is a symbolic link; put the folder itself there")
    setup = read_toml(inside(folder, "setup.toml"), Setup)
    card = read_toml(inside(folder, setup.card), Card)
    if not SAFE_SLUG.fullmatch(card.slug) or ".." in card.slug:
        raise WrongUse(
            f"the slug {card.slug!r} of {folder.name} is refused: use lower-case letters, digits, '-' and '.', at most 120"
        )
    problems: list[str] = []
    cache: dict[str, Run] = {}

    def load(relative: str) -> Run | None:
        try:
            path = inside(folder, relative)
            if not path.is_dir():
                raise WrongUse(f"the run {relative!r} is not a folder of this setup")
        except WrongUse as error:
            problems.append(str(error))
            return None
        if relative not in cache:
            cache[relative] = read_run(path)
            problems.extend(f"{path.name}: {text}" for text in cache[relative].problems)
        return cache[relative]

    counting: dict[str, Run] = {}
    for part, relative in sorted(setup.runs.items(), key=lambda item: item[0] not in GROUPS):
        if part not in PARTS and part not in GROUPS:
            problems.append(f"the part {part!r} is not known; known are {', '.join((*GROUPS, *PARTS))}")
            continue
        run = load(relative)
        if run is None or run.result is None:
            continue
        for name in GROUPS.get(part, (part,)):
            found = run.result.parts.get(name)
            if found is not None and found.state != "missing":
                counting[name] = run
    unused = [(entry, run) for entry in setup.unused if (run := load(entry.run)) is not None]
    earlier = [(entry, run) for entry in setup.earlier if (run := load(entry.run)) is not None]
    return LoadedSetup(
        slug=card.slug,
        folder=folder,
        card=card,
        setup=setup,
        counting=counting,
        unused=unused,
        earlier=earlier,
        problems=tuple(problems),
    )


def setup_folders(root: Path) -> Iterator[Path]:
    """Every folder in root that holds a `setup.toml`, sorted by name. Symbolic links are passed over."""
    if not root.is_dir():
        raise WrongUse(f"{root} is not a folder; give the folder that holds one folder per setup")
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and not folder.is_symlink() and (folder / "setup.toml").is_file():
            yield folder
