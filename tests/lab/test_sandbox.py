"""Programs run as they would anywhere, and nothing they do gets out, in both cages, as root and without rights."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from homestretch.lab.sandbox import Limits, Sandbox, SandboxFailed, attacks, driver, open_sandbox, run_program

SRC = Path(__file__).resolve().parents[2] / "src"
MODES = ["bubblewrap", "landlock"]


@pytest.fixture(scope="module", params=MODES)
def cage(request: pytest.FixtureRequest) -> Sandbox:
    try:
        return open_sandbox(only=request.param, prove=False)
    except SandboxFailed as reason:
        pytest.skip(str(reason))


def test_twelve_attacks_are_held(cage: Sandbox) -> None:
    proven = open_sandbox(only=cage.mode)
    assert proven.report["attacks_held"] == "12 of 12"
    assert set(proven.report["attacks"].values()) == {"held"}
    json.dumps(proven.report)


@pytest.mark.parametrize("mode", MODES)
def test_twelve_attacks_are_held_for_an_account_without_rights(mode: str) -> None:
    if os.getuid() != 0 or not shutil.which("setpriv") or not Path("/usr/bin/python3").exists():
        pytest.skip("needs root to become another account, setpriv and a system Python")
    argv = [
        "setpriv",
        "--reuid=1000",
        "--regid=1000",
        "--clear-groups",
        "/usr/bin/python3",
        "-B",
        "-m",
        "homestretch.lab.sandbox",
        mode,
    ]
    environment = {"PYTHONPATH": str(SRC), "HOME": "/nowhere", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    if "could not be set up" in done.stderr:
        pytest.skip(done.stderr)  # a kernel that refuses user namespaces
    assert json.loads(done.stdout)["attacks_held"] == "12 of 12", done.stderr


def test_the_judges_see_an_escape_when_there_is_no_cage() -> None:
    """An instrument that cannot fail proves nothing: without a cage these attacks must be reported as out."""
    bare = Sandbox(mode="none", python=open_sandbox(unsafe=True, only="none").python)
    harmless = ["network", "outside writes", "home reads", "other environments", "killing others", "symlinks", "left-over process"]
    kept = dict(attacks.ATTACKS)
    try:
        for name in [name for name in attacks.ATTACKS if name not in harmless]:
            del attacks.ATTACKS[name]
        verdicts = {}
        for name in harmless:  # one at a time: the first murder would otherwise be seen by all
            attacks.ATTACKS.clear()
            attacks.ATTACKS[name] = kept[name]
            verdicts[name] = attacks.attack_all(bare)[0]
    finally:
        attacks.ATTACKS.clear()
        attacks.ATTACKS.update(kept)
    assert [name for name, verdict in verdicts.items() if verdict.held] == []


DEEP_THREAD = """import threading, sys
sys.setrecursionlimit(10**6)
threading.stack_size(2**27)
thread = threading.Thread(target=lambda: print(input()))
thread.start(); thread.join()
"""
CHILD = "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout)"


@pytest.mark.parametrize(
    ("code", "stdin", "status", "stdout"),
    [
        ("print(sum(map(int, input().split())))", "1 2 3\n", "ok", b"6\n"),
        ("import sys\nsys.stdin.readline()\nprint(sys.stdin.read())", "a\nb\nc", "ok", b"b\nc\n"),
        ("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", "ab\ncd\n", "ok", b"ba\ndc\n"),
        ("print('before')\nexit()\nprint('after')", "", "ok", b"before\n"),
        ("import sys\nsys.exit(3)", "", "crashed", b""),
        ("raise SystemExit", "", "ok", b""),
        ("1 / 0", "", "crashed", b""),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "", "crashed", b""),
        ("def (", "", "crashed", b""),
        ("while True: pass", "", "timeout", b""),
        ("while True: print('x' * 9999)", "", "flood", None),
        ("kept = [0] * 10**11", "", "memory", b""),
        ("if __name__ == '__main__': print('main')", "", "ok", b"main\n"),
        ("open('note', 'w').write('kept')\nprint(open('note').read())", "", "ok", b"kept\n"),
        (DEEP_THREAD, "deep", "ok", b"deep\n"),
        ("print('\ud800')", "\udfff", "ok", b"?\n"),
        ("\0", "", "crashed", b""),
        (CHILD, "", "ok", None),
        ("import sys\nprint(len(sys.stdin.read()))", "x" * 3_000_000, "ok", b"3000000\n"),
        ("print('done')", "x" * 3_000_000, "ok", b"done\n"),
        ("import sys\nsys.stderr.write('e' * 10**6)\nprint('out')", "", "ok", b"out\n"),
        ("import sys\nsys.stdout.buffer.write(bytes(range(256)))", "", "ok", bytes(range(256))),
    ],
)
def test_a_program_ends_as_it_would_anywhere(cage: Sandbox, code: str, stdin: str, status: str, stdout: bytes | None) -> None:
    wall_s = 1.0 if status == "timeout" else 15.0
    outcome = cage.run(code, stdin, Limits(wall_s=wall_s, memory_bytes=2048 * 2**20, output_bytes=2**20))
    assert outcome.status == status, outcome
    if stdout is not None:
        assert outcome.stdout == stdout


def test_a_program_sees_neither_local_paths_nor_the_lab_in_its_traceback(cage: Sandbox) -> None:
    said = cage.run("raise ValueError('mine')").stderr.decode()
    assert said.splitlines()[-1] == "ValueError: mine"
    assert "driver.py" not in said
    assert str(SRC) not in said


def test_time_is_counted_from_the_start_of_the_program(cage: Sandbox) -> None:
    outcome = cage.run("import time; time.sleep(0.3)", limits=Limits(wall_s=10))
    assert 0.29 < outcome.wall_s < 3.0


def test_a_full_folder_stops_the_program(cage: Sandbox) -> None:
    code = "for n in range(10**6): open(f'f{n}', 'wb').write(bytes(2**20))"
    outcome = cage.run(code, limits=Limits(wall_s=30, scratch_bytes=16 * 2**20))
    assert outcome.status in ("crashed", "memory")
    assert outcome.wall_s < 25


OWN_FILE = """
for path in ("/program/program.py", "../program/program.py"):
    try:
        open(path, "a")
    except OSError:
        print("no")
