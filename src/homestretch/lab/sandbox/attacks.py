"""Twelve attacks that a working sandbox must keep in; each harmless should it succeed, and judged from outside where possible."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from homestretch.lab.sandbox.outcome import MIB, Limits, Outcome

if TYPE_CHECKING:
    from homestretch.lab.sandbox import Sandbox, Verdict

PATIENT = Limits(wall_s=15.0, memory_bytes=512 * MIB, output_bytes=MIB, processes=32)
QUICK = replace(PATIENT, wall_s=1.5)  # for attacks that only a limit ends


@dataclass(frozen=True, kw_only=True)
class Bait:
    """What the attacks go for: a secret file, a folder open to all, a listening port, a live process with a secret environment."""

    secret: str
    marker: str
    folder: Path
    port: int
    pid: int
    home_names: tuple[str, ...]
    touched: Callable[[], str]

    def fill(self, code: str) -> str:
        home = str(Path.home())
        values = {
            "SECRET_FILE": str(self.folder / "secret"), "FOLDER": str(self.folder), "PORT": str(self.port), "PID": str(self.pid),
            "MARKER": self.marker, "HOME": "/nowhere" if home in ("/", "/tmp") else home,
        }  # fmt: skip
        for name, value in values.items():
            code = code.replace(f"@{name}@", value)
        return code


SHARED = """
import os, sys, ctypes
def tried(label, action):
    try:
        print(label, "GOT", action(), flush=True)
    except BaseException as error:
        print(label, "refused", type(error).__name__, flush=True)
def read(path):
    with open(path, "rb") as file: return file.read(65536)
def write(path):
    with open(path, "w") as file: written = file.write("@MARKER@")
    if path.endswith("@MARKER@"): os.unlink(path)
    return written
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0: raise OSError(ctypes.get_errno(), name)
    return "done"
"""

NETWORK = """
import socket
def connect(family, kind, address):
    with socket.socket(family, kind) as s:
        s.settimeout(0.5); s.connect(address); s.send(b"@MARKER@"); return "connected"
tried("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", @PORT@)))
tried("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", @PORT@)))
tried("tcp6", lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("::1", @PORT@)))
tried("abstract", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\\0@MARKER@"))
tried("path", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "@FOLDER@/socket"))
"""
OUTSIDE_WRITES = """
for folder in ("@HOME@", "/etc", "/usr", "", "/var/tmp", "/opt"):
    tried(folder, lambda: write(folder + "/@MARKER@"))
for path in ("@FOLDER@/new", "@SECRET_FILE@"):
    tried(path, lambda: write(path))
tried("mode", lambda: os.chmod("@SECRET_FILE@", 0o600))
tried("owner", lambda: os.chown("@SECRET_FILE@", os.getuid(), os.getgid()))
tried("times", lambda: os.utime("@SECRET_FILE@", (1, 1)))
tried("length", lambda: os.truncate("@SECRET_FILE@", 0))
tried("attribute", lambda: os.setxattr("@SECRET_FILE@", "user.x", b"1"))
tried("rename", lambda: os.rename("@SECRET_FILE@", "@FOLDER@/moved"))
tried("unlink", lambda: os.unlink("@SECRET_FILE@"))
"""
HOME_READS = """
tried("home", lambda: os.listdir("@HOME@"))
tried("secret", lambda: read("@SECRET_FILE@"))
tried("folder", lambda: os.listdir("@FOLDER@"))
for path in ("/etc/shadow", "/etc/passwd", "@HOME@/.ssh/id_rsa", "@HOME@/.bash_history"):
    tried(path, lambda: len(read(path)))
"""
FORKS = """
import time
made = 0
for _ in range(400):
    try:
        if os.fork() == 0:
            time.sleep(30); os._exit(0)
        made += 1
    except OSError:
        break
