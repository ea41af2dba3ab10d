"""The headers of a repository's weights without the weights: enough for a plan, a few hundred kilobytes instead of gigabytes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from huggingface_hub import get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from homestretch.engine.errors import SetupError
from homestretch.engine.store import hub
from homestretch.engine.store.kept import Pulled, Report, alone
from homestretch.engine.store.names import Repo

LARGEST = 100_000_000
"""Bytes of a safetensors header; the format's own limit."""


def peek_repo(repo: Repo, cache: Path, report: Report, *, endpoint: str | None = None) -> Pulled:
    """A folder that opens like the repository: its texts, and weight files of the listed sizes with nothing but their headers.

    A repository that is pulled already, or one of a single GGUF, comes from `pull_repo`. SetupError as there.
    """
    root = cache / repo.name.replace("/", "--")
    report(f"asking the hub about {repo.name}", 0, None)
    try:
        listing = hub.ask(repo, endpoint)
    except hub.UNREACHABLE:
        return hub.pull_repo(repo, cache, report, endpoint=endpoint)
    whole = hub.find(hub.folder_of(root, repo.name, listing.commit))
    if whole is not None:
        return whole
    if "config.json" not in listing.files:
        return hub.pull_repo(repo, cache, report, endpoint=endpoint)
    folder = root / f"{hub.folder_of(root, repo.name, listing.commit).name}.headers"
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder, report):
        wanted = ("config.json", "generation_config.json", hub.INDEX)
        hub.fetch(listing, [listing.files[name] for name in wanted if name in listing.files], folder, report, endpoint)
        for file in hub.weights(listing, folder):
            target = folder / file.name
            if not target.exists():
                report(f"reading the header of {file.name}", 0, None)
                try:
                    url = hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=endpoint)
                    _write_header(url, target, file.size)
                except hub.UNREACHABLE as error:
                    raise SetupError(f"{file.name}: its header could not be read ({hub.short(error)})") from None
    return Pulled(path=folder, source=f"hub:{listing.repo}@{listing.commit}, headers", fetched=True)


def _write_header(url: str, target: Path, size: int) -> None:
    """`target` of `size` bytes, of which the header is real and the rest a hole."""
    (length,) = struct.unpack("<Q", _first(url, 8).ljust(8, b"\0"))
    if length > min(size, LARGEST):
        raise SetupError(f"{target.name} says that its header has {length} bytes, of {size} in all: it is no safetensors file")
    partial = target.with_name(f"{target.name}.partial")
    with partial.open("wb") as out:
        out.write(_first(url, 8 + length))
        out.truncate(size)
    os.replace(partial, target)


def _first(url: str, count: int) -> bytes:
    """The first bytes of a file; a server that sends all of it is stopped there."""
    headers = dict(build_hf_headers()) | {"Accept-Encoding": "identity", "Range": f"bytes=0-{count - 1}"}
    found = bytearray()
    with get_session().stream("GET", url, headers=headers, timeout=30) as response:
        hf_raise_for_status(response)
        for part in response.iter_raw():
            found += part
            if len(found) >= count:
                break
    return bytes(found[:count])