"""


def test_a_program_cannot_change_its_own_file(cage: Sandbox) -> None:
    assert cage.run(OWN_FILE).stdout == b"no\nno\n"


FORGED_STATUS = """import os
for pid in range(1, 9):
    for fd in range(64):
        try:
            open(f"/proc/{pid}/fd/{fd}", "wb").write(b"{}\\n" * 9)
        except OSError:
            pass
"""
HOSTILE = [
    "import os\nwhile True: os.fork()",
    "import os, time\n[os.fork() for _ in range(4)]\nwhile True: print('x' * 999)",
    "import signal\n[signal.signal(n, signal.SIG_IGN) for n in range(1, 32) if n not in (9, 19)]\nwhile True: pass",
    "import os\nos.close(0); os.close(1); os.close(2)\nwhile True: pass",
    "import sys\nsys.stdin = None\nimport time\ntime.sleep(99)",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "import os, time\nif os.fork() == 0:\n  while True: time.sleep(1)",
    "import os, time\nif os.fork() == 0:\n  os.close(1); os.close(2); time.sleep(99)",
    "import threading, time\nfor _ in range(9999): threading.Thread(target=time.sleep, args=(9,)).start()",
    "x = []\nwhile True: x.append(bytearray(10**7))",
    "import sys\nsys.setrecursionlimit(10**9)\nf = lambda: f()\nf()",
    "import ctypes\nctypes.string_at(0)",
    "raise SystemExit(10**30)",
    "import os\nos.abort()",
    "import os\nos.execv('/bin/sleep', ['sleep', '99'])",
    "import os\nos.dup2(1, 7)\nfor _ in range(9): os.write(2, b'\\xff' * 10**6)",
    "import os\nos.kill(0, 9)",
    "import os\nos.kill(-1, 9)",
    "import faulthandler\nfaulthandler.dump_traceback_later(0.01, exit=True)\nwhile True: pass",
    "9 ** 9 ** 9",
    "import os\nfor fd in range(3, 64):\n  try: os.write(fd, b'not JSON\\n')\n  except OSError: pass",
    FORGED_STATUS,
]


def test_two_hundred_hostile_programs_never_hang_the_grader(cage: Sandbox) -> None:
    limits = Limits(wall_s=0.15, memory_bytes=256 * 2**20, output_bytes=2**18, processes=16)
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=4) as pool:
        outcomes = list(pool.map(lambda code: cage.run(code, "x" * 100_000, limits), (HOSTILE * 10)[:200]))
    assert len(outcomes) == 200
    assert time.monotonic() - started < 150
    assert all(outcome.wall_s < 10 for outcome in outcomes)
    assert cage.run("print('still here')").stdout == b"still here\n"


HEADERS = {
    "x86_64": (0, Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")),
    "aarch64": (1, Path("/usr/include/asm-generic/unistd.h")),
}
NEWER_THAN_MANY_HEADERS = {"fchmodat2", "setxattrat", "removexattrat", "file_setattr", "open_tree_attr"}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_of_system_calls_are_the_kernel_s(machine: str) -> None:
    column, header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"needs {header}, of the package linux-libc-dev")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    numbers = {name: int(number) for name, number in found}
    for name, pair in driver.CALLS.items():
        if name in numbers or name not in NEWER_THAN_MANY_HEADERS:
            assert pair[column] == numbers.get(name), name


def judged(program: bytes, arch: int, number: int, *arguments: int) -> str:
    """What the filter does with a system call: a small interpreter of the five instructions it is made of."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *[*arguments, 0, 0, 0, 0, 0, 0][:6])
    lines = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    at, held = 0, 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        if code == 0x20:
            held = struct.unpack_from("<I", data, value)[0]
        elif code == 0x06:
            return {0x7FFF0000: "allowed", 0x80000000: "killed", 0x00050001: "refused", 0x00050026: "no such call"}[value]
        else:
            holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            at += yes if holds else no


