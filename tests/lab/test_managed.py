"""Starting servers: ready, stopped with all they started, dead ones named with their log, strangers on the port refused."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from homestretch.lab import servers
from homestretch.lab.client import try_json
from homestretch.lab.contract import read_card
from homestretch.lab.errors import ServerFailed
from homestretch.lab.servers.managed import ManagedServer, free_port
from homestretch.lab.types import Card, Start

FAKE = "from homestretch.lab.fake import FakeServer; import time; FakeServer(port={port}); time.sleep(600)"


def card(*code: str, ready_s: float = 30.0) -> Card:
    known = read_card(Path("smollm2-135m"))
    start = Start(command=[sys.executable, "-c", *code], port=free_port(0), ready_s=ready_s)
    return msgspec.structs.replace(known, start=start)


def test_a_server_starts_answers_and_ends_with_all_its_processes(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " + FAKE
    server = ManagedServer(card(code), servers.load("attach"), tmp_path / "server.log")
    target = server.start()
    assert server.pid is not None
    tree = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    assert len(tree) == 2
    assert try_json(target, "//health") == {"status": "ok"}
    server.stop()
    gone, alive = psutil.wait_procs(tree, timeout=5)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == [], gone
    assert server.start().url.startswith("http://127.0.0.1:")  # and again
    server.stop()


def test_a_server_that_dies_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    server = ManagedServer(card("raise SystemExit('no such model')"), servers.load("attach"), tmp_path / "server.log")
    with pytest.raises(ServerFailed, match=r"exit code 1 before it was ready:\nno such model"):
        server.start()


def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    server = ManagedServer(card("import time; time.sleep(600)", ready_s=1.0), servers.load("attach"), tmp_path / "server.log")
    with pytest.raises(ServerFailed, match="was not ready after 1 s"):
        server.start()
    assert server.pid is None


def test_a_stranger_that_took_the_port_is_not_measured(tmp_path: Path) -> None:
    mine = ManagedServer(card(FAKE), servers.load("attach"), tmp_path / "first.log")
    mine.start()
    waiting = msgspec.structs.replace(
        mine.card, start=Start(command=[sys.executable, "-c", "import time; time.sleep(600)"], port=mine.card.start.port)
    )
    other = ManagedServer(waiting, servers.load("attach"), tmp_path / "second.log")
    try:
        with pytest.raises(ServerFailed, match="was taken by another program"):
            other.start()  # its command names no port, so it is believed to take the card's
        assert other.pid is None
    finally:
        mine.stop()
