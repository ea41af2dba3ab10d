"""The loop: the one thread that owns every stream. Requests come in by queue; events go out through each request's emit."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from homestretch.engine.backends import Backend
from homestretch.engine.core.live import Live
from homestretch.engine.core.options import Counters, Options
from homestretch.engine.core.streams import Streams
from homestretch.engine.draws import MASK64, prompt_seed
from homestretch.engine.errors import Busy, ContextOverflow, Refused, Unavailable
from homestretch.engine.types import Request

log = logging.getLogger(__name__)

SHOW_S = 0.02
"""How old shown counters may be while the core works."""

Order = tuple[str, Request | str | None]


class Core:
    """Serves requests on a backend. Every method may be called from any thread.

    load: makes the backend and reads its weights, on the core's own thread; it returns the backend, the options (which may
    depend on the memory that was left), and whether the model has a head.
    """

    def __init__(self, load: Callable[[], tuple[Backend, Options, bool]]) -> None:
        self._load = load
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._counters = Counters()
        self._shown_at = 0.0
        self._stopping = False
        self._options: Options | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, progress: Callable[[float], None] | None = None) -> Options:
        """Load and begin to serve. Calls `progress` with the seconds so far twice a second; raises what loading raised."""
        began = time.monotonic()
        self._thread.start()
        while not self._ready.wait(0.5):
            if progress is not None:
                progress(time.monotonic() - began)
        if self._failed is not None:
            raise self._failed
        if self._options is None:
            raise Unavailable("the engine did not start")
        return self._options

    @property
    def alive(self) -> bool:
        return self._ready.is_set() and self._thread.is_alive()

    @property
    def counters(self) -> Counters:
        return self._counters

    def submit(self, request: Request) -> None:
        """Queue a request. ContextOverflow when it can never fit, Busy when the queue is full, Unavailable after `stop`."""
        options = self._options
        if options is None or self._stopping or not self.alive:
            raise Unavailable("the engine is not running")
        check(request, options)
        if self._counters.waiting + self._orders.qsize() >= options.queue:
            raise Busy(f"{options.queue} requests are waiting already; try again later")
        self._orders.put(("submit", request))
        if self._stopping:  # else it stands before the order to stop, and its end will be told
            raise Unavailable("the server stops")

    def cancel(self, id: str) -> None:
        """End a request at the next round. Unknown or finished ids are ignored."""
        self._orders.put(("cancel", id))

    def request_stop(self) -> None:
        """Cancel everything and end the thread at the next round; does not wait for it. A signal's handler may call it."""
        self._stopping = True
        self._orders.put(("stop", None))

    def stop(self, timeout_s: float = 30.0) -> None:
        """Cancel everything and wait for the thread to end."""
        self.request_stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            backend, options, head = self._load()
            streams = Streams(backend, options, head=head)
            self._options = options
            self._counters = streams.counters()
        except BaseException as error:  # noqa: BLE001 - handed to whoever called start
            self._failed = error
            self._ready.set()
            return
        self._ready.set()
        arrivals = 0
        while self._take_orders(streams, arrivals):
            arrivals += 1
            try:
                streams.turn()
            except Exception as error:
                log.error("a turn failed: %s", error, exc_info=error)
                for live in streams.all():
                    streams.fail(live, error)
            self._publish(streams)
        for live in streams.all():
            streams.finish(live, "cancelled")
        self._counters = streams.counters()

    def _publish(self, streams: Streams) -> None:
        """Show the counters: not after every round, which would cost more than it is worth."""
        now = time.monotonic()
        if streams.idle or now >= self._shown_at + SHOW_S:
            self._counters, self._shown_at = streams.counters(), now

    def _take_orders(self, streams: Streams, turn: int) -> bool:
        """Handle what came in; waits when there is nothing to do. False: stop."""
        count = 0
        while streams.idle or not self._orders.empty():
            kind, what = self._orders.get()
            if kind == "stop":
                return False
            if isinstance(what, Request):
                seed = prompt_seed(what.prompt) if what.seed is None else what.seed & MASK64
                streams.queue(Live(what, seed=seed, arrival=turn * 1_000_000 + count))
                count += 1
            else:
                for live in streams.all():
                    live.cancelled = live.cancelled or live.request.id == what
        return True


def check(request: Request, options: Options) -> None:
    """Refuse what can never be served, with the counts. Refused or ContextOverflow."""
    length = len(request.prompt)
    if length == 0:
        raise Refused("the prompt has no tokens; at least one is needed", param="prompt")
    if request.max_tokens < 1:
        raise Refused(f"max_tokens is {request.max_tokens}; at least 1 is needed", param="max_tokens")
    if length + request.max_tokens > options.window:
        left = options.window - length
        fits = f"up to {left} reply tokens would fit" if left > 0 else f"prompts of up to {options.window - 1} tokens fit"
        raise ContextOverflow(
            f"the window holds {options.window} tokens; the prompt has {length} and the reply may have {request.max_tokens}, "
            f"{length + request.max_tokens} in all; {fits}"
        )
