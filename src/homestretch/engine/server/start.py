"""From a checkpoint and options to a running server: refuse early, load with progress, say one start line, serve, stop cleanly."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn

import homestretch
from homestretch.engine import backends
from homestretch.engine.backends import Backend
from homestretch.engine.backends.planning import without_head
from homestretch.engine.chat import Template
from homestretch.engine.checkpoint import Checkpoint, Weight
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.config import DEFAULT_PROMPT_CACHE_GIB, DEFAULT_WINDOW, SamplingDefaults, ServeOptions, ServerOptions
from homestretch.engine.core import Core, Options
from homestretch.engine.drafts.copies import Copies
from homestretch.engine.errors import SetupError
from homestretch.engine.families import build_model
from homestretch.engine.program import Model
from homestretch.engine.server.app import app
from homestretch.engine.server.requests import Reader
from homestretch.engine.tokenizer import Tokenizer
from homestretch.engine.types import Limits, MemoryPlan

GIB = 1 << 30
SOURCES = ("copies", "mtp")
"""What `--drafts` may name."""
BEST_FIRST = ("cuda", "cpu", "reference")
"""Order in which a backend is chosen when none is named."""

MOST_THREADS = 64
"""Threads that may be asked for on any machine; more only where there are more cores."""

SWITCH_S = 0.0005
"""How long the server's thread may keep the interpreter from the engine's."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything known from headers alone: what will be loaded, and what it will need."""

    checkpoint: Checkpoint
    model: Model
    backend: type[Backend]
    limits: Limits
    options: ServeOptions
    name: str

    @property
    def head(self) -> bool:
        return self.model.head is not None and "mtp" in self.options.drafts


def prepare(path: Path, options: ServeOptions, *, named: str = "") -> Setup:
    """Read headers and refuse what cannot work. SetupError or CheckpointError; no weight is read."""
    unknown = [source for source in options.drafts if source not in SOURCES]
    if unknown:
        raise SetupError(f"--drafts names {unknown[0]!r}; allowed: {', '.join(SOURCES)}, or --no-drafts")
    most = max(MOST_THREADS, os.cpu_count() or 1)
    if not 0 <= options.threads <= most:
        raise SetupError(f"--threads {options.threads}: allowed are 1 to {most}, or 0 for what the backend thinks best")
    checkpoint = open_checkpoint(path, four_bit=options.four_bit)
    model = build_model(checkpoint)
    name = options.name or named or model.name
    if not name.isprintable():
        raise SetupError(f"the name {name!r} holds characters that cannot be printed; give a printable one with --name")
    if "mtp" not in options.drafts:
        model = without_head(model)
    cache = options.prompt_cache_bytes
    limits = Limits(
        window=_window(options.window, model),
        streams=options.streams,
        threads=options.threads,
        memory_bytes=options.memory_bytes,
        prompt_cache_bytes=int(DEFAULT_PROMPT_CACHE_GIB * GIB) if cache is None else cache,
        device=options.device,
    )
    backend = choose_backend(options.backend, options.device, model)
    return Setup(
        checkpoint=checkpoint,
        model=model,
        backend=backend,
        limits=limits,
        options=options,
        name=name,
    )


def _window(wanted: int | None, model: Model) -> int:
    if wanted is None:
        return min(DEFAULT_WINDOW, model.window)
    if wanted == 0:
        return model.window
    if not 1 < wanted <= model.window:
        raise SetupError(
            f"--context {wanted}: the model's own window is {model.window} tokens; allowed: 2 to {model.window}, 0 = its own"
        )
    return wanted


def choose_backend(name: str, device: str, model: Model) -> type[Backend]:
    """The named backend, or the best that works here for this model. SetupError says why not and what would work."""
    here = backends.names()
    if name and name not in here:
        raise SetupError(f"--backend {name!r} is unknown; allowed: {', '.join(here)}")
    reasons = {}
    for each in (name,) if name else [best for best in BEST_FIRST if best in here]:
        try:
            backend = backends.find(each)
            reason = backend.refusal(device) or backend.lacks(model)
        except ImportError as error:
            reason = f"{error}"
        if reason is None:
            return backend
        reasons[each] = reason
    said = "; ".join(f"{each}: {reason}" for each, reason in reasons.items())
    raise SetupError(f"no backend works here: {said}" if not name else f"--backend {said}")


