"""Plays the guard's scene: a fake server, a measuring run, and for so many seconds a process that burns one core."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import lab_fake

# Ahead of other work where that is permitted, so that the burner really gets its core on a busy machine.
BURN = """
import os, time
try:
    os.nice(-15)
except PermissionError:
    pass
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    pass
"""


def main(folder: Path, burn_s: float) -> None:
    with lab_fake.serving(fake=lab_fake.quick(decode_tokens_per_s=48.0)) as url:
        words = (
            f"measure --base-url {url} --model fake --output {folder} --parts decode --runs 2 --max-tokens 96 --warmups 1".split()
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "homestretch", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        warm = folder / "requests-decode.jsonl"
        deadline = time.monotonic() + 60
        while not warm.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if burn_s:
            subprocess.run([sys.executable, "-c", BURN.format(seconds=burn_s)], check=True)
        process.wait(timeout=120)


main(Path(sys.argv[1]), float(sys.argv[2]))
