"""Builds the site from setup folders: what changed is made anew, one broken setup never stops the others."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from homestretch import __version__
from homestretch.lab import check
from homestretch.lab.errors import LabError
from homestretch.lab.publish.filter import Filter
from homestretch.lab.setups import LoadedSetup, read_setup, setup_folders
from homestretch.lab.site import listpages, racepage, setuppage
from homestretch.lab.site.dress import ASSETS, environment, safe
from homestretch.lab.site.race import Standing
from homestretch.lab.site.rank import Line, line
from homestretch.lab.site.rawpages import RawFile
from homestretch.lab.site.setuppage import Place
from homestretch.lab.site.verdict import Verdict, verdict

STATE = ".build.json"
Say = Callable[[str], None]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a build remembers of a setup folder: its fingerprint, its line, and the standings its page was printed with."""

    fingerprint: str
    line: Line
    standings: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """`.build.json` of a site."""

    code: str
    setups: dict[str, Kept]
    lists: str = ""


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a build did. refused: folder -> why it has no page."""

    out: Path
    index: Path
    pages: dict[str, Path]
    rebuilt: list[str] = field(default_factory=list)
    unchanged: int = 0
    refused: dict[str, str] = field(default_factory=dict)


def build(setups: Path, out: Path, *, what: Filter | None = None, base: str = "", say: Say | None = None) -> Built:
    """Build the static site of every setup folder in `setups` into `out`.

    setups: a folder that holds one folder per setup, each with `setup.toml`, its card and its runs. out: made if absent; only
    files of the site in it are replaced. what: the filter every byte passes, this machine's names if None. base: the address
    the site will stand at, for the feed. say: told what is being done, once a setup. Runs are recounted by the check as they
    are read. Nothing in a setup folder can make the build fail: a setup that cannot be read is named in `refused`.

    Raises WrongUse when `setups` is no folder. Returns the paths of the home page and of each setup page.
    """
    what = what or Filter.of_this_machine()
    tell = say or (lambda text: None)
    signers = setups.parent / "allowed_signers"
    place = Place(
        out=out,
        stamp=asset_stamp(),
        env=environment(what),
        what=what,
        signers=signers if signers.is_file() else None,
    )
    code = code_stamp(what) + (hashlib.sha256(signers.read_bytes()).hexdigest() if place.signers else "")
    old = read_state(out, code)
    refused: dict[str, str] = {}
    kept: dict[str, Kept] = {}
    loaded: dict[str, Read] = {}
    changed: list[str] = []
    out.mkdir(parents=True, exist_ok=True)
    folders = list(setup_folders(setups))
    slugs: dict[str, str] = {}
    for number, folder in enumerate(folders, 1):
        mark = fingerprint(folder)
        before = old.setups.get(mark_of(folder))
        if before is not None and before.fingerprint == mark and (out / "setup" / before.line.slug / "index.html").is_file():
            kept[folder.name] = before
            slugs[before.line.slug] = folder.name
            continue
        tell(f"setup {number} of {len(folders)}: {what.scrub(folder.name)}")
        try:
            setup = read_setup(folder)
            if what.scrub(setup.slug) != setup.slug:
                raise LabError("its slug holds a private name; give the card another one, or allow the word")
            if setup.slug in slugs:
                raise LabError(f"its slug {setup.slug!r} is taken by {slugs[setup.slug]}; give each setup its own")
            read = first_pass(setup, place)
        except Exception as error:  # noqa: BLE001 - whatever a folder holds, the other setups are built
            refused[what.scrub(folder.name)] = what.scrub(
                str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
            )[:400]
            continue
        slugs[setup.slug] = folder.name
        kept[folder.name] = Kept(fingerprint=mark, line=read.line, standings="")
        loaded[folder.name] = read
        changed.append(folder.name)
    races = listpages.standings_of([item.line for item in kept.values()])
    for folder in folders:
        if folder.name not in kept:
            continue
        mine = kept[folder.name]
        rivals = rivals_mark(mine.line, races)
        if mine.standings == rivals and folder.name not in loaded:
            continue
        try:
            read = loaded[folder.name] if folder.name in loaded else first_pass(read_setup(folder), place)
            second_pass(read, place, races)
            kept[folder.name] = Kept(fingerprint=mine.fingerprint, line=mine.line, standings=rivals)
        except Exception as error:  # noqa: BLE001 - as above
            refused[what.scrub(folder.name)] = what.scrub(f"{type(error).__name__}: {error}")[:400]
            shutil.rmtree(out / "setup" / mine.line.slug, ignore_errors=True)
            del kept[folder.name]
    lines = [kept[name].line for name in sorted(kept)]
    gone = {item.line.slug for item in old.setups.values()} - {item.slug for item in lines}
    for slug in gone:
        for part in ("setup", "raw/v2", "history", "race"):
            shutil.rmtree(out / part / slug, ignore_errors=True)
    lists = hashlib.sha256(msgspec.json.encode([lines, sorted(refused.items()), base])).hexdigest()
    if lists != old.lists or not (out / "index.html").is_file():
        write_lists(place, lines, refused, base)
    write_state(out, State(code=code, setups={mark_of(setups / name): item for name, item in kept.items()}, lists=lists))
    pages = {item.slug: out / "setup" / item.slug / "index.html" for item in lines}
    return Built(
        out=out, index=out / "index.html", pages=pages, rebuilt=changed, unchanged=len(kept) - len(changed), refused=refused
    )


@dataclass(frozen=True, kw_only=True)
class Read:
    """A setup with what its page needs: its raw files as published, the recount, and its line for the lists."""

    setup: LoadedSetup
    raw: dict[str, dict[str, RawFile]]
    reports: list[check.Report]
    found: Verdict
    line: Line


def first_pass(setup: LoadedSetup, place: Place) -> Read:
    """Filter the raw files, recount the runs, and make the setup's line."""
    raw = setuppage.raw_tree(setup, place)
    reports = [check.check_run(run.folder) for run in setup.runs() if run.name in {item.name for item in setup.counting.values()}]
    found = verdict(reports)
    for report in reports:
        target = place.out / "raw" / "v2" / setup.slug / safe(report.run, place.what) / "check.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(place.what.scrub(msgspec.json.format(msgspec.json.encode(report), indent=1).decode()), encoding="utf-8")
    return Read(setup=setup, raw=raw, reports=reports, found=found, line=filtered(line(setup, found.state), place))


