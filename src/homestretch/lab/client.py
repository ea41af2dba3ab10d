"""The only file that opens a socket: sends a request, stamps every piece right after it is received, parses nothing."""

from __future__ import annotations

import contextlib
import gc
import http.client
import ipaddress
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from homestretch import __version__
from homestretch.lab.errors import ServerFailed, WrongUse

READ_BYTES = 1 << 16
_collector = threading.Lock()
_streams_open = 0


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go. url: the OpenAI base, `http://HOST:PORT/v1`; paths that start with `//` lie at the server's root."""

    url: str
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WrongUse(f"--base-url {self.url!r} is no address of a server; give it like http://127.0.0.1:8080/v1")

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    def path(self, path: str) -> str:
        prefix = urlsplit(self.url).path.rstrip("/")
        return path[1:] if path.startswith("//") else f"{prefix}{path}"

    def local(self) -> bool:
        """Whether the server runs on this machine, so that its process can be told from foreign ones."""
        try:
            addresses = {info[4][0] for info in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)}
        except OSError:
            return False
        return all(ipaddress.ip_address(str(address).split("%")[0]).is_loopback for address in addresses)


@dataclass(kw_only=True)
class Raw:
    """What the wire gave. t0: perf_counter just before the request was sent; pieces: (stamp, bytes) as received, body only.

    error: "" or what went wrong in words: `status 429`, `stalled: …`, `dropped: …`, `refused: …`.
    """

    t0: float = 0.0
    headers_at: float = 0.0
    end: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    error: str = ""

    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def retry_after_s(self) -> float:
        try:
            return max(0.0, float(self.headers.get("retry-after", "0")))
        except ValueError:
            return 0.0


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection and quick thread switches while any stream is open."""
    global _streams_open
    with _collector:
        _streams_open += 1
        if _streams_open == 1:
            gc.collect()
            gc.disable()
            sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        with _collector:
            _streams_open -= 1
            if _streams_open == 0:
                gc.enable()
                sys.setswitchinterval(0.005)


class Connection:
    """One connection, one request: open it and encode the body first, then `exchange` when the barrier falls."""

    def __init__(self, target: Target, *, idle_s: float, total_s: float) -> None:
        self.target, self.total_s = target, total_s
        self._socket: socket.socket | None = None
        self.error = ""
        try:
            plain = socket.create_connection((target.host, target.port), timeout=min(idle_s, 30.0))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.tls:
                plain = ssl.create_default_context().wrap_socket(plain, server_hostname=target.host)
            plain.settimeout(idle_s)
            self._socket = plain
        except OSError as error:
            self.error = f"refused: no connection to {target.host}:{target.port} ({error})"

    def encode(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        """The whole request as bytes, head and body, so that one send carries it."""
        data = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        host = f"[{self.target.host}]" if ":" in self.target.host else self.target.host
        lines = [
            f"{method} {self.target.path(path)} HTTP/1.1",
            f"Host: {host}:{self.target.port}",
            f"User-Agent: homestretch-lab/{__version__}",
            "Accept: text/event-stream, application/json",
            "Connection: close",
        ]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        if self.target.api_key:
            lines.append(f"Authorization: Bearer {self.target.api_key}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + data

    def stop(self) -> None:
        """End an exchange that runs in another thread: what has come stays, its error says that the connection broke."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def exchange(self, request: bytes) -> Raw:
        """Send, then stamp each piece right after it is received, until the body ends, stalls or breaks."""
        raw = Raw()
        if self._socket is None:
            raw.t0 = raw.end = time.perf_counter()
            raw.error = self.error
            return raw
        clock, pieces = time.perf_counter, raw.pieces
        try:
            raw.t0 = clock()
            self._socket.sendall(request)
            response = http.client.HTTPResponse(self._socket, method=request[:4].decode().strip())
            response.begin()
            raw.headers_at = clock()
            raw.status = response.status
            raw.headers = {name.lower(): value for name, value in response.getheaders()}
            read, deadline = response.read1, raw.t0 + self.total_s
            while True:
                piece = read(READ_BYTES)
                stamp = clock()
                if not piece:
                    break
                pieces.append((stamp, piece))
                if stamp > deadline:
                    raw.error = f"stalled: the reply was not complete after {self.total_s:g} s"
                    break
        except TimeoutError:
            raw.error = f"stalled: nothing came for {self._socket.gettimeout():g} s"
        except (http.client.HTTPException, OSError) as error:
            raw.error = f"dropped: the connection broke ({type(error).__name__}{f': {error}' if str(error) else ''})"
        finally:
            raw.end = clock()
            self._socket.close()
        if raw.status and raw.status != 200 and not raw.error:
            raw.error = f"status {raw.status}{_said(raw.body())}"
        return raw


def _said(body: bytes) -> str:
    """The server's own words of an error body, shortened, for the record."""
    try:
        data = json.loads(body)
        error = data.get("error", data) if isinstance(data, dict) else data
        words = error.get("message", "") if isinstance(error, dict) else str(error)
    except ValueError:
        words = body.decode(errors="replace")
    words = " ".join(str(words).split())[:200]
    return f": {words}" if words else ""


def call(target: Target, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0) -> Raw:
    """One plain exchange: POST when there is a body, else GET. Never raises for what the server answers."""
    connection = Connection(target, idle_s=timeout_s, total_s=timeout_s)
    return connection.exchange(connection.encode("GET" if body is None else "POST", path, body))


def call_json(target: Target, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0) -> Any:
    """The JSON a server answers; ServerFailed when it answers none or an error."""
    raw = call(target, path, body, timeout_s=timeout_s)
    if raw.error:
        raise ServerFailed(f"{target.url} {path}: {raw.error}")
    try:
        return json.loads(raw.body())
    except ValueError:
        raise ServerFailed(f"{target.url} {path}: no JSON came back: {raw.body()[:80]!r}") from None


def try_json(target: Target, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0) -> Any:
    """The JSON a server answers, or None where it has no such route."""
    try:
        return call_json(target, path, body, timeout_s=timeout_s)
    except ServerFailed:
        return None
