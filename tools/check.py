"""Formatter, linter, strict types, import walls and the map, each run and reported; exit 1 if one fails."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parent.parent
STEPS = {
    "format": [str(BIN / "ruff"), "format", "--check", "--quiet", "src", "tests", "bench", "tools"],
    "lint": [str(BIN / "ruff"), "check", "--quiet", "src", "tests", "bench", "tools"],
    "types": [str(BIN / "mypy"), "--no-error-summary"],
    "walls": [str(BIN / "lint-imports"), "--no-cache"],
    "map": [sys.executable, "tools/map.py", "--check"],
    "commands": [sys.executable, "tools/commands.py", "--check"],
}


def main() -> int:
    failed = []
    for name, command in STEPS.items():
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        print(f"{name:9} {'ok' if done.returncode == 0 else 'FAILED'} ({time.perf_counter() - started:.1f} s)", flush=True)
        if done.returncode:
            print(done.stdout + done.stderr, flush=True)
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}; `{BIN}/ruff format src tests bench tools` and `make map` mend the first and the last")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
