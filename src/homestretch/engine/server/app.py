"""The routes. Every refusal is OpenAI's error shape; a client that goes away frees its place at the next round."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from homestretch.engine.core import Core
from homestretch.engine.errors import NotFound, Refused, TooBig, Unauthorized, Unavailable
from homestretch.engine.server import metrics
from homestretch.engine.server.openapi import document
from homestretch.engine.server.replies import Replies
from homestretch.engine.server.requests import Job, Reader
from homestretch.engine.server.schema import Body, ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest, parse
from homestretch.engine.types import Event

log = logging.getLogger(__name__)

Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]

QUIET_S = 10.0
"""A stream whose first token takes longer opens nevertheless, and says so in a comment as often, lest somebody hang up."""

MOST_SAID = 2000
"""Characters of an error's message."""

GONE = -1
"""In a channel: the client has gone."""


def app(reader: Reader, core: Core) -> Starlette:
    """The ASGI application for one model."""
    routes = Routes(reader, core)
    return Starlette(
        routes=[
            Route("/health", guarded(routes.health)),
            Route("/metrics", guarded(routes.metrics, reader)),
            Route("/openapi.json", guarded(routes.openapi)),
            Route("/v1/models", guarded(routes.models, reader)),
            Route("/v1/models/{name:path}", guarded(routes.model, reader)),
            Route("/v1/chat/completions", guarded(routes.chat, reader), methods=["POST"]),
            Route("/v1/completions", guarded(routes.completions, reader), methods=["POST"]),
            Route("/tokenize", guarded(routes.tokenize, reader), methods=["POST"]),
            Route("/detokenize", guarded(routes.detokenize, reader), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error},
    )


def guarded(handler: Handler, reader: Reader | None = None) -> Handler:
    """A handler whose failures are answers, and which asks for a key when the server has some."""

    async def handle(request: Request) -> Response:
        try:
            if reader is not None:
                _authorize(request, reader.options.keys)
            return await handler(request)
        except Refused as error:
            return refusal(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except asyncio.CancelledError:  # only the end of the server cancels a handler: what still sent its body hears of it
            return refusal(Unavailable("the server stops"))
        except Exception as error:
            log.error("%s %s failed: %s", request.method, request.url.path, error, exc_info=error)
            return failure(f"{type(error).__name__}: {error}")

    return handle


class Routes:
    """One method a route."""

    def __init__(self, reader: Reader, core: Core) -> None:
        self._reader, self._core, self._since = reader, core, int(time.time())

    async def health(self, request: Request) -> Response:
        if not self._core.alive:
            raise Unavailable("the engine has stopped")
        counters = self._core.counters
        return answer({"status": "ok", "running": counters.running, "waiting": counters.waiting})

    async def metrics(self, request: Request) -> Response:
        return Response(metrics.render(self._core.counters), media_type=metrics.TYPE)

    async def openapi(self, request: Request) -> Response:
        return answer(document())

    async def models(self, request: Request) -> Response:
        return answer({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._reader.options.name:
            raise _no_model(name, self._reader.options.name)
        return answer(self._model())

    def _model(self) -> Json:
        options = self._reader.options
        return {
            "id": options.name,
            "object": "model",
            "created": self._since,
            "owned_by": "homestretch",
            "max_model_len": options.window,
        }

    async def chat(self, request: Request) -> Response:
        body, raw, unknown = await self._body(request, ChatRequest)
        job = await asyncio.to_thread(self._reader.chat, f"chatcmpl-{uuid.uuid4().hex}", body, raw)
        return await self._run(request, job, unknown)

    async def completions(self, request: Request) -> Response:
        body, _, unknown = await self._body(request, CompletionRequest)
        job = await asyncio.to_thread(self._reader.completion, f"cmpl-{uuid.uuid4().hex}", body)
        return await self._run(request, job, unknown)

    async def tokenize(self, request: Request) -> Response:
        body, raw, unknown = await self._body(request, TokenizeRequest)
        if (body.prompt is None) == (body.messages is None):
            raise Refused("tokenize needs either prompt or messages", param="prompt")
        ids = await asyncio.to_thread(self._ids, body, raw)
        made: Json = {"count": len(ids), "max_model_len": self._reader.options.window, "tokens": list(ids)}
        if body.return_token_strs:
            made["token_strs"] = [self._reader.tokenizer.bytes_of(token).decode("utf-8", "replace") for token in ids]
        return answer(made, unknown)

    def _ids(self, body: TokenizeRequest, raw: Json) -> tuple[int, ...]:
        if body.messages is not None:
            return self._reader.render(body.messages, raw["messages"], raw.get("tools") or [], body.chat_template_kwargs).ids
        return self._reader.encode(body.prompt or "", around=body.add_special_tokens is not False)

    async def detokenize(self, request: Request) -> Response:
        body, _, unknown = await self._body(request, DetokenizeRequest)
        bad = next((token for token in body.tokens if token >= self._reader.vocab), None)
        if bad is not None:
            raise Refused(f"token id {bad} is outside the vocabulary; allowed: 0 to {self._reader.vocab - 1}", param="tokens")
        text = await asyncio.to_thread(self._reader.tokenizer.decode, body.tokens, special=True)
        return answer({"prompt": text}, unknown)

    async def _body(self, request: Request, kind: type[Body]) -> tuple[Body, Json, tuple[str, ...]]:
        """The parsed body, however it was sent; refused when it is larger than allowed."""
        most = self._reader.options.body_bytes
        parts, size = [], 0
        said = request.headers.get("content-length", "")
        if said.isascii() and said.isdigit() and len(said) < 20 and int(said) > 2 * most:
            raise TooBig(f"the body has {said} bytes; allowed: {most}")
        async for part in request.stream():
            size += len(part)
            if size <= most:
                parts.append(part)
            elif size > 2 * most:
                break
            else:  # the rest is thrown away: a client that still sends would see a reset instead of the answer
                parts.clear()
        if size > most:
            raise TooBig(f"the body has more than {most} bytes")
        body, raw, unknown = parse(b"".join(parts), kind)
        if unknown and self._reader.options.strict:
            raise Refused(
                f"unknown field {unknown[0]!r}; this server runs with --strict and refuses what it does not know", param=unknown[0]
            )
        if unknown:
            log.warning("%s: ignored unknown fields: %s", request.url.path, _printable(unknown))
        return body, raw, unknown

    async def _run(self, request: Request, job: Job, unknown: tuple[str, ...]) -> Response:
        """Run a job to its end, or hand out its stream once the first token is there or was long in coming."""
        channel = Channel(self._core)
        watcher = asyncio.create_task(channel.watch(request.receive))
        handed_over = False
        try:
            channel.submit(self._reader, job)
            replies = Replies(job, self._reader.tokenizer, self._reader.options.name)
            if job.body.stream:
                first = await channel.soon(QUIET_S)
                if first is not None and _over(first[1]):
                    return _failed(first[1])
                handed_over = True
                return Stream(channel, watcher, replies, first, _warning(unknown))
            events = [await channel.next()]
            while not channel.done and not _over(events[-1][1]):
                events.append(await channel.next())
            if _over(events[-1][1]):
                return _failed(events[-1][1])
            return answer(replies.whole(events), unknown)
        finally:
            if not handed_over:
                watcher.cancel()
                channel.close()


class Channel:
    """The events of a job on their way from the engine's thread to the server's loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()
        self._open: dict[int, str] = {}

    @property
    def done(self) -> bool:
        return not self._open

    def submit(self, reader: Reader, job: Job) -> None:
        for index, request in enumerate(reader.requests(job, self._put)):
            self._core.submit(request)
            self._open[index] = request.id

    def _put(self, index: int, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, event))

    async def next(self) -> tuple[int, Event]:
        """The next event of any choice. ClientDisconnect when the client has gone."""
        index, event = await self._queue.get()
        if event is None:
            raise ClientDisconnect
        if event.summary is not None:
            self._open.pop(index, None)
        return index, event

    async def soon(self, seconds: float) -> tuple[int, Event] | None:
        """`next`, or None when nothing has come for so long."""
        try:
            async with asyncio.timeout(seconds):
                return await self.next()
        except TimeoutError:
            return None

    async def watch(self, receive: Receive) -> None:
        """Wait until the client has gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._queue.put_nowait((GONE, None))

    def close(self) -> None:
        """Cancel what still runs."""
        for id in self._open.values():
            self._core.cancel(id)
        self._open.clear()


class Stream(Response):
    """Server-sent events of a job, from its first event on, or from before it when the prompt is long."""

    def __init__(
        self,
        channel: Channel,
        watcher: asyncio.Task[None],
        replies: Replies,
        first: tuple[int, Event] | None,
        headers: dict[str, str],
    ) -> None:
        super().__init__(
            headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._channel, self._watcher, self._replies, self._first = channel, watcher, replies, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            first = self._first
            while first is None:
                await send({"type": "http.response.body", "body": b": the prompt is being read\n\n", "more_body": True})
                first = await self._channel.soon(QUIET_S)
            index, event = first
            while True:
                await send({"type": "http.response.body", "body": self._encoded(index, event), "more_body": True})
                if self._channel.done:
                    break
                index, event = await self._channel.next()
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        except (ClientDisconnect, OSError):
            log.info("the client of %s has gone", self._replies.job.id)
        finally:
            self._watcher.cancel()
            self._channel.close()

    def _encoded(self, index: int, event: Event) -> bytes:
        if event.summary is not None and _over(event):
            self._channel.close()
            return b"data: " + msgspec.json.encode(error_body(event.summary.error or "the server stops", "server_error")) + b"\n\n"
        return b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in self._replies.chunks(index, event))


def answer(body: Json, unknown: tuple[str, ...] = ()) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json", headers=_warning(unknown))


def error_body(message: str, type: str, *, param: str | None = None, code: str | None = None) -> Json:
    """OpenAI's error shape. What a client sent is cut where it is long; nothing in it keeps the error from being sent."""
    message = message.encode("utf-8", "backslashreplace").decode()
    if len(message) > MOST_SAID:
        message = f"{message[: MOST_SAID - 400]} … {message[-400:]}"
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def refusal(error: Refused) -> Response:
    body = error_body(error.message, error.type, param=error.param, code=error.code)
    return Response(msgspec.json.encode(body), status_code=error.status, media_type="application/json")


def failure(message: str) -> Response:
    return Response(msgspec.json.encode(error_body(message, "server_error")), status_code=500, media_type="application/json")


def _over(event: Event) -> bool:
    """Whether a reply ended without being one."""
    return event.summary is not None and event.summary.finish in ("error", "cancelled")


def _failed(event: Event) -> Response:
    summary = event.summary
    if summary is None or summary.finish == "cancelled":
        return refusal(Unavailable("the server stops"))
    return failure(summary.error)


def _warning(unknown: tuple[str, ...]) -> dict[str, str]:
    """A header that names ignored fields."""
    return {"x-homestretch-warning": f"ignored unknown fields: {_printable(unknown)}"} if unknown else {}


def _printable(names: tuple[str, ...]) -> str:
    """Names for a header or a log: printable ASCII, cut where a client sent too much."""
    return ", ".join("".join(c if " " <= c <= "~" else "?" for c in name)[:60] for name in names[:20])


def _authorize(request: Request, keys: frozenset[str]) -> None:
    if not keys:
        return
    given = request.headers.get("authorization", "")
    token = given[7:].strip() if given[:7].lower() == "bearer " else ""
    sent = token.encode("latin-1")  # the bytes of a header, which HTTP reads as Latin-1
    if not any(hmac.compare_digest(sent, key.encode()) for key in keys):
        raise Unauthorized("this server wants a key: send `Authorization: Bearer KEY`", code="invalid_api_key")


def _no_model(name: str, here: str) -> NotFound:
    return NotFound(f"there is no model {name!r} here; this server has {here!r}", param="model", code="model_not_found")


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = {404: f"there is no route {request.url.path}", 405: f"{request.method} is not allowed on {request.url.path}"}
    body = error_body(what.get(status, str(error)), "invalid_request_error")
    headers = error.headers if isinstance(error, HTTPException) else None
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json", headers=headers)
