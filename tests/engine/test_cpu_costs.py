"""What the cpu backend costs beside its speed: load time, memory, and processor time while nobody asks."""

from __future__ import annotations

import json
import subprocess
import sys

from homestretch.engine.store import pull

SCRIPT = """
import json, sys, time
from pathlib import Path
import gguf, numpy, psutil, torch
import homestretch.engine.backends.cpu
from homestretch.engine.backends import find
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.families import build_model
from homestretch.engine.types import Draw, Limits, PromptPiece
backend = find("cpu")()
backend.numerics
process = psutil.Process()
before, started = process.memory_info().rss, time.process_time()
checkpoint = open_checkpoint(Path(sys.argv[1]))
backend.load(build_model(checkpoint), checkpoint, Limits(window=4096, streams=8, threads=2))
load_s = time.process_time() - started
stream = backend.open(None)
backend.reserve(stream, 600)
draw = Draw(seed=1, position=512, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
backend.wait(backend.read(PromptPiece(stream=stream, start=0, tokens=tuple(range(5, 517)), draw=draw)))
grown = process.memory_info().rss - before
time.sleep(0.5)
started = time.process_time()
time.sleep(1.5)
print(json.dumps({"load_s": load_s, "grown": grown, "idle_s": time.process_time() - started}))
"""


def test_load_memory_and_idleness() -> None:
    path = pull("smollm2-135m").path
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["load_s"] < 2.0  # processor time: two threads on an idle machine take less
    assert found["grown"] < 1.6 * path.stat().st_size
    assert found["idle_s"] < 0.05
