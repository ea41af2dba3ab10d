"""A server for the memory test that takes exactly as much memory as it is told; run as a program, standard library alone."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--window", type=int, required=True)
parser.add_argument("--touch-mib", type=int, default=0)
parser.add_argument("--per-window-mib", type=float, default=0.0, help="for each 1024 tokens of the window")
parser.add_argument("--map", default="")
parser.add_argument("--refuse-at", type=int, default=0, help="ends at start with a window of this size")
parser.add_argument("--die-at", type=int, default=0, help="dies of the long prompt with a window of this size")
parser.add_argument("--leak-mib", type=int, default=0, help="a child that outlives the server holds this, and lets it go slowly")
parser.add_argument("--grow", action="store_true", help="takes more and more memory while it reads the prompt")
parser.add_argument("--says", default="It is about pumps.")
parser.add_argument("--reads", type=int, default=0, help="reports so many prompt tokens fewer")
options = parser.parse_args()
TEMPLATE = 7
MIB = 1 << 20


def touched(mib: float) -> mmap.mmap | None:
    """Anonymous memory with every page faulted in for writing."""
    if mib <= 0:
        return None
    return mmap.mmap(-1, int(mib * MIB), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)


LEAK = """
import mmap, os, sys, time
held = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, len(held), 4096):
    held[page] = 1
parent = int(sys.argv[2])
while os.path.exists(f"/proc/{parent}"):
    time.sleep(0.05)
for step in range(30):
    time.sleep(0.1)
    held.madvise(mmap.MADV_DONTNEED, len(held) // 30 * step // 4096 * 4096, len(held) // 30 // 4096 * 4096)
"""


def count(text: str) -> int:
    return len(re.findall(r"\n|[^\s]+", text))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer({"object": "list", "data": [{"id": "stub", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/tokenize"):
            self.answer({"count": count(body.get("content") or body.get("prompt") or body.get("text") or "")})
            return
        prompt = sum(count(message["content"]) for message in body["messages"]) + TEMPLATE - options.reads
        if options.die_at == options.window:
            sys.stdout.write("out of memory: cannot allocate the cache\n")
            sys.stdout.flush()
            os._exit(137)
        held = []
        for _ in range(2_000 if options.grow else 0):
            held.append(touched(16))
            time.sleep(0.02)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        choice = {"index": 0, "delta": {"role": "assistant", "content": options.says}, "finish_reason": None}
        end = {"index": 0, "delta": {}, "finish_reason": "stop"}
        usage = {"prompt_tokens": prompt, "completion_tokens": 4, "total_tokens": prompt + 4}
        timings = {"prompt_s": 0.5, "decode_s": 0.1, "tokens_per_s": 40.0, "cached_tokens": 0}
        for data in ({"choices": [choice]}, {"choices": [end]}, {"choices": [], "usage": usage, "timings": timings}):
            self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


if options.refuse_at == options.window:
    sys.stderr.write(f"window {options.window} does not fit: 3.2 GiB more are needed\n")
    sys.exit(3)
kept = [touched(options.touch_mib), touched(options.per_window_mib * options.window / 1024)]
if options.map:
    file = open(options.map, "rb")  # noqa: SIM115
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    total = sum(mapped[page] for page in range(0, len(mapped), mmap.PAGESIZE))
if options.leak_mib:
    command = [sys.executable, "-c", LEAK, str(options.leak_mib), str(os.getpid())]
    subprocess.Popen(command, start_new_session=True)
    time.sleep(0.5)
ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
