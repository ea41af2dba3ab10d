"""Compares weight files with the hub's public listing of their repository: sizes and sha256, where it can be reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from homestretch.lab.client import Target, try_json

HUB = Target(url="https://huggingface.co/api")


def listing(repository: str, revision: str) -> dict[str, str] | None:
    """sha256 by file name of a repository's large files; None when the hub cannot be asked."""
    path = f"/models/{quote(repository)}/tree/{quote(revision or 'main', safe='')}?recursive=1"
    entries: Any = try_json(HUB, path, timeout_s=15.0)
    if not isinstance(entries, list):
        return None
    found = {}
    for entry in entries:
        large = entry.get("lfs") if isinstance(entry, dict) else None
        if isinstance(large, dict) and isinstance(large.get("oid"), str):
            found[str(entry.get("path", "")).rsplit("/", 1)[-1]] = large["oid"]
    return found


def verdict(hashes: Mapping[str, str], repository: str, revision: str) -> str:
    """What the comparison of the run's weight files with the listing says, for the contract."""
    mine = {name.removeprefix("weights/"): digest for name, digest in hashes.items() if name.startswith("weights/")}
    if not repository or not mine:
        return "not compared: no weight files here, or no repository in the card"
    known = listing(repository, revision)
    if known is None:
        return f"not compared: the hub's listing of {repository} could not be read"
    shared = sorted(mine.keys() & known.keys())
    if not shared:
        return f"none of these files is in the hub's listing of {repository}"
    differing = [name for name in shared if mine[name] != known[name]]
    if differing:
        return f"differ from the hub's listing of {repository}: {', '.join(differing)}"
    return f"{len(shared)} of {len(mine)} files equal the hub's listing of {repository}"
