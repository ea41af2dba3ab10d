"""Starts a server by its card, waits until it is ready, and stops it with all its processes."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from homestretch.lab import machine
from homestretch.lab.client import Target
from homestretch.lab.errors import ServerFailed, WrongUse
from homestretch.lab.types import Card

if TYPE_CHECKING:
    from homestretch.lab.servers import ServerKind

STOP_S = 20.0


class ManagedServer:
    """A server of our own: `start` (again and again with other windows), `stop`. Its output goes to the log, appended."""

    def __init__(
        self, card: Card, kind: ServerKind, log: Path, *, api_key: str = "", say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.card, self.kind, self.log, self.say = card, kind, log, say
        self.window = int(card.window.value)
        self.command: list[str] = []
        self._api_key = api_key
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def log_text(self) -> str:
        """What the running server has written since its start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def argv(self, port: int, window: int) -> list[str]:
        """The start command with its places filled in; programs of this Python environment are found without a PATH."""
        values = {
            "location": os.path.expanduser(self.card.model.location),
            "port": str(port),
            "window": str(window),
            "name": self.card.model.id,
        }
        filled = [fill(word, values) for word in self.card.start.command]
        program = os.path.expanduser(filled[0])
        beside = Path(sys.executable).parent / program
        if os.sep not in program and beside.exists():
            return [str(beside), *filled[1:]]
        if program == "homestretch":
            return [sys.executable, "-m", "homestretch", *filled[1:]]
        if shutil.which(program) is None:
            raise WrongUse(
                f"the card starts {program!r}, which is not installed here; install it or measure a running server: --base-url"
            )
        return [program, *filled[1:]]

    def start(self, window: int | None = None) -> Target:
        """Start and wait until requests are answered. ServerFailed with the log's end when it dies or is not ready in time."""
        if self.pid is not None:
            raise WrongUse("the server runs already; stop it first")
        self.window = int(self.card.window.value) if window is None else window
        chosen = any("{port}" in word for word in self.card.start.command)
        port = free_port(self.card.start.port) if chosen else self.card.start.port
        self.command = self.argv(port, self.window)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.say(f"starting {self.card.engine.name}: {' '.join(self.command)}")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )
        target = Target(url=f"http://127.0.0.1:{port}/v1", api_key=self._api_key)
        deadline, told = time.monotonic() + self.card.start.ready_s, time.monotonic()
        while not self.kind.ready(target):
            if self._process.poll() is not None:
                code, self._process = self._process.returncode, None
                raise ServerFailed(f"{self.card.engine.name} ended with exit code {code} before it was ready:\n{self._tail()}")
            if time.monotonic() > deadline:
                self.stop()
                raise ServerFailed(f"{self.card.engine.name} was not ready after {self.card.start.ready_s:g} s:\n{self._tail()}")
            if time.monotonic() - told > 10.0:
                told = time.monotonic()
                self.say(f"waiting for {self.card.engine.name}: {self._tail(1).strip()[:120]}")
            time.sleep(0.1)
        self._refuse_stranger(port)
        return target

    def _refuse_stranger(self, port: int) -> None:
        """ServerFailed when what answers on the port is not what was started: somebody else took it in between."""
        listener = machine.listener(port)
        if self.pid is None or listener is None or listener in {process.pid for process in machine.tree(self.pid)}:
            return
        self.stop()
        raise ServerFailed(f"port {port} was taken by another program while {self.card.engine.name} started; run it again")

    def stop(self) -> None:
        """Ask it to end, then end it, with everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        for sign, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(process.pid, sign)
            except ProcessLookupError:
                break
            try:
                process.wait(timeout=patience_s)
                break
            except subprocess.TimeoutExpired:
                continue

    def _tail(self, lines: int = 15) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])


def end_with_parent() -> None:
    """In the child: be asked to end when the lab is killed, so that no server outlives a run that cannot stop it."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # 1 = PR_SET_PDEATHSIG


def fill(word: str, values: dict[str, str]) -> str:
    """A word of the start command with {location}, {port}, {window} and {name} filled in; other braces stay."""
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


def free_port(wanted: int) -> int:
    """The wanted port when nobody holds it, else any free one."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ServerFailed("no free port on 127.0.0.1")
