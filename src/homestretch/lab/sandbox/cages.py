"""The cages there are: how each starts the driver, and which one this machine allows."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from homestretch.lab.sandbox import driver
from homestretch.lab.sandbox.outcome import Limits, Mode, SandboxFailed

DRIVER = Path(driver.__file__).resolve()
SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
TOP_FOLDERS = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
DEVICES = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]
# As root every program gets a user number of its own, so that RLIMIT_NPROC (which never binds root) counts it alone.
UIDS = itertools.cycle(range(61184, 65519))
HINT = (
    "Programs that a model wrote are not run without isolation. Install bubblewrap (`apt install bubblewrap`), or use Linux 5.13 "
    "or newer with Landlock. `--unsafe-code-execution` runs them with this account's rights: they can read and delete your files."
)


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python that runs the programs and the folders it needs."""

    path: str
    prefix: str
    version: str


def interpreter(mode: Mode) -> Interpreter:
    """The lab's own base interpreter; under Landlock as root another account must be able to reach it, else the system's."""
    own = Interpreter(
        path=os.path.realpath(sys.executable),
        prefix=os.path.realpath(sys.base_prefix),
        version=".".join(map(str, sys.version_info[:3])),
    )
    if mode != "landlock" or os.getuid() != 0 or (_open_to_all(own.path) and _open_to_all(own.prefix)):
        return own
    for path in SYSTEM_PYTHONS:
        if Path(path).exists() and _open_to_all(os.path.realpath(path)):
            asked = [path, "-I", "-c", "import sys; print(sys.base_prefix, '%d.%d.%d' % sys.version_info[:3])"]
            prefix, version = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout.split()
            return Interpreter(path=os.path.realpath(path), prefix=prefix, version=version)
    raise SandboxFailed(f"{own.path} cannot be reached by an account without rights, and there is no system Python. {HINT}")


def _open_to_all(path: str) -> bool:
    return all(os.stat(part).st_mode & 0o001 for part in [path, *map(str, Path(path).parents)])


def settings(
    mode: Mode,
    *,
    limits: Limits,
    program: str,
    scratch: str,
    python: Interpreter,
    uid: int | None,
    status_fd: int,
) -> str:
    """What the driver is told, as JSON."""
    return json.dumps(
        {
            "mode": mode,
            "uid": uid,
            "parent": os.getpid(),
            "program": program,
            "status_fd": status_fd,
            "readable": sorted(
                {"/usr", *TOP_FOLDERS, "/etc/ld.so.cache", "/etc/localtime", python.prefix, str(Path(program).parent)}
            ),
            "writable": [scratch],
            "devices": DEVICES,
            "limits": {
                "AS": limits.memory_bytes,
                "CPU": int(limits.wall_s) + 2,
                "FSIZE": limits.file_bytes,
                "NOFILE": limits.files,
                "CORE": 0,
                **({"NPROC": limits.processes + _others(mode)} if mode != "none" else {}),
            },
        }
    )


def _others(mode: Mode) -> int:
    """Threads that count against the same user number and are not the program's: all of this account's, unless it is alone."""
    if os.getuid() == 0 or mode == "bubblewrap":
        return 0
    total = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == os.getuid():
                    total += len(os.listdir(f"/proc/{entry.name}/task"))
            except OSError:
                continue
    return total


def bubblewrap_argv(inner: Sequence[str], *, folder: Path, python: Interpreter, limits: Limits) -> list[str]:
    """bubblewrap's own arguments: nothing of the machine but /usr and the interpreter, read-only; new namespaces of every kind."""
    argv = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    if os.getuid() == 0:
        argv += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):  # for the driver, which drops root with them
            argv += ["--cap-add", capability]
    else:
        argv += ["--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
    argv += ["--ro-bind", "/usr", "/usr"]
    for top in TOP_FOLDERS:
        if os.path.islink(top):
            argv += ["--symlink", os.readlink(top), top]
        elif os.path.isdir(top):
            argv += ["--ro-bind", top, top]
    for path in (python.prefix, "/etc/ld.so.cache", "/etc/localtime"):
        if not path.startswith("/usr/") and path != "/usr":
            for parent in reversed(Path(path).parents[:-1]):  # a private home would stay private, and the interpreter with it
                argv += ["--perms", "0755", "--dir", str(parent)]
            argv += ["--ro-bind-try", path, path]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for writable in ("/dev/shm", "/tmp"):
        argv += ["--perms", "1777", "--size", str(limits.scratch_bytes), "--tmpfs", writable]
    argv += ["--dir", "/sandbox", "--ro-bind", str(DRIVER), "/sandbox/driver.py", "--ro-bind", str(folder), "/program"]
    argv += ["--remount-ro", "/", "--chdir", "/tmp", "--setenv", "TMPDIR", "/tmp"]
    for name, value in environment("/tmp").items():
        argv += ["--setenv", name, value]
    return [*argv, "--", *inner]


def environment(home: str) -> Mapping[str, str]:
    """The whole environment of a program; nothing of the lab's own gets in."""
    return {
        "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0", "HOME": home, "TMPDIR": home,
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