def plan_text(setup: Setup) -> str:
    """What `--plan` prints: memory from headers alone, and how many streams fit."""
    endless = replace(setup.limits, memory_bytes=1 << 60)
    plan = setup.backend().plan(setup.model, endless)
    limits, window = setup.limits, setup.limits.window
    lines = [
        f"{setup.name}: {setup.model.family}, {setup.checkpoint.layout} layout, {setup.backend.name} backend",
        f"model                {plan.model_bytes / GIB:10.3f} GiB ({plan.model_bytes / 1e9:.2f} GB)",
        f"MTP head             {plan.head_bytes / GIB:10.3f} GiB ({plan.head_bytes / 1e9:.2f} GB)",
        f"KV a token           {plan.kv_bytes_per_token / 1024:10.2f} KiB, head {plan.head_kv_bytes_per_token / 1024:.2f} KiB",
        f"state a stream       {plan.state_bytes_per_stream / (1 << 20):10.2f} MiB{_ssm(setup.model)}",
        f"a stream             {plan.stream_bytes / GIB:10.3f} GiB at a window of {window:,} tokens",
        f"prompt cache         {limits.prompt_cache_bytes / GIB:10.3f} GiB",
    ]
    try:
        fits = setup.backend().plan(setup.model, limits)
        room = f"{limits.memory_bytes / GIB:.2f} GiB" if limits.memory_bytes is not None else "this machine's free memory"
        lines.append(f"in {room}: {fits.streams} streams at once, {fits.left_bytes / GIB:.2f} GiB left")
    except SetupError as error:
        lines.append(f"does not fit: {error}")
    return "\n".join(lines)


def _ssm(model: Model) -> str:
    """How much of a stream's state is recurrences, in fp32; the rest is convolutions, and copies where a backend keeps them."""
    held = sum(slot.elements * 4 for slot in model.main.slots if slot.kind == "ssm")
    return f", SSM {held / (1 << 20):.2f} MiB" if held else ""


def start_line(setup: Setup, plan: MemoryPlan) -> str:
    """The one line of a start, in a stable order."""
    drafts = (
        " + ".join({"mtp": "MTP", "copies": "copies"}[source] for source in ("mtp", "copies") if _drafts(setup, source)) or "none"
    )
    device = setup.limits.device or ("cpu" if setup.backend.name in ("cpu", "reference") else setup.backend.name)
    where = device if device == setup.backend.name else f"{device} ({setup.backend.name})"
    return (
        f"homestretch {homestretch.__version__}: {setup.name} on {where}, window {setup.limits.window:,} tokens, "
        f"{plan.streams} streams at once, drafts: {drafts}, model {(plan.model_bytes + plan.head_bytes) / GIB:.2f} GiB, "
        f"{plan.stream_bytes / GIB:.2f} GiB a stream, {plan.left_bytes / GIB:.2f} GiB left, "
        f"prompt cache {plan.prompt_cache_bytes / GIB:.2f} GiB"
    )


def _drafts(setup: Setup, source: str) -> bool:
    return setup.head if source == "mtp" else source in setup.options.drafts


def defaults(setup: Setup) -> SamplingDefaults:
    """What silent requests get: the option, else the model's own generation settings, else neutral values."""
    options, text = setup.options, setup.checkpoint.text
    neutral = SamplingDefaults()

    def first(option: float | None, own: float | None, other: float) -> float:
        return option if option is not None else own if own is not None else other

    return SamplingDefaults(
        temperature=first(options.temperature, text.temperature, neutral.temperature),
        top_p=first(options.top_p, text.top_p, neutral.top_p),
        top_k=int(first(options.top_k, text.top_k, neutral.top_k)),
        min_p=first(options.min_p, text.min_p, neutral.min_p),
        seed=options.seed,
        max_tokens=options.max_tokens,
        thinking=options.thinking,
    )


def reader(setup: Setup) -> Reader:
    """What understands requests. CheckpointError when the tokenizer or the template is damaged."""
    core = setup.checkpoint.tokenizer()
    tokenizer = core if isinstance(core, Tokenizer) else Tokenizer(core)
    text = setup.checkpoint.text
    template = None
    if text.chat_template:
        template = Template(text.chat_template, tokenizer, bos=text.bos_token or "", eos=text.eos_token or "")
    served = ServerOptions(
        name=setup.name,
        window=setup.limits.window,
        defaults=defaults(setup),
        strict=setup.options.strict,
        keys=_keys(setup.options.api_key_file),
    )
    return Reader(options=served, tokenizer=tokenizer, template=template, ends=text.ends, vocab=setup.model.vocab)


def _keys(file: str) -> frozenset[str]:
    if not file:
        return frozenset()
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"--api-key-file {file} cannot be read: {error}") from None
    keys = frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise SetupError(f"--api-key-file {file} holds no key; write one a line")
    return keys


