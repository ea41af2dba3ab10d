"""A preview of the site on 127.0.0.1: rebuilds when a setup changes, and tells open pages to reload."""

from __future__ import annotations

import functools
import http.server
import threading
import time
from collections.abc import Callable
from pathlib import Path

from homestretch.lab.errors import WrongUse
from homestretch.lab.publish.filter import Filter
from homestretch.lab.setups import setup_folders
from homestretch.lab.site.build import build, code_stamp, fingerprint

LOOK_S = 1.0
RELOAD = b'<script>new EventSource("/-/changes").onmessage=()=>location.reload()</script></body>'


class Watch:
    """Builds when something changed; `turn` counts the builds, `turned` wakes the pages that wait."""

    def __init__(self, setups: Path, out: Path, what: Filter, say: Callable[[str], None]) -> None:
        self.setups, self.out, self.what, self.say = setups, out, what, say
        self.turn = 0
        self.turned = threading.Condition()
        self._seen = ""

    def look(self) -> bool:
        """Build if anything is different from the last look. True when it built."""
        now = "".join(fingerprint(folder) for folder in setup_folders(self.setups)) + code_stamp(self.what)
        if now == self._seen:
            return False
        self._seen = now
        started = time.perf_counter()
        built = build(self.setups, self.out, what=self.what)
        for name, why in built.refused.items():
            self.say(f"no page for {name}: {why}")
        self.say(f"built {len(built.rebuilt)} of {len(built.pages)} setups in {time.perf_counter() - started:.1f} s")
        with self.turned:
            self.turn += 1
            self.turned.notify_all()
        return True


def handler(watch: Watch) -> type[http.server.SimpleHTTPRequestHandler]:
    """Serves the built files; pages get a line that reloads them after a build."""

    class Pages(http.server.SimpleHTTPRequestHandler):
        extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".jsonl": "text/plain", ".log": "text/plain"}  # noqa: RUF012

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/-/changes":
                self.changes()
                return
            path = Path(self.translate_path(self.path))
            if path.is_dir() and self.path.split("?")[0].endswith("/"):
                path = path / "index.html"
            if path.suffix != ".html" or not path.is_file():
                super().do_GET()
                return
            data = path.read_bytes().replace(b"</body>", RELOAD)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

        def changes(self) -> None:
            """An event stream that speaks once, after the next build."""
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            begun = watch.turn
            try:
                while watch.turn == begun:
                    with watch.turned:
                        watch.turned.wait(timeout=15)
                    self.wfile.write(b": still here\n\n" if watch.turn == begun else b"data: built\n\n")
                    self.wfile.flush()
            except OSError:
                return

    return Pages


def start(
    setups: Path, out: Path, *, port: int, what: Filter, say: Callable[[str], None]
) -> tuple[http.server.ThreadingHTTPServer, Watch]:
    """Bind the server and build once; WrongUse when the port is taken."""
    watch = Watch(setups, out, what, say)
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(handler(watch), directory=str(out)))
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise WrongUse(f"port {port} cannot be used: {why}; give another --port, or 0 for a free one") from error
    server.daemon_threads = True
    watch.look()
    return server, watch


def preview(setups: Path, out: Path, *, port: int, what: Filter, say: Callable[[str], None]) -> None:
    """Serve until interrupted."""
    server, watch = start(setups, out, port=port, what=what, say=say)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say(f"serving {out} at http://127.0.0.1:{server.server_address[1]}/ (stop with Ctrl-C)")
    try:
        while True:
            time.sleep(LOOK_S)
            watch.look()
    finally:
        server.shutdown()