print("FORKED", made, flush=True)
time.sleep(30)
"""
MEMORY = """
import time
for _ in range(8):
    try:
        if os.fork() == 0:
            break
    except OSError:
        pass
kept = []
for _ in range(12):
    kept.append(bytearray(b"x") * (32 * 1024 * 1024)); time.sleep(0.02)
time.sleep(3)
print("KEPT", flush=True)
"""
ENDLESS_LOOP = """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
"""
OUTPUT_FLOOD = """
line = b"x" * 65536
while True: os.write(1, line); os.write(2, line)
"""
ENVIRON = """
print(dict(os.environ))
try: everybody = [name for name in os.listdir("/proc") if name.isdigit()]
except OSError: everybody = []
for name in ("1", str(os.getppid()), "@PID@", "self", *everybody):
    tried(name, lambda: read(f"/proc/{name}/environ"))
    tried(name, lambda: read(f"/proc/{name}/cmdline"))
"""
KILL_OTHERS = """
import signal, time
for number in (signal.SIGTERM, signal.SIGKILL):
    tried("kill", lambda: os.kill(@PID@, number))
    tried("group", lambda: os.killpg(@PID@, number))
    tried("tkill", lambda: call("syscall", {"x86_64": 200}.get(os.uname().machine, 130), @PID@, int(number)))
    tried("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(@PID@), number))
    tried("queue", lambda: call("sigqueue", @PID@, int(number), 0))
tried("nice", lambda: os.setpriority(os.PRIO_PROCESS, @PID@, 19))
tried("cores", lambda: os.sched_setaffinity(@PID@, {min(os.sched_getaffinity(0))}))
tried("rlimit", lambda: __import__("resource").prlimit(@PID@, 0, (1, 1)))
"""
SYMLINKS = """
def through(link, target):
    os.symlink(target, link); return read(link) if os.path.isfile(link) else os.listdir(link)
tried("link", lambda: through("a", "@SECRET_FILE@"))
tried("folder", lambda: through("b", "@FOLDER@"))
tried("write", lambda: write("b/through-link"))
tried("hard", lambda: (os.link("@SECRET_FILE@", "c"), read("c")))
tried("root", lambda: read("/proc/self/root@SECRET_FILE@"))
tried("parent root", lambda: read(f"/proc/{os.getppid()}/root@SECRET_FILE@"))
tried("up", lambda: read("../" * 12 + "@SECRET_FILE@"[1:]))
tried("fd", lambda: [read(f"/proc/self/fd/{n}/@SECRET_FILE@") for n in range(3, 30)])
for number in range(3, 64):
    try: os.fchdir(number); tried("inherited", lambda: read("@SECRET_FILE@"[1:]))
    except OSError: pass
"""
RAISE_RIGHTS = """
tried("RIGHT setuid", lambda: os.setuid(0))
tried("RIGHT setresuid", lambda: os.setresuid(0, 0, 0))
tried("RIGHT setgroups", lambda: os.setgroups([0]))
tried("RIGHT ptrace", lambda: call("ptrace", 16, @PID@, 0, 0))
tried("RIGHT memory", lambda: call("process_vm_readv", @PID@, None, 0, None, 0, 0))
tried("RIGHT user namespace", lambda: call("unshare", 0x10000000))
tried("RIGHT mount namespace", lambda: call("unshare", 0x00020000))
tried("RIGHT mount", lambda: call("mount", b"none", b".", b"tmpfs", 0, None))
tried("RIGHT chroot", lambda: os.chroot("."))
tried("RIGHT set-id file", lambda: (open("s", "w").close(), os.chmod("s", 0o6755)))
tried("RIGHT set-id descriptor", lambda: os.fchmod(os.open("t", os.O_CREAT | os.O_RDWR), 0o6755))
tried("RIGHT uncounted memory", lambda: os.memfd_create("m"))
if libc.prctl(39, 0, 0, 0, 0) == 0: print("RIGHT new privileges GOT")
tried("RIGHT io_uring", lambda: call("syscall", 425, 8, ctypes.create_string_buffer(256)))
print("UID", os.getuid(), os.geteuid())
"""
LEFT_BEHIND = """
import time
for _ in range(2):
    if os.fork():
        time.sleep(0.2); print("gone"); sys.stdout.flush(); os._exit(0)
    try: os.setsid()
    except OSError: pass
libc.prctl(15, b"@MARKER@", 0, 0, 0)
for _ in range(200): time.sleep(0.05)
"""


def attack_all(sandbox: Sandbox) -> tuple[Verdict, ...]:
    """Runs the twelve beside each other and judges each. About 3 s on two cores."""
    from homestretch.lab.sandbox import Verdict

    with _bait() as bait, ThreadPoolExecutor(max_workers=4) as pool:

        def one(attack: str) -> Verdict:
            code, judge = ATTACKS[attack]
            limits = QUICK if attack in ("forks", "memory", "endless loop") else PATIENT
            started = time.monotonic()
            outcome = sandbox.run(bait.fill(SHARED + code), b"", limits)
            problem = judge(outcome, bait, time.monotonic() - started - limits.wall_s) or bait.touched()
            return Verdict(attack=attack, held=not problem, evidence=problem or outcome.status)

        # The fork bomb goes alone: without rights of our own, all programs share one count of processes.
        verdicts = {verdict.attack: verdict for verdict in pool.map(one, [name for name in ATTACKS if name != "forks"])}
        verdicts |= {name: one(name) for name in ATTACKS if name == "forks"}
        return tuple(verdicts[name] for name in ATTACKS)


def _said(outcome: Outcome) -> str:
    return outcome.stdout.decode(errors="replace")


def _nothing_got(outcome: Outcome, bait: Bait, late_s: float) -> str:
    if outcome.status != "ok":
        return f"the attack itself ended as {outcome.status}: {outcome.stderr[-200:]!r}"
    return next((line[:200] for line in _said(outcome).splitlines() if " GOT" in line), "")


def _no_secret(outcome: Outcome, bait: Bait, late_s: float) -> str:
    if outcome.status != "ok":
        return f"the attack itself ended as {outcome.status}: {outcome.stderr[-200:]!r}"
    if bait.secret in _said(outcome):
        return "read the secret"
    leaked = [name for name in bait.home_names if f"'{name}'" in _said(outcome)]
    return f"listed {leaked[0]}" if leaked else ""


def _few_processes(outcome: Outcome, bait: Bait, late_s: float) -> str:
    made = int([*_said(outcome).split("FORKED "), "400"][1].split()[0])
    return f"made {made} processes" if made > QUICK.processes else ""


def _never_kept(outcome: Outcome, bait: Bait, late_s: float) -> str:
    return "kept 3 GiB" if outcome.ok and _said(outcome).count("KEPT") > 1 else ""


def _stopped(status: str) -> Callable[[Outcome, Bait, float], str]:
    def judge(outcome: Outcome, bait: Bait, late_s: float) -> str:
        if outcome.status != status:
            return f"ended as {outcome.status}"
        if late_s > 8:
            return f"was stopped {late_s:.1f} s too late"
        return "too much output kept" if len(outcome.stdout) > QUICK.output_bytes or len(outcome.stderr) > QUICK.error_bytes else ""

    return judge


def _no_rights(outcome: Outcome, bait: Bait, late_s: float) -> str:
    if "UID 0 0" in _said(outcome):
        return "runs as root"
    return _nothing_got(outcome, bait, late_s)


def _nothing_left(outcome: Outcome, bait: Bait, late_s: float) -> str:
    if b"gone" not in outcome.stdout:
        return f"the attack itself ended as {outcome.status}: {outcome.stderr[-200:]!r}"
    deadline = time.monotonic() + 1.0  # a namespace is still being torn down when its starter has ended
    while alive := _named(bait.marker):
        if time.monotonic() > deadline:
            return f"process {alive} lives on"
        time.sleep(0.02)
    return f"was stopped {late_s:.1f} s too late" if late_s > 8 else ""


def _named(name: str) -> str:
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{entry}/stat").read_text()
            if f"({name}) " in status and status.rpartition(") ")[2][0] not in "ZX":  # a dead one may wait for its new parent
                return entry
    return ""


def _only_others(outcome: Outcome, bait: Bait, late_s: float) -> str:
    return ""  # `touched` looks whether the process still lives


ATTACKS: dict[str, tuple[str, Callable[[Outcome, Bait, float], str]]] = {
    "network": (NETWORK, _nothing_got),
    "outside writes": (OUTSIDE_WRITES, _nothing_got),
    "home reads": (HOME_READS, _no_secret),
    "forks": (FORKS, _few_processes),
    "memory": (MEMORY, _never_kept),
    "endless loop": (ENDLESS_LOOP, _stopped("timeout")),
    "output flood": (OUTPUT_FLOOD, _stopped("flood")),
    "other environments": (ENVIRON, _no_secret),
    "killing others": (KILL_OTHERS, _only_others),
    "symlinks": (SYMLINKS, _no_secret),
    "raising rights": (RAISE_RIGHTS, _no_rights),
    "left-over process": (LEFT_BEHIND, _nothing_left),
}


@contextlib.contextmanager
def _bait() -> Iterator[Bait]:
    secret, marker = secrets.token_hex(12), "hs" + secrets.token_hex(5)
    with tempfile.TemporaryDirectory(prefix="homestretch-bait-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "secret").write_text(secret)
        (folder / "secret").chmod(0o666)
        listeners = [stack.enter_context(socket.socket(socket.AF_INET, kind)) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
        listeners[0].bind(("127.0.0.1", 0))
        port = int(listeners[0].getsockname()[1])
        with contextlib.suppress(OSError):
            listeners[1].bind(("127.0.0.1", port))
        listeners[0].listen(8)
        for path in (str(folder / "socket"), "\0" + marker):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            with contextlib.suppress(OSError):
                unix.bind(path)
                unix.listen(8)
                listeners.append(unix)
        (folder / "socket").chmod(0o777)
        for listener in listeners:
            listener.setblocking(False)
        victim = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(300)"], env={"SECRET": secret})
        stack.callback(victim.wait)
        stack.callback(victim.kill)

        def fingerprint() -> tuple[object, ...]:
            status = (folder / "secret").stat()
            scheduled = os.getpriority(os.PRIO_PROCESS, victim.pid), os.sched_getaffinity(victim.pid)
            return status.st_mode, status.st_uid, status.st_mtime_ns, os.listxattr(folder / "secret"), *scheduled

        before = fingerprint()

        def touched() -> str:
            if victim.poll() is not None:
                return "killed another process"
            if sorted(os.listdir(folder)) != ["secret", "socket"] or (folder / "secret").read_text() != secret:
                return f"changed a file outside: {json.dumps(sorted(os.listdir(folder)))}"
            if fingerprint() != before:
                return "changed a file's mode, owner, times or attributes outside, or how another process is scheduled"
            for listener in listeners:
                with contextlib.suppress(OSError):
                    if listener.type == socket.SOCK_DGRAM:
                        listener.recv(1)
                    else:
                        listener.accept()[0].close()
                    return "reached the network"
            return ""

        needed = Path(os.path.realpath(sys.base_prefix)).parts
        home_names: tuple[str, ...] = ()
        with contextlib.suppress(OSError):  # a service account may have no home
            home_names = tuple(entry for entry in os.listdir(Path.home()) if entry not in needed and len(entry) > 3)
        yield Bait(secret=secret, marker=marker, folder=folder, port=port, pid=victim.pid, home_names=home_names, touched=touched)
