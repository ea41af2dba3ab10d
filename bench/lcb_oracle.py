"""Compares our verdicts on programs with those of nvidia-livecodebench, right except where its mock of stdin is not.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install --no-deps nvidia-livecodebench==26.3
    .venv/bin/python bench/lcb_oracle.py /tmp/oracle/lib/python3.11/site-packages

One line a program: our verdict, the oracle's, what a plain run of the program says. Exit 1 when ours is not the plain run's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from homestretch.lab.graders.lcb import LIMITS, Case, judge, program, same_output
from homestretch.lab.sandbox import Limits, open_sandbox

SUMS = [(f"{n}\n" + "\n".join(map(str, range(n))) + "\n", f"{n * (n - 1) // 2}\n") for n in (3, 10, 500)]
PROGRAMS = {
    "input()": "n = int(input())\nprint(sum(int(input()) for _ in range(n)))",
    "read after readline": "import sys\nn = int(sys.stdin.readline())\nprint(sum(map(int, sys.stdin.read().split())))",
    "for line in sys.stdin": "import sys\nv = [int(line) for line in sys.stdin]\nprint(sum(v[1:]))",
    "readlines": "import sys\nv = sys.stdin.readlines()\nprint(sum(map(int, v[1:])))",
    "input = sys.stdin.readline": "import sys\ninput = sys.stdin.readline\n"
    "n = int(input())\nprint(sum(int(input()) for _ in range(n)))",
    "sys.stdin.buffer": "import sys\nv = sys.stdin.buffer.read().split()\nprint(sum(map(int, v[1:])))",
    "buffer.readline": "from sys import stdin\nn = int(stdin.buffer.readline())\n"
    "print(sum(int(stdin.buffer.readline()) for _ in range(n)))",
    "open(0)": "print(sum(map(int, open(0).read().split()[1:])))",
    "threaded main": "import threading\ndef main():\n    n = int(input())\n    print(sum(int(input()) for _ in range(n)))\n"
    "t = threading.Thread(target=main)\nt.start()\nt.join()",
    "main guard": "def main():\n    n = int(input())\n    print(sum(int(input()) for _ in range(n)))\n"
    "if __name__ == '__main__':\n    main()",
    "exit() in the middle": "n = int(input())\nprint(sum(int(input()) for _ in range(n)))\nexit()\nprint('never')",
    "sys.stdout.write": "import sys\nn = int(input())\nsys.stdout.write(str(sum(int(input()) for _ in range(n))))",
    "print to buffer": "import sys\nn = int(input())\nsys.stdout.buffer.write(b'%d' % sum(int(input()) for _ in range(n)))",
    "wrong": "n = int(input())\nprint(n)",
    "float for int": "n = int(input())\nprint(float(sum(int(input()) for _ in range(n))))",
    "off by 1e-9": "n = int(input())\nprint(sum(int(input()) for _ in range(n)) + 1e-9)",
    "extra line": "n = int(input())\nprint(sum(int(input()) for _ in range(n)))\nprint()",
    "extra word": "n = int(input())\nprint(sum(int(input()) for _ in range(n)), 'ok')",
    "crash": "n = int(input())\nprint(n // 0)",
    "syntax error": "print(",
    "nothing": "",
    "slow": "while True: pass",
}  # fmt: skip
ORACLE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("testing_util", sys.argv[1] + "/livecodebench/evaluation/testing_util.py")
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)
given = json.load(sys.stdin)
said = sys.stdout
results, _ = oracle.run_test({"input_output": json.dumps(given["tests"])}, test=given["code"], timeout=2)
said.write(json.dumps([bool(r is True) for r in results]))
"""


def by_oracle(packages: str, code: str) -> bool:
    tests = {"inputs": [given for given, _ in SUMS], "outputs": [expected for _, expected in SUMS], "fn_name": None}
    done = subprocess.run(
        [sys.executable, "-c", ORACLE, packages],
        input=json.dumps({"tests": tests, "code": code}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stdout.strip().splitlines()[-1:] or ["[false]"]
    return last[0] == json.dumps([True] * len(SUMS))


def by_plain_run(code: str) -> bool:
    """A bare interpreter on a real pipe, no sandbox."""
    for given, expected in SUMS:
        try:
            done = subprocess.run([sys.executable, "-c", program(code)], input=given, capture_output=True, text=True, timeout=3)
        except subprocess.TimeoutExpired:
            return False
        if done.returncode or not same_output(done.stdout, expected):
            return False
    return True


def main() -> int:
    packages = sys.argv[1]
    if not Path(packages, "livecodebench").is_dir():
        sys.exit(f"{packages} holds no package livecodebench; install nvidia-livecodebench==26.3 there")
    sandbox = open_sandbox(prove=False)
    cases = [Case(given=given, expected=expected) for given, expected in SUMS]
    quick = Limits(wall_s=3.0, memory_bytes=LIMITS.memory_bytes)
    bad = 0
    for name, code in PROGRAMS.items():
        ours = judge(sandbox, f"```python\n{code}\n```", cases, limits=quick).verdict == "right"
        oracle, plain = by_oracle(packages, code), by_plain_run(code)
        bad += ours != plain
        said = f"ours {ours!s:5}  oracle {oracle!s:5}  plain run {plain!s:5}"
        print(f"{name:28} {said}{'' if ours == oracle else '   <- the oracle differs'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
