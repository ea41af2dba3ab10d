"""Starts one program in the sandbox, feeds it, caps what it may say and how long it may run, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from homestretch.lab.sandbox.outcome import Limits, Outcome, SandboxFailed, Status

SETUP_S = 30.0
LOOK_EVERY_S = 0.1
PIPE_BYTES = 1 << 20


@dataclass(kw_only=True)
class Running:
    """A started program: its process, the pipe on which the driver reports, and what has been read so far."""

    process: subprocess.Popen[bytes]
    report: int
    limits: Limits
    scratch: Path | None
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    applied: bytearray = field(default_factory=bytearray)
    stopped: Status | None = None


def start(
    argv: list[str], *, environment: dict[str, str], folder: Path, limits: Limits, scratch: Path | None, report: tuple[int, int]
) -> Running:
    """report: (read end, write end) of the status pipe; the write end goes to the driver."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder,
            start_new_session=True,
            pass_fds=(report[1],),
        )
    except OSError as error:
        os.close(report[0])
        raise SandboxFailed(f"The sandbox could not start {argv[0]}: {error}.") from error
    finally:
        os.close(report[1])
    return Running(process=process, report=report[0], limits=limits, scratch=scratch)


def follow(running: Running, stdin: bytes) -> tuple[Outcome, dict[str, object]]:
    """Until the program has ended or broken a limit. Returns its outcome and what the driver says it applied."""
    process = running.process
    streams = [stream for stream in (process.stdin, process.stdout, process.stderr) if stream is not None]
    waiting = memoryview(stdin)
    begun, started = time.monotonic(), None
    looked = begun
    pidfd = _pidfd(process.pid)
    chooser = selectors.DefaultSelector()
    try:
        for stream in streams:
            os.set_blocking(stream.fileno(), False)
        os.set_blocking(running.report, False)
        feed, out, err = (stream.fileno() for stream in streams)
        _widen(out)
        chooser.register(out, selectors.EVENT_READ, "out")
        chooser.register(err, selectors.EVENT_READ, "err")
        chooser.register(running.report, selectors.EVENT_READ, "report")
        chooser.register(feed, selectors.EVENT_WRITE, "in")
        if pidfd is not None:
            chooser.register(pidfd, selectors.EVENT_READ, "end")
        while True:
            now = time.monotonic()
            deadline = begun + SETUP_S if started is None else started + running.limits.wall_s
            if now >= deadline:
                running.stopped = "timeout"
                break
            pause = min(deadline - now, LOOK_EVERY_S if pidfd is not None else 0.01)
            ended = False
            for key, _ in chooser.select(pause):
                if key.data == "in":
                    waiting = _write(feed, waiting)
                    if not waiting:
                        chooser.unregister(feed)
                        streams[0].close()
                elif key.data == "end":
                    ended = True
                elif not _read(running, key.fd, key.data):
                    chooser.unregister(key.fd)
                elif started is None and b"\n" in running.applied:
                    started = time.monotonic()
            if len(running.stdout) > running.limits.output_bytes:
                running.stopped = "flood"
                break
            if ended or (pidfd is None and _over_and_unreaped(process)):
                break
            if now - looked >= LOOK_EVERY_S:
                looked = now
                if _over(running):
                    running.stopped = "memory"
                    break
        finished = time.monotonic()
        _kill(process)
        for stream_fd, name in ((out, "out"), (err, "err"), (running.report, "report")):
            while _read(running, stream_fd, name) and len(running.stdout) <= running.limits.output_bytes:
                pass
    finally:
        _kill(process)
        chooser.close()
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.close()
        os.close(running.report)
        if pidfd is not None:
            os.close(pidfd)
    told, complete, _ = running.applied.partition(b"\n")  # what a program may write after the driver's line counts for nothing
    if not complete:
        said = running.stderr.decode(errors="replace").strip()[-500:] or f"exit code {process.returncode}"
        raise SandboxFailed(f"The sandbox could not be set up: {said}")
    return _outcome(running, finished - (started or begun)), json.loads(told)


def _outcome(running: Running, wall_s: float) -> Outcome:
    code = running.process.returncode
    status: Status = running.stopped or ("ok" if code == 0 else "crashed")
    if code is not None and 128 < code <= 192 and running.stopped is None:
        code = 128 - code  # bubblewrap reports a signal the way a shell does
    if status == "crashed" and code == -signal.SIGXCPU:
        status = "timeout"
    if status == "crashed" and b"MemoryError" in running.stderr[-2000:]:
        status = "memory"
    return Outcome(
        status=status,
        exit_code=None if running.stopped else code,
        stdout=bytes(running.stdout[: running.limits.output_bytes]),
        stderr=bytes(running.stderr[: running.limits.error_bytes]),
        wall_s=wall_s,
    )


def _write(descriptor: int, waiting: memoryview) -> memoryview:
    try:
        return waiting[os.write(descriptor, waiting[:65536]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def _read(running: Running, descriptor: int, name: str) -> bool:
    """Takes what is there; False when there is nothing more to come (or nothing now)."""
    try:
        data = os.read(descriptor, PIPE_BYTES)
    except (BlockingIOError, OSError):
        return False
    if name == "out":
        running.stdout += data
    elif name == "report":
        running.applied += data[: 4096 - len(running.applied)]
    elif len(running.stderr) < running.limits.error_bytes:
        running.stderr += data
    return bool(data)


def _widen(descriptor: int) -> None:
    """A wider pipe where the system allows it, so that a program with much to say waits less for its reader."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The whole group, before its leader is reaped, so that the number cannot belong to somebody else."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _pidfd(pid: int) -> int | None:
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return int(opener(pid))
    except OSError:
        return None


def _over_and_unreaped(process: subprocess.Popen[bytes]) -> bool:
    """Where there are no process descriptors: asks without reaping if the system can, so that `_kill` still hits the group."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _over(running: Running) -> bool:
    """Whether the program's processes together hold too much memory, or its folder too many bytes."""
    if _resident_bytes(running.process.pid) > running.limits.memory_bytes:
        return True
    return running.scratch is not None and _folder_bytes(running.scratch) > running.limits.scratch_bytes


def _resident_bytes(pid: int) -> int:
    total, todo, page = 0, [pid], os.sysconf("SC_PAGE_SIZE")
    while todo:
        current = todo.pop()
        try:
            with open(f"/proc/{current}/statm", encoding="ascii") as file:
                total += int(file.read().split()[1]) * page
            for task in os.listdir(f"/proc/{current}/task"):
                with open(f"/proc/{current}/task/{task}/children", encoding="ascii") as file:
                    todo.extend(int(child) for child in file.read().split())
        except (OSError, ValueError):
            continue
    return total


def _folder_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
    return total
