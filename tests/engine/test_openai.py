"""The official openai package against a real `homestretch serve` process over a socket: a tiny model, and the embedded default."""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

import homestretch.engine.store as store
from homestretch.engine.config import ServeOptions
from homestretch.engine.errors import SetupError
from homestretch.engine.server import start

HYBRID = str(Path(store.__file__).parent / "models" / "hybrid-10m")


@dataclass
class Process:
    """A running server, its log so far, and a client."""

    running: subprocess.Popen[str]
    log: list[str]
    url: str
    client: openai.OpenAI


@contextmanager
def served(*arguments: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "homestretch", "serve", *arguments, "--port", "0", "--threads", "1"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log: list[str] = []

    def read() -> None:
        for row in running.stderr or ():
            log.append(row.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + 150
        while not (ready := [row for row in log if row.startswith("ready: ")]):
            assert running.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.02)
        url = ready[0].split()[1]
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
            yield Process(running, log, url, client)
        running.send_signal(signal.SIGTERM)
        assert running.wait(15) == 0
        reader.join(5)
        assert log[-1] == "stopped"
        assert not [row for row in log if "Traceback" in row], log
    finally:
        running.kill()
        running.wait()
        if running.stderr:
            reader.join(5)
            running.stderr.close()


@pytest.fixture(scope="module")
def tiny() -> Iterator[Process]:
    with served(HYBRID, "--name", "tiny") as process:
        yield process


def ask(process: Process, **changes: Any) -> dict[str, Any]:
    return {
        "model": process.client.models.list().data[0].id,
        "messages": [{"role": "user", "content": "Tell me about a list of numbers."}],
        "max_tokens": 24,
        **changes,
    }


def everything(process: Process) -> None:
    """Chat and completion, streamed and not: equal text and usage; a stop string; refusals; a disconnect; two at once."""
    client = process.client
    off = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    plain = client.chat.completions.create(**ask(process, **off))
    with client.chat.completions.create(**ask(process, **off, stream=True, stream_options={"include_usage": True})) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert text
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert plain.usage is not None
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["token_sha"] == (plain.model_extra or {})["token_sha"]

    line = {"model": ask(process)["model"], "prompt": "Once upon a time", "max_tokens": 20}
    whole = client.completions.create(**line)
    with client.completions.create(**line, stream=True, stream_options={"include_usage": True}) as parts:
        pieces = list(parts)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.choices[0].text
    assert pieces[-1].usage is not None
    assert whole.usage is not None
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens

    words = whole.choices[0].text
    stop = words[len(words) // 2 :][:4]
    stopped = client.completions.create(**line, stop=stop)
    assert stopped.choices[0].text == words[: words.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"

    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**ask(process, messages=[{"role": "user", "content": "so on " * 20_000}]))
    assert refused.value.code == "context_length_exceeded"
    for temperature in (-1, 7, "warm", True):
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(**ask(process, temperature=temperature, stream=True))
        assert bad.value.param == "temperature"

    gone = client.chat.completions.create(**ask(process, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}))
    next(iter(gone))
    gone.close()
    began = time.monotonic()
    again = client.chat.completions.create(**ask(process, **off))
    assert again.choices[0].message.content == plain.choices[0].message.content
    assert time.monotonic() - began < 20

    asks = [
        ask(process, **off, seed=1),
        ask(process, **off, seed=2, temperature=0.7, messages=[{"role": "user", "content": "Sing!"}]),
    ]
    alone = [client.chat.completions.create(**each).choices[0].message.content for each in asks]
    both: dict[int, str | None] = {}

    def one(i: int) -> None:
        both[i] = client.chat.completions.create(**asks[i]).choices[0].message.content

    threads = [threading.Thread(target=one, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [both[0], both[1]] == alone


def test_the_openai_package_on_a_tiny_model(tiny: Process) -> None:
    everything(tiny)
    line = next(row for row in tiny.log if row.startswith("homestretch "))
    assert re.fullmatch(
        r"homestretch \S+: tiny on \S+( \(\w+\))?, window 4,096 tokens, 8 streams at once, drafts: MTP \+ copies, "
        r"model \d+\.\d\d GiB, \d+\.\d\d GiB a stream, \d+\.\d\d GiB left, prompt cache 1\.00 GiB",
        line,
    )


def test_draft_false_is_the_same_reply(tiny: Process) -> None:
    for thinking in (True, False):
        body = {"chat_template_kwargs": {"enable_thinking": thinking}}
        drafted = tiny.client.chat.completions.create(**ask(tiny, max_tokens=60, extra_body=body))
        serial = tiny.client.chat.completions.create(**ask(tiny, max_tokens=60, extra_body={**body, "draft": False}))
        assert (drafted.model_extra or {})["token_sha"] == (serial.model_extra or {})["token_sha"]
        assert (serial.model_extra or {})["speculative"]["drafted"] == 0


def test_the_openai_package_on_the_embedded_model() -> None:
    with served("smollm2-135m") as process:
        everything(process)
        reply = process.client.chat.completions.create(
            model="smollm2-135m",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=30,
        )
        assert "Paris" in (reply.choices[0].message.content or "")


def test_a_port_in_use_is_said_before_weights_are_read() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "homestretch", "serve", HYBRID, "--port", port, "--backend", "reference"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"homestretch serve: port {port} on 127.0.0.1 is in use; ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 5000}, "the model's own window is 4096 tokens"),
        ({"backend": "abacus"}, "allowed: "),
        ({"drafts": ("guess",)}, "allowed: copies, mtp"),
        ({"device": "cuda:9", "backend": "reference"}, "cuda:9"),
        ({"device": "cuda:9"}, "no backend works here"),
        ({"window": 1}, "allowed: 2 to 4096"),
        ({"threads": 100_000}, "--threads 100000: allowed are 1 to"),
        ({"name": "\udcff"}, "give a printable one with --name"),
    ],
)
def test_options_that_cannot_work_are_refused_from_headers(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        start.prepare(Path(HYBRID), ServeOptions(**options))


def test_a_flood_of_connections_is_one_line_in_the_log() -> None:
    log, said = logging.Logger("flooded"), list[str]()
    log.addFilter(start.Seldom())
    written = logging.Handler()
    written.emit = lambda record: said.append(written.format(record))  # type: ignore[method-assign]
    log.addHandler(written)
    for _ in range(1000):
        try:
            raise OSError(24, "Too many open files")
        except OSError as error:
            log.error("socket.accept() out of system resource\nsocket: %s", 3, exc_info=error)
    log.error("something else")
    assert len(said) == 2
    assert "ulimit -n" in said[0]
    assert "\n" not in said[0]


def test_keys_ports_and_memory_that_cannot_work(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("# nothing\n", encoding="utf-8")
    for file, words in (("/nowhere/keys", "cannot be read"), (str(tmp_path / "none"), "holds no key")):
        with pytest.raises(SetupError, match=words):
            start.reader(start.prepare(Path(HYBRID), ServeOptions(backend="reference", api_key_file=file)))
    for port, words in ((70_000, "0 .any free one. to 65535"), (-1, "0 .any free one. to 65535")):
        with pytest.raises(SetupError, match=words):
            start.bind("127.0.0.1", port)
    with pytest.raises(SetupError, match=r"cannot listen on 203\.0\.113\.7"):
        start.bind("203.0.113.7", 0)
    tight = start.prepare(Path(HYBRID), ServeOptions(backend="reference", memory_bytes=50 << 20, prompt_cache_bytes=0))
    core, _ = start.make_core(tight)
    with pytest.raises(SetupError, match=r"fit|free"):
        core.start()


def test_the_plan_is_printed_from_headers_alone() -> None:
    setup = start.prepare(Path(HYBRID), ServeOptions(backend="reference", memory_bytes=2 << 30))
    text = start.plan_text(setup)
    assert "KV a token                 2.00 KiB, head 1.00 KiB" in text
    assert "in 2.00 GiB: 8 streams at once" in text
    nothing = start.plan_text(start.prepare(Path(HYBRID), ServeOptions(backend="reference", memory_bytes=1 << 20)))
    assert "does not fit: the model needs" in nothing
