"""Sixteen clients at one server for a while: long and short prompts, people who leave, refusals; every reply is its solo run."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from http.client import HTTPConnection
from typing import Any

import psutil
import pytest
from test_openai import HYBRID, served

CLIENTS = 16
WORDS = ("the", "a", "list", "of", "numbers", "in", "python", "is", "read", "from", "file", "and", "then", "def", "return", "class")


def catalogue(count: int, longest: int, rng: random.Random) -> list[dict[str, Any]]:
    """Requests of all kinds; the long ones share beginnings, so that kept prompts are met."""
    shared = " ".join(rng.choice(WORDS) for _ in range(longest))
    made = []
    for number in range(count):
        words = shared.split()[: rng.choice((0, 3, 60, longest))] + [rng.choice(WORDS) for _ in range(rng.randrange(1, 40))]
        made.append(
            {
                "messages": [{"role": "user", "content": " ".join(words)}],
                "max_tokens": rng.randrange(1, 96),
                "temperature": rng.choice((0, 0.7, 1.0)),
                "seed": number,
                "chat_template_kwargs": {"enable_thinking": bool(number % 2)},
                **rng.choice(({}, {"top_k": 20}, {"min_p": 0.05}, {"top_p": 0.95}, {"presence_penalty": 0.5}, {"stop": "the"})),
            }
        )
    return made


class Clients:
    """What the sixteen do until time is up, and what went wrong."""

    def __init__(self, port: int, asks: list[dict[str, Any]], seconds: float) -> None:
        self.port, self.asks = port, asks
        self.ends = time.monotonic() + seconds
        self.truth: list[str] = []
        self.faults: list[str] = []
        self.counts: dict[str, int] = {}
        self.lock = threading.Lock()

    def send(self, body: bytes) -> tuple[HTTPConnection, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        return connection, connection.getresponse()

    def whole(self, number: int, **more: Any) -> dict[str, Any]:
        connection, response = self.send(json.dumps({**self.asks[number], **more}).encode())
        with contextlib.closing(connection):
            raw = response.read()
        if response.status != 200:
            raise AssertionError(f"request {number}: {response.status} {raw[:200]!r}")
        made: dict[str, Any] = json.loads(raw)
        return made

    def one(self, rng: random.Random) -> str:
        """One thing that a client does; returns what it was. AssertionError when it is not as it should be."""
        number = rng.randrange(len(self.asks))
        kind = rng.choices(("plain", "stream", "leave", "vanish", "refused"), (50, 20, 12, 8, 10))[0]
        if kind == "plain":
            sha = self.whole(number)["token_sha"]
            assert sha == self.truth[number], f"request {number} beside others differs from its solo run"
        elif kind == "refused":
            bodies = (b"{", b'{"messages":5}', json.dumps({**self.asks[number], "temperature": "x"}).encode())
            long = json.dumps({"messages": [{"role": "user", "content": "word " * 9000}]}).encode()
            connection, response = self.send(rng.choice((*bodies, long)))
            with contextlib.closing(connection):
                assert response.status == 400, response.read()
        elif kind == "vanish":
            connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
            connection.request("POST", "/v1/chat/completions", json.dumps(self.asks[number]).encode())
            time.sleep(rng.random() * 0.2)
            connection.close()
        else:
            connection, response = self.send(json.dumps({**self.asks[number], "stream": True}).encode())
            with contextlib.closing(connection):
                assert response.status == 200, response.read()
                if kind == "leave":
                    response.readline()
                else:
                    events = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]
                    assert events[-1] == "[DONE]", events[-1:]
                    assert json.loads(events[-2])["token_sha"] == self.truth[number]
        return kind

    def run(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.ends and len(self.faults) < 20:
            try:
                kind = self.one(rng)
            except (AssertionError, OSError, ValueError) as error:
                kind = "fault"
                self.faults.append(f"{type(error).__name__}: {error}")
            with self.lock:
                self.counts[kind] = self.counts.get(kind, 0) + 1


@pytest.mark.parametrize(
    ("seconds", "count"), [pytest.param(20, 10, id="20s"), pytest.param(600, 48, id="600s", marks=pytest.mark.long)]
)
def test_soak(seconds: int, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    with served(HYBRID, "--name", "soak", "--prompt-cache-gib", "0.03", "--parallel", "4") as process:
        port = int(process.url.rsplit(":", 1)[1].split("/")[0])
        clients = Clients(port, catalogue(count, 300 if seconds < 60 else 1500, random.Random(count)), seconds)
        clients.truth = [clients.whole(number, draft=False, cache=False)["token_sha"] for number in range(count)]
        clients.ends = time.monotonic() + seconds
        threads = [threading.Thread(target=clients.run, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        server = psutil.Process(process.running.pid)
        sizes = []
        while any(thread.is_alive() for thread in threads):
            time.sleep(1.0)
            sizes.append(server.memory_info().rss)
        for thread in threads:
            thread.join()
        if seconds > 60:
            with capsys.disabled():
                print(clients.counts, "MiB:", [size >> 20 for size in sizes[:: max(1, len(sizes) // 10)]])  # noqa: T201
        assert not clients.faults, clients.faults[:5]
        assert clients.counts["plain"] > 0
        assert clients.counts["stream"] > 0
        if seconds > 120:
            early, late = max(sizes[60:120]), max(sizes[-60:])
            assert late < early * 1.05 + (16 << 20), f"memory grew from {early >> 20} to {late >> 20} MiB after the first minute"
        deadline = time.monotonic() + 10
        while True:
            connection = HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/health")
            health = json.loads(connection.getresponse().read())
            connection.close()
            if (health["running"], health["waiting"]) == (0, 0):
                break
            assert time.monotonic() < deadline, f"places were not freed: {health}"
            time.sleep(0.05)
