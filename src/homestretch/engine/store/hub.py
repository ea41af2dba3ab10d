"""Pull a repository from the hub: the files a checkpoint needs, checked against the hub's listing, resumed where they broke."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec
from huggingface_hub import HfApi, get_session, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from homestretch.engine.errors import SetupError
from homestretch.engine.store.kept import Pulled, Record, Report, alone, sha256_of
from homestretch.engine.store.names import Repo

TRIES = 5
"""Attempts in a row that bring no new byte before a download is given up."""

HOPELESS = (400, 401, 403, 404, 410)
"""Answers that trying again will not change."""

TEXT_FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
    }
)
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
COMMIT = re.compile(r"[0-9a-f]{40}")
HEAD = re.compile(r"mtp-[\w.-]*\.safetensors")
MANIFEST = "pulled.json"
# The client library's own base error: httpx or httpx2, as the installed hub library has it.
TransportError: type[Exception] = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
UNREACHABLE = (TransportError, OfflineModeIsEnabled, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A file as the hub lists it: its size, and the SHA-256 of a large file or the git hash of a small one."""

    name: str
    size: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of one commit."""

    repo: str
    commit: str
    files: Mapping[str, Listed]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was pulled and checked: written last, so a folder that has it is whole."""

    repo: str
    commit: str
    entry: str
    files: dict[str, Record]


def pull_repo(repo: Repo, cache: Path, report: Report, *, endpoint: str | None = None) -> Pulled:
    """The checkpoint of a repository, in a folder of its own commit below `cache`; a repository of one GGUF gives that file.

    Without a network, what was pulled before under the same revision is used, and that is said. endpoint: the hub's address;
    None is the hub library's own. SetupError: unknown, gated or unreachable, nothing to serve, no room, damaged on the way.
    """
    root = cache / repo.name.replace("/", "--")
    if repo.revision and COMMIT.fullmatch(repo.revision):
        here = find(folder_of(root, repo.name, repo.revision))
        if here is not None:
            return here
    report(f"asking the hub about {repo.name}", 0, None)
    try:
        listing = ask(repo, endpoint)
    except UNREACHABLE as error:
        here = find(folder_of(root, repo.name, _read_refs(root).get(repo.revision or "", "-")))
        if here is None:
            raise SetupError(f"{repo.name}: the hub cannot be reached ({short(error)}), and nothing was pulled before") from None
        report(f"the hub cannot be reached; using what was pulled before, {here.source}", 0, None)
        return here
    with alone(root, report):
        folder = folder_of(root, repo.name, listing.commit)
        here = find(folder) or _fetch_all(listing, folder, report, endpoint)
        _write_json(root / "refs.json", _read_refs(root) | {repo.revision or "": listing.commit})
    return here


def folder_of(root: Path, repo: str, commit: str) -> Path:
    """One folder a commit, named so that a person knows it."""
    return root / f"{repo.rpartition('/')[2]}@{commit[:12]}"


def ask(repo: Repo, endpoint: str | None) -> Listing:
    """The hub's listing of a revision. SetupError: unknown or gated, or a listing with paths that lead out of a folder."""
    where = repo.name + (f"@{repo.revision}" if repo.revision else "")
    try:
        info = HfApi(endpoint=endpoint).model_info(repo.name, revision=repo.revision, files_metadata=True, timeout=30)
    except GatedRepoError:
        raise SetupError(f"{where} is gated: accept its terms on the hub, then `hf auth login`") from None
    except RepositoryNotFoundError:
        raise SetupError(f"{where} is not on the hub, or private: check the name, or `hf auth login`") from None
    except RevisionNotFoundError:
        raise SetupError(f"{where}: the hub has no such revision") from None
    except HFValidationError as error:
        raise SetupError(f"{where} is no name of a repository ({short(error)})") from None
    commit = info.sha or ""
    if not COMMIT.fullmatch(commit):
        raise SetupError(f"{where}: the hub names the commit {commit!r}; 40 hexadecimal digits are wanted")
    files: dict[str, Listed] = {}
    for one in info.siblings or ():
        name = one.rfilename
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
            raise SetupError(f"{where}: the hub lists the file {name!r}, which leads out of its folder; nothing was pulled")
        if one.size is not None:
            digest = one.lfs.sha256 if one.lfs else None
            files[name] = Listed(name=name, size=one.size, sha256=digest, git_sha1=None if digest else one.blob_id)
    return Listing(repo=repo.name, commit=commit, files=files)


