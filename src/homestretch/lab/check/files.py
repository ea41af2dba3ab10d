"""Hashes: every file against the manifest, and published files against the hashes they were published with."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.raw import Raw, Unreadable

OWN = {"manifest.json", "published.json", "check.json", "manifest.json.sig", "index.html"}


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def names(folder: Path) -> list[str]:
    """Every file below the folder but the pages of a site's raw tree; links are not followed."""
    out = []
    for place, folders, files in os.walk(folder, followlinks=False):
        folders.sort()
        base = Path(place)
        out += [(base / name).relative_to(folder).as_posix() for name in sorted(files)]
    found = set(out)
    return [
        name
        for name in out
        if not (name.endswith(".html") and (name.removesuffix(".html") in found or name.endswith("index.html")))
    ]


def published(raw: Raw, ledger: Ledger) -> dict[str, dict[str, Any]] | None:
    """Entries of `published.json` by name, None for a run that was not published; fills `raw.held`."""
    try:
        value = raw.json("published.json")
    except Unreadable as error:
        ledger.add("published.json", "differs", place="published.json", note=str(error))
        return None
    if value is None:
        return None
    entries = {str(entry.get("name")): entry for entry in value.get("files", []) if isinstance(entry, dict)}
    raw.held.update({name: str(entry.get("reason", "")) for name, entry in entries.items() if entry.get("state") == "held"})
    return entries


def recount(raw: Raw, ledger: Ledger) -> None:
    """Compare every file with `manifest.json`, and with `published.json` where there is one."""
    entries = published(raw, ledger)
    try:
        manifest = raw.json("manifest.json")
    except Unreadable as error:
        ledger.add("manifest.json", "differs", place="manifest.json", note=str(error))
        return
    if manifest is None:
        if entries is not None and "manifest.json" in raw.held:
            ledger.skip("manifest.json", "held back")
        else:
            ledger.add("manifest.json", "differs", place="manifest.json", note="the manifest is missing")
        manifest = {}
    listed = manifest.get("files") if isinstance(manifest.get("files"), dict) else {}
    present = set(names(raw.folder)) - OWN
    for name, told in sorted((listed or {}).items()):
        entry = (entries or {}).get(name)
        if name not in present:
            if entry is not None and entry.get("state") == "held":
                same = entry.get("sha256") == told.get("sha256")
                if same:
                    ledger.skip(f"file {name}", f"held back: {entry.get('reason', '')}", place=name)
                else:
                    ledger.add(f"file {name}", "differs", place="published.json", note="its original hash is not the manifest's")
            else:
                ledger.add(f"file {name}", "differs", place=name, note="the manifest names it, it is not there")
            continue
        found = digest(raw.folder / name) if raw.path(name) else "a symbolic link"
        if entry is not None:
            original = entry.get("sha256") == told.get("sha256")
            here = entry.get("published_sha256") == found
            note = (
                ""
                if original and here
                else "its original hash is not the manifest's"
                if here
                else "it is not the file that was published"
            )
            ledger.holds(f"file {name}", original and here, place=name, note=note)
        else:
            ledger.holds(
                f"file {name}",
                told.get("sha256") == found and told.get("bytes") == (raw.folder / name).lstat().st_size,
                place=name,
                note="its bytes are not those of the manifest",
            )
    if manifest:
        for name in sorted(present - set(listed or {})):
            ledger.add(f"file {name}", "differs", place=name, note="it is there, the manifest does not name it")