def filtered(mine: Line, place: Place) -> Line:
    """The line with every word through the filter: it is printed in charts and kept in `.build.json`, which is public too."""
    clean = msgspec.to_builtins(mine)
    for name in ("title", "model", "engine", "machine", "author"):
        clean[name] = place.what.scrub(clean[name])
    for name in ("values", "units"):
        clean[name] = {place.what.scrub(key): value for key, value in clean.get(name, {}).items()}
    if clean.get("race"):
        clean["race"]["title"] = place.what.scrub(clean["race"]["title"])
    return msgspec.convert(clean, Line)


def second_pass(read: Read, place: Place, races: list[Standing]) -> None:
    """Render the pages that need to know the other setups' races."""
    signed = check.signature_state([run.folder for run in read.setup.runs()], place.signers)
    page = racepage.render(read.setup, read.raw, races, place)
    setuppage.render(read.setup, read.raw, races, read.found, signed, place, f"{setuppage.ROOT}{page}" if page else "")
    setuppage.history(read.setup, place)


def write_lists(place: Place, lines: list[Line], refused: dict[str, str], base: str) -> None:
    """Every page over many setups, and the assets."""
    for old in ("class", "compare", "chart", "data"):
        shutil.rmtree(place.out / old, ignore_errors=True)
    assets = place.out / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    for path in sorted(ASSETS.iterdir()):
        if path.is_file():
            (assets / path.name).write_bytes(path.read_bytes())
    listpages.home(place, lines, [f"{name}: {why}" for name, why in sorted(refused.items())])
    listpages.classes(place, lines)
    listpages.compare(place, lines)
    listpages.chart(place, lines)
    listpages.method(place)
    listpages.feed(place, lines, base)
    listpages.data(place, lines)


def rivals_mark(mine: Line, races: Iterable[Standing]) -> str:
    """What the rank on a setup's page depends on."""
    seasons = {race["season"] for race in (mine.race, *mine.past_races) if race}
    if not seasons:
        return "-"
    same = [item for item in races if item.gb == mine.gb and item.season in seasons]
    return hashlib.sha256(repr(sorted(same, key=lambda item: (item.slug, item.page))).encode()).hexdigest()


def fingerprint(folder: Path) -> str:
    """Names, sizes and change times of everything in a setup folder; links are not followed."""
    digest = hashlib.sha256()
    stack = [folder]
    seen = 0
    while stack and seen < 20000:
        place = stack.pop()
        with os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                seen += 1
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    stack.append(Path(entry.path))
                else:
                    digest.update(
                        f"{entry.path}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_mode}\n".encode("utf-8", "surrogateescape")
                    )
    return digest.hexdigest()


def mark_of(folder: Path) -> str:
    """A setup folder's name as the state keeps it: a hash, because the name itself may be private."""
    return hashlib.sha256(folder.name.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def asset_stamp() -> str:
    """Changes when a style or script changes, so that browsers fetch it anew."""
    digest = hashlib.sha256()
    for path in sorted(ASSETS.iterdir()):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def code_stamp(what: Filter) -> str:
    """Changes when the code that makes pages, or the filter's lists, change: then everything is built anew."""
    digest = hashlib.sha256(f"{__version__}{what.names}{sorted(what.allowed)}".encode())
    lab = Path(__file__).parent.parent
    for folder in ("site", "check", "publish", "game"):
        for path in sorted((lab / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.read_bytes())
    digest.update((lab / "setups.py").read_bytes() + (lab / "types.py").read_bytes())
    return digest.hexdigest()


def read_state(out: Path, code: str) -> State:
    """What the last build remembers; nothing when there was none, or when code has changed since."""
    try:
        state = msgspec.json.decode((out / STATE).read_bytes(), type=State)
    except (OSError, msgspec.MsgspecError):
        return State(code=code, setups={})
    return state if state.code == code else State(code=code, setups={})


def write_state(out: Path, state: State) -> None:
    part = out / (STATE + ".part")
    part.write_bytes(msgspec.json.encode(state))
    part.replace(out / STATE)
