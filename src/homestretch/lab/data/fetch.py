"""Brings a question set's file here, from the hub, a folder, or this package, and says exactly which bytes it is."""

from __future__ import annotations

import fnmatch
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from homestretch.lab.errors import LabError, WrongUse

HOUSE = "house"
HOUSE_FILES = {"mmlupro": "letters.jsonl", "gpqa": "letters.jsonl", "ifeval": "instructions.jsonl", "lcb": "code.jsonl"}
TYPES = (".parquet", ".jsonl", ".csv", ".json")
Say = Callable[[str], None]


class Pin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a public set lies. file: a name or pattern that fits one file; revision, sha256: "" while none has been verified."""

    repository: str
    file: str
    revision: str = ""
    sha256: str = ""
    rows: int = 0
    licence: str = ""
    gated: bool = False
    mirror: str = ""


@dataclass(frozen=True, kw_only=True)
class SetFile:
    """A file that is here. name: "house" or the repository; file: its path there; origin: where the bytes came from, in words."""

    name: str
    file: str
    path: Path
    revision: str
    sha256: str
    origin: str


@cache
def pins() -> dict[str, Pin]:
    """All pins by name of the set."""
    return msgspec.toml.decode((resources.files(__package__) / "pins.toml").read_bytes(), type=dict[str, Pin])


def bring(
    set_name: str, where: Path | None, *, endpoint: str | None = None, cache_dir: Path | None = None, say: Say | None = None
) -> SetFile:
    """The file of a set. where: None = the hub, `house` = the set written for this project, else a folder that holds it."""
    if where is not None and str(where) == HOUSE and not where.is_dir():
        return _house(set_name)
    pin = pins()[set_name]
    if where is not None:
        found = _from_folder(set_name, pin, where)
    else:
        found = _from_hub(set_name, pin, endpoint, cache_dir, say or (lambda text: None))
    return found


def again(name: str, file: str, revision: str) -> SetFile:
    """The very file of an earlier download: from the hub's local cache if it is there, without asking which revision is newest."""
    from huggingface_hub import hf_hub_download

    failures: tuple[type[Exception], ...] = (OSError, ValueError, *_transport_errors())
    try:
        path = Path(hf_hub_download(name, file, repo_type="dataset", revision=revision))
    except failures as error:
        raise LabError(f"{file} of {name} at revision {revision[:8]} cannot be fetched: {str(error).splitlines()[0]}") from error
    return SetFile(name=name, file=file, path=path, revision=revision, sha256=_digest(path), origin="hub")


def _house(set_name: str) -> SetFile:
    path = Path(str(resources.files(__package__) / "house" / HOUSE_FILES[set_name]))
    return SetFile(
        name=HOUSE, file=path.name, path=path, revision="", sha256=_digest(path), origin="written for homestretch, in its package"
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(set_name: str, pin: Pin, found: SetFile) -> SetFile:
    if pin.sha256 and found.sha256 != pin.sha256:
        raise LabError(
            f"{found.path}: the set {set_name} is pinned to sha256 {pin.sha256[:16]}…, this file has {found.sha256[:16]}…; "
            "it was changed or cut short: delete it and fetch it again, or name the folder of the pinned file with --data"
        )
    return found


def _from_folder(set_name: str, pin: Pin, folder: Path) -> SetFile:
    """The file in FOLDER/ORG/REPOSITORY (as on the hub) or, alone of its kind, in FOLDER/SET; a gated set's mirror counts too."""
    if not folder.is_dir():
        raise WrongUse(
            f"--data {folder} is no folder; give one that holds the sets, or the word house for the sets written for homestretch"
        )
    for name, candidate in [(set_name, pin), *([(pin.mirror, pins()[pin.mirror])] if pin.mirror else [])]:
        root = folder / candidate.repository
        files = [path for path in sorted(root.rglob("*")) if fnmatch.fnmatch(path.relative_to(root).as_posix(), candidate.file)]
        if not files:
            files = [path for path in sorted((folder / name).glob("*")) if path.suffix in TYPES]
        if len(files) > 1:
            names = ", ".join(path.name for path in files)
            raise WrongUse(f"--data {folder}: {len(files)} files could be the set {name}: {names}; keep one")
        if files:
            found = SetFile(
                name=candidate.repository,
                file=files[0].name,
                path=files[0],
                revision="",
                sha256=_digest(files[0]),
                origin=f"folder, file {files[0].name}",
            )
            return _checked(name, candidate, found)
    raise WrongUse(
        f"--data {folder} holds no set {set_name}: put the file {pin.file} of {pin.repository} into {folder / pin.repository} "
        f"or into {folder / set_name}"
    )


def _from_hub(set_name: str, pin: Pin, endpoint: str | None, cache_dir: Path | None, say: Say) -> SetFile:
    try:
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
    except ImportError:
        raise WrongUse("public question sets need huggingface_hub; install it with `pip install homestretch[quality]`") from None
    failures: tuple[type[Exception], ...] = (HfHubHTTPError, OSError, *_transport_errors())
    help_text = f"Give --data DIR with {pin.file} of {pin.repository}, or --data house for the sets written for homestretch."
    try:
        info = HfApi(endpoint=endpoint).dataset_info(pin.repository, revision=pin.revision or None)
        names = fnmatch.filter([sibling.rfilename for sibling in info.siblings or []], pin.file)
        if len(names) != 1:
            raise LabError(
                f"{pin.repository} has {len(names)} files like {pin.file} at revision {info.sha}; expected one. {help_text}"
            )
        say(f"fetching {names[0]} of {pin.repository} at {str(info.sha)[:8]}")
        path = hf_hub_download(
            pin.repository, names[0], repo_type="dataset", revision=info.sha, endpoint=endpoint, cache_dir=cache_dir
        )
    except (GatedRepoError, RepositoryNotFoundError) as error:
        if not pin.mirror:
            raise LabError(f"{pin.repository} cannot be read: {str(error).splitlines()[0]}. {help_text}") from error
        other = pins()[pin.mirror]
        say(
            f"{pin.repository} is gated. To read the original, accept its terms at "
            f"https://huggingface.co/datasets/{pin.repository}, make a token at https://huggingface.co/settings/tokens "
            "and log in with `hf auth login`. "
            f"Now the open mirror {other.repository} is taken."
        )
        mirrored = _from_hub(pin.mirror, other, endpoint, cache_dir, say)
        return SetFile(
            name=mirrored.name, file=mirrored.file, path=mirrored.path, revision=mirrored.revision, sha256=mirrored.sha256,
            origin=f"hub, open mirror of {pin.repository}, which is gated",
        )  # fmt: skip
    except failures as error:
        raise LabError(f"{pin.repository} cannot be fetched: {str(error).splitlines()[0]}. {help_text}") from error
    found = SetFile(
        name=pin.repository, file=names[0], path=Path(path), revision=str(info.sha), sha256=_digest(Path(path)), origin="hub"
    )
    return _checked(set_name, pin, found)


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises when nothing answers: its HTTP package's own errors, whichever package its version uses."""
    loaded = (sys.modules.get(name) for name in ("httpx", "httpx2"))
    return tuple(module.HTTPError for module in loaded if module is not None)
