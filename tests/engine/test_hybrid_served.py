"""hybrid-10m over HTTP: thinking on and off, eight at once, drafted by its head; each reply is the serial one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from serving import HYBRID, listening

from homestretch.engine.backends import find
from homestretch.engine.config import ServeOptions
from homestretch.engine.core import Core, Options
from homestretch.engine.drafts.copies import Copies
from homestretch.engine.server.start import prepare, reader
from homestretch.engine.types import WindowCosts

CHEAP = WindowCosts(rows=tuple(1.0 + 0.001 * row for row in range(16)), draft=0.0)
"""Rows that cost next to nothing, as on a machine bound by memory: every round drafts, whatever this machine is."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    backend = "reference" if find("cpu").refusal() else "cpu"
    setup = prepare(HYBRID, ServeOptions(backend=backend, name="hybrid-10m", window=1024, threads=1, prompt_cache_bytes=1 << 26))

    def load() -> tuple[Any, Options, bool]:
        made: Any = setup.backend()
        made.load(setup.model, setup.checkpoint, setup.limits)
        made.costs = lambda: CHEAP
        # Time stands still, so that costs stay what the backend says.
        options = Options(window=1024, streams=8, sources={"copies": Copies}, prompt_cache_bytes=1 << 26, clock=lambda: 0.0)
        return made, options, True

    core = Core(load)
    core.start()
    with listening(reader(setup), core) as number:
        yield number


def ask(port: int, number: int, *, thinking: bool | None, **fields: Any) -> dict[str, Any]:
    """One reply of the number-th question; thinking None leaves the template's own default."""
    body = {
        "model": "hybrid-10m",
        "messages": [{"role": "user", "content": f"Write a Python function `read_{number}`: read a file and return its lines."}],
        "max_tokens": 60,
        "seed": number,
        **({} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}),
        **fields,
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found: dict[str, Any] = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, found
    return found


def test_eight_at_once_thinking_or_not_say_what_each_says_alone_without_drafts(port: int) -> None:
    together: dict[int, dict[str, Any]] = {}
    threads = [threading.Thread(target=lambda i=i: together.update({i: ask(port, i, thinking=i % 2 == 0)})) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drafted = accepted = 0
    for number in range(8):
        alone = ask(port, number, thinking=number % 2 == 0, draft=False, cache=False)
        assert together[number]["token_sha"] == alone["token_sha"]
        assert together[number]["choices"][0]["message"] == alone["choices"][0]["message"]
        assert alone["speculative"]["drafted"] == 0
        drafted += together[number]["speculative"]["drafted"]
        accepted += together[number]["speculative"]["accepted_mtp"]
    assert drafted > 300
    assert accepted > 100
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    counted = connection.getresponse().read().decode()
    connection.close()
    (line,) = [row for row in counted.splitlines() if "accepted" in row and "mtp" in row and not row.startswith("#")]
    assert float(line.split()[-1]) >= accepted


def test_thinking_is_split_off_and_on_by_default(port: int) -> None:
    for number in range(3):
        on, off, silent = (ask(port, number, thinking=thinking, max_tokens=200) for thinking in (True, False, None))
        assert on["token_sha"] == silent["token_sha"], "the template thinks unless told otherwise"
        assert on["choices"][0]["message"]["reasoning_content"]
        assert not off["choices"][0]["message"].get("reasoning_content")
        for reply in (on, off):
            message = reply["choices"][0]["message"]
            assert "think>" not in (message["content"] or "") + (message.get("reasoning_content") or "")
            assert "<|im_" not in (message["content"] or "")
