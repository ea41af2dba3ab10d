"""A small stand-in of the hub: the listing of a repository and its files, with the faults that a real one can have."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "d9d758fb" + "0" * 32


@dataclass
class Stand:
    """One repository. large: files listed with a SHA-256 (LFS). cut: (file, bytes) after which the connection breaks, once each."""

    files: dict[str, bytes]
    repo: str = "team/tiny"
    commit: str = COMMIT
    large: tuple[str, ...] = (".safetensors", ".gguf", "tokenizer.json")
    listed: dict[str, dict[str, Any]] = field(default_factory=dict)
    cuts: list[tuple[str, int]] = field(default_factory=list)
    ranges: bool = True
    status: int = 200
    requests: list[tuple[str, str]] = field(default_factory=list)

    def siblings(self) -> list[dict[str, Any]]:
        made = []
        for name, data in self.files.items():
            one: dict[str, Any] = {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
            }
            if name.endswith(self.large):
                one["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
                one["blobId"] = "0" * 40
            made.append(one | self.listed.get(name, {}))
        return made

    @contextmanager
    def open(self) -> Iterator[str]:
        """Serve on a free port; the address while the block runs."""
        stand = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                stand.answer(self)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)
        self.requests.append((path, handler.headers.get("Range", "")))
        if path.startswith(f"/api/models/{self.repo}"):
            revision = path.removeprefix(f"/api/models/{self.repo}").removeprefix("/revision/")
            known = revision in ("", "main", self.commit)
            body = json.dumps({"id": self.repo, "sha": self.commit, "siblings": self.siblings()}).encode()
            self._send(handler, self.status if known else 404, body, {} if known else {"X-Error-Code": "RevisionNotFound"})
            return
        file = path.removeprefix(f"/{self.repo}/resolve/{self.commit}/")
        if file not in self.files:
            self._send(handler, 404, b"", {"X-Error-Code": "RepoNotFound" if path.startswith("/api") else "EntryNotFound"})
            return
        self._send_file(handler, file)

    def _send_file(self, handler: BaseHTTPRequestHandler, file: str) -> None:
        data, start = self.files[file], 0
        asked = handler.headers.get("Range", "")
        if asked and self.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first)
            data = data[: int(last) + 1] if last else data
        cut = next((one for one in self.cuts if one[0] == file), None)
        handler.send_response(206 if asked and self.ranges else 200)
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        if cut is None:
            handler.wfile.write(data[start:])
            return
        self.cuts.remove(cut)
        handler.wfile.write(data[start : max(start, cut[1])])
        handler.wfile.flush()
        handler.close_connection = True
        handler.connection.close()

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
