"""`make bench`: the cpu backend and its peers side by side on this machine, in turn, and the share of what memory allows.

    .venv/bin/python bench/run.py [--only smol,llama-1b,hybrid] [--rounds 5] [--threads 2] [--seconds 900]

Peers that can be installed are (llama-cpp-python is compiled with clang where there is one; minutes the first time), the others
are named with the reason. Each round asks every contender once for every figure; a figure is the median of the rounds, a ratio
the median of the rounds' ratios. Results: .bench/result.json and a table on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import models
from memory import bandwidth

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / ".bench"
PYTHON = BENCH / "venv" / "bin" / "python"


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def llama_cpp_python() -> str | None:
    """The bench environment with llama-cpp-python; None, with the reason on stderr, where it cannot be built."""
    if PYTHON.exists() and subprocess.run([PYTHON, "-c", "import llama_cpp"], capture_output=True, check=False).returncode == 0:
        return str(PYTHON)
    environment = dict(os.environ, CMAKE_ARGS="-DGGML_NATIVE=ON")
    if shutil.which("clang++"):
        environment |= {"CC": "clang", "CXX": "clang++"}
    else:
        # gcc 12 optimises away the set-up of the matrix tiles.
        environment["CMAKE_ARGS"] += " -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF"
    tell("Building llama-cpp-python, once; this takes minutes ...")
    BENCH.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", BENCH / "venv"], check=True)
    done = subprocess.run(
        [PYTHON, "-m", "pip", "install", "-q", "llama-cpp-python"], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        tell(f"llama-cpp-python could not be built: {done.stderr.strip().splitlines()[-1:]}")
        return None
    return str(PYTHON)


def node_llama_cpp() -> str | None:
    """The folder with the prebuilt node-llama-cpp; None where Node or the package is not to be had."""
    folder = BENCH / "node"
    if not (folder / "node_modules" / "node-llama-cpp").is_dir():
        if not shutil.which("npm"):
            tell("node-llama-cpp left out: no npm here")
            return None
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["npm", "install", "--silent", "node-llama-cpp@3.21.1"], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            tell(f"node-llama-cpp could not be installed: {done.stderr.strip().splitlines()[-1:]}")
            return None
    return str(folder)


class Contender:
    """A worker process, and what it is asked."""

    clock = "elapsed"

    def __init__(self, name: str, kind: str, python: str, *, cwd: str | None = None, **load: Any) -> None:
        self.name = name
        worker = [python, str(Path(__file__).with_name("workers.py")), kind, self.clock]
        if kind == "node":
            worker = ["node", str(Path(__file__).with_name("worker_node.mjs")), self.clock]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
        self.process = subprocess.Popen(
            worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=cwd
        )
        started = time.perf_counter()
        self.about, self.failure = "", ""
        about = self.ask("load", **load)
        self.load_s = time.perf_counter() - started
        self.about = str(about or "")

    def ask(self, do: str, **arguments: Any) -> Any:
        """The worker's answer; None when it fails, the reason in `failure`."""
        if self.process.stdin is None or self.process.stdout is None or self.failure:
            return None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline() or '{"error": "the process ended"}')
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        if "error" in answer:
            self.failure = answer["error"]
            tell(f"  {self.name}: {do} failed: {self.failure}")
        return answer.get("value")

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait(timeout=30)


@dataclass
class Figure:
    """Something asked of every contender: its unit count per answer makes a rate."""

    name: str
    do: str
    arguments: dict[str, Any]
    units: float = 1.0
    only_ours: bool = False
    seconds: dict[str, list[float]] = field(default_factory=dict)


def measure(figures: list[Figure], contenders: list[Contender], rounds: int, budget_s: float) -> None:
    """Rounds of every figure, contenders in turn within a figure; one unmeasured round first; stops when the budget is used up."""
    started = time.monotonic()
    for number in range(rounds + 1):
        for figure in figures:
            for contender in contenders:
                if figure.only_ours and not contender.name.startswith("ours"):
                    continue
                value = contender.ask(figure.do, **figure.arguments)
                if value is not None and number:
                    figure.seconds.setdefault(contender.name, []).append(value)
        tell(f"  round {number} of {rounds}, {time.monotonic() - started:.0f} s")
        if time.monotonic() - started > budget_s and number:
            break


def summarise(figures: list[Figure], base: str, floor_s: float) -> list[dict[str, Any]]:
    """Rates, ratios of `base` to each contender (medians of the rounds' ratios), and the share of the floor of a decoded token."""
    rows = []
    for figure in figures:
        ours = figure.seconds.get(base, [])
        for name, seconds in figure.seconds.items():
            rate = figure.units / statistics.median(seconds)
            ratios = [other / mine for other, mine in zip(seconds, ours, strict=False)]
            rows.append(
                {
                    "figure": figure.name,
                    "contender": name,
                    "per_s": rate,
                    "rounds": len(seconds),
                    "ours_is_times": statistics.median(ratios) if ratios and name != base else None,
                    "floor_pct": 100 * floor_s / statistics.median(seconds) if figure.do == "decode" and floor_s else None,
                }
            )
    return rows


