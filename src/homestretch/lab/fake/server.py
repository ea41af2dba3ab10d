"""The HTTP side of `fake`: OpenAI routes, /tokenize, slots with a queue, a prompt cache, faults, and its truth at /fake/truth."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Any

from homestretch.lab.fake import words
from homestretch.lab.fake.behaviour import PRESETS, Behaviour, FakeReply
from homestretch.lab.fake.script import Script, write
from homestretch.lab.fake.sender import Sender, Sending

KEPT_PROMPTS = 32
KEPT_TRUTHS = 4096
ARRIVING_S = 0.003


class Lane:
    """What one behaviour remembers: its slots, its prompts, and how many long requests it has had."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.slots = threading.Semaphore(behaviour.slots)
        self.prompts: deque[list[str]] = deque(maxlen=KEPT_PROMPTS)
        self.lock = threading.Lock()
        self.long = 0
        self.faulted = 0

    def number(self, body: dict[str, Any]) -> int:
        """1, 2, 3 … for requests of more than 64 tokens, 0 for short ones (probes, calibration)."""
        if int(body.get("max_tokens") or 256) <= 64:
            return 0
        with self.lock:
            self.long += 1
            return self.long

    def cached(self, prompt: list[str]) -> int:
        """Tokens of the prompt that are kept already; at least the last one is always read."""
        if self.behaviour.cache == "none":
            return 0
        with self.lock:
            known = max((words.common_prefix(prompt, kept) for kept in self.prompts), default=0)
            self.prompts.append(prompt)
        return min(known, len(prompt) - 1)

    def fault(self, number: int) -> str:
        behaviour = self.behaviour
        if not behaviour.fault or number == 0:
            return ""
        with self.lock:
            if self.faulted >= behaviour.faults:
                return ""
            self.faulted += 1
        return behaviour.fault


