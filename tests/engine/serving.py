"""A server in this process on a real socket: hybrid-10m's tokenizer and template, a scripted backend that says what it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from scripted import Scripted, scramble

import homestretch.engine.store as store
from homestretch.engine.config import ServeOptions
from homestretch.engine.core import Core, Options
from homestretch.engine.server.app import app
from homestretch.engine.server.requests import Reader
from homestretch.engine.server.start import Server, bind, prepare, reader

HYBRID = Path(store.__file__).parent / "models" / "hybrid-10m"
START = 3
"""The id of <|im_start|>."""


def reading(template: str | None = None, **options: Any) -> Reader:
    """The reader of hybrid-10m; `template` replaces its chat template."""
    values: dict[str, Any] = {"backend": "reference", "name": "tiny", "window": 2048, **options}
    setup = prepare(HYBRID, ServeOptions(**values))
    if template is not None:
        checkpoint = setup.checkpoint
        checkpoint.text = replace(checkpoint.text, chat_template=template)
    return reader(setup)


class Speaker:
    """A script that says `line` (ids) after a prompt that ends with `after`, whatever was read before, and then ends the reply."""

    def __init__(self, vocab: int, end: int) -> None:
        self.vocab, self.end = vocab, end
        self.line: tuple[int, ...] = ()
        self.after: tuple[int, ...] = ()

    def __call__(self, texts: Sequence[int], digest: bytes) -> np.ndarray:
        logits = scramble(texts, digest, self.vocab)
        if self.line:
            start = next(
                (at for at in range(len(texts), 0, -1) if tuple(texts[at - len(self.after) : at]) == self.after), len(texts)
            )
            said = len(texts) - start
            logits[self.line[said] if said < len(self.line) else self.end] += 60.0
        return logits


@contextmanager
def listening(read: Reader, core: Core) -> Iterator[int]:
    """The port of a server that runs while the block does."""
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(app(read, core), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2)
    server = Server(config, core)
    server.capture_signals = lambda: _nothing()  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.005)
    try:
        yield listener.getsockname()[1]
    finally:
        core.stop()
        server.should_exit = True
        thread.join(10)
        listener.close()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


class Talk:
    """A running scripted server and what a test wants of it."""

    def __init__(self, port: int, read: Reader, backend: Scripted, speaker: Speaker, core: Core) -> None:
        self.port, self.read, self.backend, self.speaker, self.core = port, read, backend, speaker, core

    def says(self, text: str, messages: Sequence[Any] | None = None, **options: Any) -> None:
        """From now on every reply is `text` (control tokens meant), then the end token."""
        self.speaker.line = self.read.tokenizer.encode(text, special=True)
        prompt = self.read.template.prompt(messages or [{"role": "user", "content": "x"}], options=options)  # type: ignore[union-attr]
        last = len(prompt.ids) - 1 - prompt.ids[::-1].index(START)
        self.speaker.after = prompt.ids[last:]

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, HTTPResponse]:
        """Status, JSON, response of one request; `body` is JSON or raw bytes."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, raw, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, json.loads(data) if data[:1] in (b"{", b"[") else data, response

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        made = response.status, response.read()
        connection.close()
        return made

    def chat_of(self, messages: Sequence[Any], **body: Any) -> tuple[int, Any]:
        status, made, _ = self.post("/v1/chat/completions", {"messages": messages, **body})
        return status, made

    def chat(self, text: str = "x", **body: Any) -> tuple[int, Any]:
        status, made, _ = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body})
        return status, made

    def stream(self, path: str, body: Any) -> list[Any]:
        """The chunks of a stream, checked to end with [DONE]."""
        status, data, response = self.post(path, {**body, "stream": True})
        assert status == 200, data
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in data.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line[6:]) for line in lines[:-1]]


@contextmanager
def talking(template: str | None = None, *, head: float | None = 0.7, **options: Any) -> Iterator[Talk]:
    read = reading(template, **options)
    speaker = Speaker(read.vocab, end=4)
    backend = Scripted(script=speaker, head=head, vocab=read.vocab)
    made = Options(window=read.options.window, streams=8, prompt_cache_bytes=10**8)
    core = Core(lambda: (backend, made, head is not None))  # type: ignore[arg-type,return-value]
    core.start()
    with listening(read, core) as port:
        yield Talk(port, read, backend, speaker, core)