def scene(name: str, threads: int, peers: dict[str, str]) -> tuple[list[Contender], list[Figure], float]:
    """Contenders and figures of one model, and the bytes that a decoded token reads."""
    ours = str(ROOT / ".venv" / "bin" / "python")
    made: list[Contender] = []
    if name in ("smol", "llama-1b"):
        path = str(models.smol() if name == "smol" else models.llama_1b())
        made.append(Contender("ours", "ours", ours, path=path, threads=threads))
        if name == "smol":
            made.append(Contender("ours, head 4 bits", "ours", ours, path=path, threads=threads, head_bits=4))
        if "llama_cpp" in peers:
            made.append(Contender("llama.cpp", "llama_cpp", peers["llama_cpp"], path=path, threads=threads))
        if "node" in peers:
            made.append(Contender("node-llama-cpp", "node", "", cwd=peers["node"], path=path, threads=threads))
        if name == "smol" and "transformers" in peers:
            made += [
                Contender(f"transformers {kind}", "transformers", ours, path=path, threads=threads, dtype=dtype)
                for kind, dtype in (("bf16", "bfloat16"), ("fp32", "float32"))
            ]
        size = Path(path).stat().st_size
    else:
        mlx, hf = models.hybrid_300m()
        made.append(Contender("ours", "ours", ours, path=str(mlx), threads=threads))
        if "transformers" in peers:
            made.append(Contender("transformers bf16", "transformers", ours, path=str(hf), threads=threads))
        if "mlx_lm" in peers:
            made.append(Contender("mlx-lm", "mlx_lm", ours, path=str(mlx), threads=threads))
        size = 0  # experts: what a token reads is less than the file
    short = 8 if name == "llama-1b" else 24
    figures = [Figure(f"decode at {at}", "decode", {"position": at, "tokens": short}) for at in (16, 512)]
    depths = {"smol": (512, 2048), "llama-1b": (512,), "hybrid": (512,)}[name]
    figures += [Figure(f"prefill of {count}", "prefill", {"count": count}, count) for count in depths]
    figures += [
        Figure(f"window of {rows}", "window", {"position": 64, "rows": rows, "tokens": short}, only_ours=True)
        for rows in (1, 2, 4, 8, 16)
    ]
    figures += [Figure(f"{n} streams", "streams", {"count": n, "tokens": short}, n, only_ours=True) for n in (1, 8)]
    return made, figures, size


def main() -> None:
    """Runs the scenes and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="smol,llama-1b,hybrid")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=900.0, help="a scene stops after the round that passes this")
    parser.add_argument("--peers", default="llama_cpp,node,transformers,mlx_lm", help="which of them take part")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="for a machine that others load, with --threads 1: processor, not elapsed time",
    )
    parser.add_argument("--output", type=Path, default=BENCH / "result.json")
    options = parser.parse_args()
    Contender.clock = "processor" if options.processor_time else "elapsed"
    ours = str(ROOT / ".venv" / "bin" / "python")
    install = {"llama_cpp": llama_cpp_python, "node": node_llama_cpp, "transformers": lambda: ours, "mlx_lm": lambda: ours}
    peers = {name: where for name in options.peers.split(",") if name and (where := install[name]())}
    read_gb_s = bandwidth(options.threads)
    tell(f"{options.threads} threads read {read_gb_s:.1f} GB/s from memory")
    result: dict[str, Any] = {"threads": options.threads, "read_gb_s": read_gb_s, "clock": Contender.clock, "scenes": {}}
    for name in options.only.split(","):
        tell(f"{name}: loading the contenders ...")
        contenders, figures, size = scene(name, options.threads, peers)
        measure(figures, contenders, options.rounds, options.seconds)
        # Bandwidth is measured in elapsed time, so a share of the floor needs elapsed figures.
        rows = summarise(figures, "ours", 0.0 if options.processor_time else size / (read_gb_s * 1e9))
        about = {c.name: {"about": c.about, "load_s": c.load_s, "failure": c.failure} for c in contenders}
        result["scenes"][name] = {"bytes_a_token": size, "contenders": about, "rows": rows}
        for contender in contenders:
            contender.close()
        print(f"\n{name}, {options.threads} threads, {Contender.clock} time, load {os.getloadavg()[0]:.1f}")
        print(f"{'figure':18}{'contender':22}{'a second':>12}{'ours is':>10}{'of the floor':>14}")
        for row in rows:
            times = f"{row['ours_is_times']:.2f} x" if row["ours_is_times"] else ""
            share = f"{row['floor_pct']:.0f} %" if row["floor_pct"] else ""
            print(f"{row['figure']:18}{row['contender']:22}{row['per_s']:12.1f}{times:>10}{share:>14}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1))
    tell(f"written: {options.output}")


if __name__ == "__main__":
    main()
