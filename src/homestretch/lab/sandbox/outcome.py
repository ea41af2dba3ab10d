"""What a sandboxed program may use and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from homestretch.lab.errors import LabError

MIB = 1024 * 1024
Mode = Literal["bubblewrap", "landlock", "none"]
Status = Literal["ok", "crashed", "timeout", "flood", "memory"]


class SandboxFailed(LabError):
    """The sandbox itself could not be set up; says nothing about the program."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """wall_s counts from the moment the program starts. memory_bytes bounds each process's address space and the resident sum.

    output_bytes: stdout kept before the program is stopped; error_bytes: stderr kept, the rest is dropped. processes counts
    threads too. scratch_bytes: what may be written into the working folder; file_bytes: into one file.
    """

    wall_s: float = 6.0
    memory_bytes: int = 4096 * MIB
    output_bytes: int = 16 * MIB
    error_bytes: int = 64 * 1024
    processes: int = 64
    files: int = 128
    file_bytes: int = 32 * MIB
    scratch_bytes: int = 64 * MIB


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """status: "ok" = ended by itself with exit code 0. exit_code is negative for a signal, None when the sandbox stopped it."""

    status: Status
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    wall_s: float

    @property
    def ok(self) -> bool:
        return self.status == "ok"
