"""Runs programs that a model wrote, kept away from the machine: bubblewrap, else Landlock and seccomp, else not at all.

`open_sandbox()` finds the strongest cage this machine allows and proves it with 12 attacks; `Sandbox.run` runs one program on
one standard input. What each cage keeps out is written in docs/sandbox.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from homestretch.lab.sandbox import cages, process
from homestretch.lab.sandbox.outcome import Limits, Mode, Outcome, SandboxFailed, Status

__all__ = [
    "Limits",
    "Mode",
    "Outcome",
    "Sandbox",
    "SandboxFailed",
    "Status",
    "Verdict",
    "allow_unsafe",
    "open_sandbox",
    "proven",
    "run_program",
]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one attack of the self-test ended. held: the sandbox kept it in; evidence: what was seen."""

    attack: str
    held: bool
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A cage that works on this machine. `report` goes into the contract: cage, interpreter, kernel features, attacks."""

    mode: Mode
    python: cages.Interpreter
    applied: Mapping[str, Any] = field(default_factory=dict)
    attacks: tuple[Verdict, ...] = ()

    @property
    def report(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "python": self.python.version,
            "landlock_abi": self.applied.get("landlock_abi", 0),
            "seccomp": self.applied.get("seccomp", False),
            "attacks_held": f"{sum(verdict.held for verdict in self.attacks)} of {len(self.attacks)}",
            "attacks": {verdict.attack: "held" if verdict.held else verdict.evidence for verdict in self.attacks},
        }

    def run(self, code: str, stdin: bytes | str = b"", limits: Limits | None = None) -> Outcome:
        """Runs `code` as `__main__` with `stdin` on a real pipe. SandboxFailed when the cage, not the program, is at fault."""
        return self._run(code, stdin, limits or Limits())[0]

    def _run(self, code: str, stdin: bytes | str, limits: Limits) -> tuple[Outcome, dict[str, Any]]:
        with _folder() as folder:
            (folder / "program").mkdir(mode=0o755)
            (folder / "program" / "program.py").write_bytes(code.encode("utf-8", "replace"))
            scratch = folder / "scratch"
            scratch.mkdir(mode=0o700)
            uid = next(cages.UIDS) if os.getuid() == 0 and self.mode != "none" else None
            if uid is not None:
                os.chown(scratch, uid, uid)
            caged = self.mode == "bubblewrap"
            inside = "/program" if caged else str(folder / "program")
            read_end, write_end = os.pipe()
            told = cages.settings(
                self.mode, limits=limits, program=f"{inside}/program.py", scratch=str(scratch), python=self.python,
                uid=uid, status_fd=write_end,
            )  # fmt: skip
            inner = [self.python.path, "-I", "-B", "/sandbox/driver.py" if caged else str(cages.DRIVER), told]
            argv = cages.bubblewrap_argv(inner, folder=folder / "program", python=self.python, limits=limits) if caged else inner
            running = process.start(
                argv,
                environment=dict(cages.environment(str(scratch))) if not caged else {},
                folder=scratch,
                limits=limits,
                scratch=None if caged else scratch,
                report=(read_end, write_end),
            )
            return process.follow(running, stdin.encode("utf-8", "replace") if isinstance(stdin, str) else stdin)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="homestretch-sandbox-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def open_sandbox(*, unsafe: bool = False, only: Mode | None = None, prove: bool = True) -> Sandbox:
    """The strongest cage that this machine allows, proven by the attacks of `attacks.py` (about 3 s).

    only: this cage or none. unsafe: when there is no cage, run programs with the account's own rights; the report says so.
    Raises SandboxFailed when no cage works, or when one that was chosen lets an attack out.
    """
    reasons = []
    modes: tuple[Mode, ...] = (only,) if only else ("bubblewrap", "landlock")
    for mode in modes:
        if mode == "none":
            break
        try:
            tried = _probe(mode)
            return _prove(tried) if prove else tried
        except SandboxFailed as error:
            reasons.append(f"{mode}: {error}")
    if unsafe:
        return Sandbox(mode="none", python=cages.interpreter("none"))
    raise SandboxFailed(" ".join([*reasons, cages.HINT]))


def _probe(mode: Mode) -> Sandbox:
    if sys.platform != "linux":
        raise SandboxFailed("works on Linux only.")
    if mode == "bubblewrap" and shutil.which("bwrap") is None:
        raise SandboxFailed("`bwrap` is not installed.")
    candidate = Sandbox(mode=mode, python=cages.interpreter(mode))
    outcome, applied = candidate._run("print(6 * 7)", b"", Limits())
    if outcome.stdout != b"42\n":
        raise SandboxFailed(f"a trial program printed {outcome.stdout!r}: {outcome.stderr.decode(errors='replace')[-300:]}")
    return Sandbox(mode=mode, python=candidate.python, applied=applied)


def _prove(sandbox: Sandbox) -> Sandbox:
    from homestretch.lab.sandbox.attacks import attack_all

    verdicts = attack_all(sandbox)
    escaped = [f"{verdict.attack} ({verdict.evidence})" for verdict in verdicts if not verdict.held]
    if escaped:
        raise SandboxFailed(f"let out: {', '.join(escaped)}.")
    return Sandbox(mode=sandbox.mode, python=sandbox.python, applied=sandbox.applied, attacks=verdicts)


_consent = {"unsafe": False}


def allow_unsafe(allowed: bool) -> None:
    """A person's consent, given on the command line of this very process, never taken from a file."""
    _consent["unsafe"] = allowed


@lru_cache(maxsize=2)
def _opened(unsafe: bool) -> Sandbox:
    return open_sandbox(unsafe=unsafe)


def proven() -> Sandbox:
    """This process's sandbox, opened and proven at the first call."""
    return _opened(_consent["unsafe"])


def run_program(code: str, stdin: bytes | str = b"", limits: Limits | None = None) -> Outcome:
    """Runs one program in this process's sandbox, opened and proven at the first call."""
    return proven().run(code, stdin, limits)