def make_core(setup: Setup) -> tuple[Core, list[MemoryPlan]]:
    """A core that loads the setup when it is started, and where it puts the memory plan then."""
    plans: list[MemoryPlan] = []

    def load() -> tuple[Backend, Options, bool]:
        backend = setup.backend()
        plan = backend.plan(setup.model, setup.limits)
        backend.load(setup.model, setup.checkpoint, setup.limits)
        plans.append(plan)
        options = Options(
            window=setup.limits.window,
            streams=plan.streams,
            sources={"copies": Copies} if "copies" in setup.options.drafts else {},
            head=setup.head,
            prompt_cache_bytes=setup.limits.prompt_cache_bytes,
        )
        return backend, options, setup.model.head is not None

    return Core(load), plans


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. SetupError explains a port or an address that cannot be had."""
    if not 0 <= port <= 65535:
        raise SetupError(f"--port {port}: allowed are 0 (any free one) to 65535")
    made = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        if made is not None:
            made.close()
        if error.errno == errno.EADDRINUSE:
            raise SetupError(f"port {port} on {host} is in use; stop what listens there, or choose another with --port") from None
        if error.errno == errno.EACCES:
            raise SetupError(f"port {port} needs special rights; choose one above 1023 with --port") from None
        raise SetupError(f"cannot listen on {host}:{port}: {error}") from None
    return made


class Server(uvicorn.Server):
    """A uvicorn server that ends running replies first when it is told to stop, and leaves quietly."""

    def __init__(self, config: uvicorn.Config, core: Core) -> None:
        super().__init__(config)
        self._core = core

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._core.request_stop()
        super().handle_exit(sig, frame)


class Seldom(logging.Filter):
    """Of the failures to take a connection for want of descriptors, thousands a second, one short line in ten seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if "out of system resource" not in record.getMessage():
            return True
        if time.monotonic() < self._next_s:
            return False
        self._next_s = time.monotonic() + 10.0
        record.msg, record.args = (
            "no file descriptor is left for a new connection: it waits; `ulimit -n` says how many there are",
            (),
        )
        record.exc_info = record.exc_text = None
        return True


def serve(setup: Setup, say: Say) -> None:
    """Load and serve until SIGINT or SIGTERM. Everything a person should read goes through `say`."""
    reading = reader(setup)
    listener = bind(setup.options.host, setup.options.port)
    with contextlib.closing(listener):
        for note in setup.checkpoint.notes:
            say(note)
        logging.getLogger("asyncio").addFilter(Seldom())
        sys.setswitchinterval(SWITCH_S)
        counted = Counted(setup.checkpoint)
        core, plans = make_core(replace(setup, checkpoint=cast(Checkpoint, counted)))
        began = time.monotonic()
        say(f"loading {setup.name} ({setup.checkpoint.path.name}) on the {setup.backend.name} backend ...")
        core.start(_Progress(say, counted))
        say(f"loaded in {time.monotonic() - began:.1f} s")
        say(start_line(setup, plans[0]))
        listener.listen(1024)  # from here on nobody is turned away; the first requests wait for the loop to start
        host, port = listener.getsockname()[:2]
        say(f"ready: http://{f'[{host}]' if ':' in host else host}:{port}/v1 (stop with Ctrl-C)")
        config = uvicorn.Config(
            app(reading, core),
            log_level="warning",
            ws="none",
            access_log=False,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=75,
            lifespan="off",
        )
        try:
            Server(config, core).run(sockets=[listener])
        finally:
            core.stop()
            say("stopped")


class Counted:
    """A checkpoint that knows how many of its bytes were read."""

    def __init__(self, inner: Checkpoint) -> None:
        self._inner = inner
        self._sizes = {name: spec.stored_bytes for name, spec in inner.specs.items()}
        self._read: set[str] = set()
        self._done = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, name: str) -> Weight:
        if name not in self._read:
            self._read.add(name)
            self._done += self._sizes.get(name, 0)
        return self._inner.read(name)

    @property
    def part(self) -> float:
        """Bytes read of all, 0 to 1."""
        return self._done / max(1, sum(self._sizes.values()))


class _Progress:
    """A word every two seconds while weights are read: how far, and how long still."""

    def __init__(self, say: Say, checkpoint: Counted) -> None:
        self._say, self._checkpoint, self._next_s = say, checkpoint, 2.0

    def __call__(self, seconds: float) -> None:
        if seconds < self._next_s:
            return
        part = self._checkpoint.part
        left = f", about {seconds / part * (1 - part):.0f} s left" if 0.02 < part < 1 else ""
        self._say(f"loading: {part:.0%} of the weights read, {seconds:.0f} s so far{left}")
        self._next_s = seconds + 2.0