@pytest.mark.parametrize(("machine", "arch", "other"), [("x86_64", 0xC000003E, 0xC00000B7), ("aarch64", 0xC00000B7, 0xC000003E)])
def test_the_filter_refuses_what_it_names_and_nothing_else(machine: str, arch: int, other: int) -> None:
    column = HEADERS[machine][0]
    program = driver.seccomp_program(machine, pid=77, signals_scoped=False)
    alone = {"kill", "tkill", "tgkill", "prlimit64", "fchmod", "clone", "clone3"}
    named = {pair[column]: name for name, pair in driver.CALLS.items() if pair[column] is not None}
    for number in range(500):
        if named.get(number) not in alone:
            assert judged(program, arch, number) == ("refused" if number in named else "allowed"), named.get(number, number)
    call = {name: pair[column] or 0 for name, pair in driver.CALLS.items()}
    assert [judged(program, arch, call["kill"], pid) for pid in (0, 77, 78, 2**32 - 1)] == [
        "allowed",
        "allowed",
        "refused",
        "refused",
    ]
    assert [judged(program, arch, call["prlimit64"], pid) for pid in (0, 77, 1)] == ["allowed", "allowed", "refused"]
    assert [judged(program, arch, call["fchmod"], 3, mode) for mode in (0o644, 0o4755, 0o2755)] == ["allowed", "refused", "refused"]
    assert judged(program, arch, call["clone"], 0x11) == "allowed"
    assert judged(program, arch, call["clone"], 0x10000000) == "refused"
    assert judged(program, arch, call["clone3"]) == "no such call"
    assert judged(program, other, 0) == "killed"
    scoped = driver.seccomp_program(machine, pid=77, signals_scoped=True)
    assert judged(scoped, arch, call["kill"], 78) == "allowed"
    if machine == "x86_64":
        assert judged(program, arch, 0x40000000 + 41) == "refused"


def test_no_cage_is_a_refusal_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("homestretch.lab.sandbox.driver.landlock_abi", lambda: 0)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxFailed, match=r"apt install bubblewrap.*--unsafe-code-execution"):
        open_sandbox()
    bare = open_sandbox(unsafe=True)
    assert bare.report["mode"] == "none"
    assert bare.report["attacks_held"] == "0 of 0"


def test_a_cage_that_lets_an_attack_out_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"network": ("print('tcp GOT connected')", attacks.ATTACKS["network"][1])}
    monkeypatch.setattr(attacks, "ATTACKS", broken)
    with pytest.raises(SandboxFailed, match="let out: network"):
        open_sandbox()


def test_run_program_opens_the_sandbox_by_itself() -> None:
    assert run_program("print(input())", "hello").stdout == b"hello\n"