class FakeServer:
    """Serves until `close`. behaviours: model name -> behaviour; answers: said in place of babble, the first match speaks."""

    def __init__(
        self,
        behaviours: Mapping[str, Behaviour] | None = None,
        *,
        port: int = 0,
        answers: tuple[FakeReply, ...] = (),
    ) -> None:
        named = dict(behaviours) if behaviours is not None else {f"fake-{name}": preset for name, preset in PRESETS.items()}
        if behaviours is None:
            named = {"fake": PRESETS["single"], **named}
        self.lanes = {name: Lane(behaviour) for name, behaviour in named.items()}
        self.answers = answers
        self.sender = Sender()
        self.truths: deque[dict[str, Any]] = deque(maxlen=KEPT_TRUTHS)
        self.open = 0
        self.received = 0.0
        self.changed = threading.Condition()
        self._http = _Http(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self.sender.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], fake: FakeServer) -> None:
        self.fake = fake
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event worth a traceback."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the truth is at /fake/truth."""

    def do_GET(self) -> None:
        fake = self.server.fake
        path = self.path.split("?")[0]
        if path == "/v1/models":
            data = [{"id": name, "object": "model", "max_model_len": lane.behaviour.window} for name, lane in fake.lanes.items()]
            self._json(200, {"object": "list", "data": data})
        elif path == "/health":
            self._json(200, {"status": "ok"})
        elif path == "/fake/truth":
            with fake.changed:  # a client sees the end of its stream before the truth about it is written down
                fake.changed.wait_for(lambda: fake.open == 0, timeout=5)
            self._json(200, list(fake.truths))
        else:
            self._refuse(404, f"no route {path}", "not_found")

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        except ValueError:
            return self._refuse(400, "the body is no JSON", "invalid_json")
        received = time.perf_counter()
        fake = self.server.fake
        with fake.changed:
            alone = received - fake.received > ARRIVING_S
            fake.received = received
        if not alone:  # others arrive at the same time: let their stamps be taken before this thread works on its reply
            time.sleep(ARRIVING_S)
        lane = fake.lanes.get(str(body.get("model", ""))) or (next(iter(fake.lanes.values())) if not body.get("model") else None)
        if lane is None:
            return self._refuse(404, f"no model {body.get('model')!r}; there are: {', '.join(fake.lanes)}", "model_not_found")
        path = self.path.split("?")[0]
        if path in ("/tokenize", "/v1/tokenize") and lane.behaviour.tokenize:
            found = words.tokens(str(body.get("content", body.get("prompt", body.get("text", "")))))
            return self._json(200, {"tokens": list(range(len(found))), "count": len(found)})
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return self._refuse(404, f"no route {path}", "not_found")
        roles = [str(message.get("role")) for message in body.get("messages") or [] if isinstance(message, dict)]
        if any(role in lane.behaviour.refuses for role in roles):
            return self._refuse(400, "the chat template has no such role", "template_error")
        refused = [name for name in lane.behaviour.refuses if name in body or name in (body.get("stream_options") or {})]
        if refused:
            return self._refuse(400, f"unknown field {refused[0]}", "unknown_field")
        self._complete(lane, body, received)

    def _complete(self, lane: Lane, body: dict[str, Any], received: float) -> None:
        fake, behaviour = self.server.fake, lane.behaviour
        prompt = words.prompt_tokens(body)
        limit = int(body.get("max_tokens") or 256)
        if len(prompt) + limit > behaviour.window:
            said = f"prompt of {len(prompt)} tokens and reply of {limit} do not fit into the window of {behaviour.window}"
            return self._refuse(400, said, "context_length_exceeded")
        number = lane.number(body)
        fault = lane.fault(number)
        if fault in ("429", "503"):
            return self._refuse(int(fault), "too many requests" if fault == "429" else "not ready", "busy", {"Retry-After": "1"})
        with lane.slots:
            started = time.perf_counter()
            cached = lane.cached(prompt)
            script = write(behaviour, body, number, len(prompt), cached, fake.answers)
            if not body.get("stream"):
                time.sleep(max(0.0, started + script.events[-1].at - time.perf_counter()))
                return self._json(200, _plain(body, script, behaviour))
            if fault == "refuse":
                self.close_connection = True
                self.connection.close()
                return
            with fake.changed:
                fake.open += 1
            sending = self._stream(script, started, fault, behaviour)
        with fake.changed:
            fake.truths.append(_truth(body, script, sending, received, started, len(prompt), cached))
            fake.open -= 1
            fake.changed.notify_all()

    def _stream(self, script: Script, started: float, fault: str, behaviour: Behaviour) -> Sending:
        plan, count, cut = [], 0, False
        for event in script.events:
            data = f"{len(event.data):x}\r\n".encode() + event.data + b"\r\n"
            plan.append((started + event.at, data))
            count += event.tokens
            if fault in ("drop", "stall") and count >= behaviour.fault_after:
                cut = True
                break
        if not cut:
            plan[-1] = (plan[-1][0], plan[-1][1] + b"0\r\n\r\n")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        sending = Sending(socket=self.connection, plan=plan)
        self.server.fake.sender.send(sending)
        if fault == "stall":
            threading.Event().wait(behaviour.stall_s)
        self.close_connection = True
        return sending

    def _json(self, status: int, data: Any, headers: Mapping[str, str] | None = None) -> None:
        encoded = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(encoded)

    def _refuse(self, status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> None:
        self._json(status, {"error": {"message": message, "type": "invalid_request_error", "code": code}}, headers)


def _plain(body: dict[str, Any], script: Script, behaviour: Behaviour) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": script.text}
    if script.reasoning:
        message["reasoning_content"] = script.reasoning
    said = {"message": message} if "messages" in body else {"text": script.text}
    choice = {"index": 0, "finish_reason": script.finish_reason, **said}
    return {
        "id": "fake",
        "object": "chat.completion",
        "model": body.get("model"),
        "choices": [choice],
        **({} if behaviour.usage == "never" else {"usage": script.usage}),
        **script.extras,
    }


def _truth(
    body: dict[str, Any], script: Script, sending: Sending, received: float, started: float, prompt: int, cached: int
) -> dict[str, Any]:
    asked = body.get("messages", body.get("prompt"))
    digest = hashlib.sha256(json.dumps(asked, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
    sent = sending.sent
    events = [[at, event.kind, event.tokens] for at, event in zip(sent, script.events, strict=False)]
    return {
        "prompt_sha256": digest,
        "model": body.get("model"),
        "received": received,
        "started": started,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": script.completion_tokens,
        "events": events,
        "late_s": max((at - due for at, (due, _) in zip(sent, sending.plan, strict=False)), default=0.0),
    }