def _fetch_all(listing: Listing, folder: Path, report: Report, endpoint: str | None) -> Pulled:
    """Texts first, because the index among them names the shards; then weights; then the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    entry = ""
    if "config.json" in listing.files and any(name.endswith(".safetensors") for name in listing.files):
        texts = [listing.files[name] for name in sorted(TEXT_FILES & set(listing.files))]
        records = fetch(listing, texts, folder, report, endpoint)
        shards = weights(listing, folder)
    else:
        found = [one for name, one in listing.files.items() if name.endswith(".gguf") and "/" not in name]
        if len(found) != 1:
            raise SetupError(
                f"{listing.repo} holds {len(found)} .gguf files and no config.json with safetensors; "
                "a repository with one checkpoint is wanted. Download one file and give its path"
            )
        entry, records, shards = found[0].name, {}, found
    records |= fetch(listing, shards, folder, report, endpoint)
    manifest = Manifest(repo=listing.repo, commit=listing.commit, entry=entry, files=records)
    _write(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return _pulled(manifest, folder, fetched=True)


def weights(listing: Listing, folder: Path) -> list[Listed]:
    """The weight files that the opened checkpoint will ask for."""
    if INDEX in listing.files:
        try:
            names = {str(name) for name in json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SetupError(f"{listing.repo}: {INDEX} has no weight_map ({short(error)})") from None
    else:
        names = {SINGLE}
    strays = sorted(name for name in names if "/" in name or name not in listing.files)
    if strays:
        raise SetupError(f"{listing.repo}: the weight file {strays[0]!r} is not among the files that the hub lists")
    return [listing.files[name] for name in sorted(names | {name for name in listing.files if HEAD.fullmatch(name)})]


def fetch(listing: Listing, files: Iterable[Listed], folder: Path, report: Report, endpoint: str | None) -> dict[str, Record]:
    """Files of a listing into `folder`, checked; those that are there already are checked too. Returns what each one is."""
    files = list(files)
    missing = sum(file.size for file in files if not (folder / file.name).exists())
    missing -= sum(_size(folder / f"{file.name}.partial") for file in files)
    room = shutil.disk_usage(folder).free
    if missing > room:
        raise SetupError(f"{folder} has {room / 1e9:.1f} GB free; {listing.repo} needs {missing / 1e9:.1f} GB more")
    source = f"hub:{listing.repo}@{listing.commit}"
    made = {}
    for file in files:
        target = folder / file.name
        digest = _checked(target, file, report) if target.exists() else None
        if digest is None:
            partial = target.with_name(f"{file.name}.partial")
            url = hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=endpoint)
            _download(url, partial, file, report)
            digest = _checked(partial, file, report)
            if digest is None:
                raise SetupError(
                    f"{listing.repo}: {file.name} came with another hash than the hub lists; it was deleted, pull again"
                )
            os.replace(partial, target)
        stat = target.stat()
        made[file.name] = Record(source=source, sha256=digest, bytes=stat.st_size, mtime_ns=stat.st_mtime_ns)
    return made


def _download(url: str, partial: Path, file: Listed, report: Report) -> None:
    """Bring `partial` to the file's size, from where it stands; gives up after TRIES attempts without a new byte."""
    failures = 0
    while True:
        have = _size(partial)
        if have > file.size:
            partial.unlink()
            continue
        if have == file.size and partial.exists():
            return
        try:
            _append(url, partial, have, file, report)
            fault = f"it ended after {_size(partial)} of {file.size} bytes"
        except UNREACHABLE as error:
            fault = short(error)
            if isinstance(error, HfHubHTTPError) and error.response.status_code in HOPELESS:
                raise SetupError(f"{file.name} could not be downloaded ({fault})") from None
        if _size(partial) == file.size and partial.exists():
            return
        failures = 0 if _size(partial) > have else failures + 1
        if failures >= TRIES:
            raise SetupError(f"{file.name} could not be downloaded ({fault}); pull again to go on from byte {_size(partial)}")
        report(f"download of {file.name} broke off ({fault}); going on", _size(partial), file.size)
        time.sleep(min(8.0, 0.25 * 2**failures))


def _append(url: str, partial: Path, have: int, file: Listed, report: Report) -> None:
    """One request for the bytes from `have` on; a server that sends the whole file again starts it anew."""
    headers = dict(build_hf_headers()) | {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with get_session().stream("GET", url, headers=headers, timeout=30) as response:
        hf_raise_for_status(response)
        resumed = have > 0 and response.status_code == 206
        done = have if resumed else 0
        with partial.open("ab" if resumed else "wb") as out:
            for part in response.iter_raw():  # as it comes: nothing that arrived is lost when the line breaks
                if done + len(part) > file.size:
                    raise OSError(f"the server sends more than the {file.size} bytes that it lists")
                out.write(part)
                done += len(part)
                report(f"downloading {file.name}", done, file.size)


def _checked(path: Path, file: Listed, report: Report) -> str | None:
    """The SHA-256 of a file that is what the hub lists; one that is not is deleted, and None comes back."""
    sha256 = sha256_of(path, report)
    right = _size(path) == file.size and file.sha256 in (None, sha256)
    if right and file.git_sha1:
        # Only small files are listed by git's own hash: SHA-1 over a head with the size, and the content.
        git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
        git.update(path.read_bytes())
        right = git.hexdigest() == file.git_sha1
    if right:
        return sha256
    path.unlink()
    return None


def find(folder: Path) -> Pulled | None:
    """A whole folder whose files are still as they were checked."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        for name, record in manifest.files.items():
            stat = (folder / name).stat()
            if stat.st_size != record.bytes:
                return None
            if stat.st_mtime_ns != record.mtime_ns and sha256_of(folder / name) != record.sha256:
                return None
    except (OSError, msgspec.MsgspecError):
        return None
    return _pulled(manifest, folder, fetched=False)


def _pulled(manifest: Manifest, folder: Path, *, fetched: bool) -> Pulled:
    return Pulled(
        path=folder / manifest.entry if manifest.entry else folder,
        source=f"hub:{manifest.repo}@{manifest.commit}",
        fetched=fetched,
        sha256=manifest.files[manifest.entry].sha256 if manifest.entry else None,
        bytes=sum(record.bytes for record in manifest.files.values()),
    )


def _read_refs(root: Path) -> dict[str, str]:
    """The commit that each revision was when it was pulled last; "" is the default branch."""
    try:
        return msgspec.json.decode((root / "refs.json").read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def _write_json(path: Path, value: Mapping[str, str]) -> None:
    _write(path, msgspec.json.format(msgspec.json.encode(value)) + b"\n")


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, path)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
