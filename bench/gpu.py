"""Checks and times the CUDA backend on the machine's GPU, in one command of at most five minutes; JSON and a table.

    python bench/gpu.py [--device cuda:0] [--minutes 5] [--json FILE] [--shape 30b-a3b|tiny] [--skip-tests]
    python bench/gpu.py --dry-run        every step on the CPU, in Triton's interpreter, with the tiny shape

1. Parity and exactness: the tests of the kernels and of the backend, on the device.
2. Floors, measured now: read bandwidth of the device's memory, bf16 matrix rate.
3. Random weights of the real shapes with a real spread of routing: windows of 1 to 16 rows, 1 to 8 streams, prompts, each with its
   share of the floor; drafted = serial and together = alone once more at this size.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import torch

from homestretch.engine.backends.cuda import Backend
from homestretch.engine.checkpoint import Affine, TextDefaults, Weight
from homestretch.engine.checkpoint.shelf import Shelf
from homestretch.engine.draws import mix64
from homestretch.engine.families import nemotron_h
from homestretch.engine.program import Experts, Model, Program, WeightSpec
from homestretch.engine.types import Draw, Limits, PromptPiece, StreamId, Window

ROOT = Path(__file__).resolve().parent.parent
PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
REAL: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": 131072,
    "hidden_size": 2688,
    "hybrid_override_pattern": PATTERN,
    "mtp_hybrid_override_pattern": "*E",
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "routed_scaling_factor": 2.5,
    "time_step_limit": [0.0, float("inf")],
    "eos_token_id": 2,
}
SHAPES: dict[str, Mapping[str, Any]] = {"30b-a3b": REAL, "tiny": {**nemotron_h.TINY, "hybrid_override_pattern": "M*E"}}


class Wishes(Shelf):
    """A shelf that has every weight a family asks for, as a published 4-bit checkpoint stores it."""

    def __init__(self) -> None:
        super().__init__({}, where="bench")
        self.specs: dict[str, WeightSpec] = {}

    def take(self, name: str, *shape: int) -> str:
        packed = len(shape) > 1 and "gate." not in name and "conv1d" not in name
        self.specs[name] = WeightSpec(shape=shape, bits=4, group=64) if packed else WeightSpec(shape=shape, dtype="float32")
        return name


@dataclass
class RandomCheckpoint:
    """Weights made when they are read, on the device; values spread as a trained model's, routing included."""

    specs: dict[str, WeightSpec]
    config: Mapping[str, Any]
    device: torch.device
    layout: str = "random"
    path: Path = Path("random")
    text: TextDefaults = field(default_factory=lambda: TextDefaults(ends=frozenset()))
    notes: tuple[str, ...] = ()

    def read(self, name: str) -> Weight:
        spec = self.specs[name]
        make = torch.Generator(device=self.device).manual_seed(sum(name.encode()) * 7919 + len(name))
        if not spec.bits:
            return self._dense(name, spec.shape, make)
        words = torch.randint(
            -(1 << 31), 1 << 31, (*spec.shape[:-1], spec.shape[-1] // 8), generator=make, device=self.device, dtype=torch.int64
        )
        grid = (*spec.shape[:-1], spec.shape[-1] // 64)
        sign = torch.randint(0, 2, grid, generator=make, device=self.device, dtype=torch.int8) * 2 - 1
        size = 0.3 if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight", "fc2.weight")) else 1.0
        scales = (sign * (size / (4.6 * math.sqrt(spec.shape[-1])))).to(torch.bfloat16)
        return Affine(words=words.to(torch.int32).view(torch.uint32), scales=scales, biases=scales * -7.5, bits=4, group=64)

    def _dense(self, name: str, shape: tuple[int, ...], make: torch.Generator) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(shape, device=self.device)
        spread = torch.randn(shape, generator=make, device=self.device)
        if name.endswith("A_log"):
            return spread.abs()
        if name.endswith("dt_bias"):
            return spread * 0.5 - 4.0
        if name.endswith(".D"):
            return spread.abs() + 0.2
        if name.endswith("e_score_correction_bias"):
            return spread * 0.1
        return spread / math.sqrt(shape[-1])

    def tokenizer(self) -> Any:
        raise NotImplementedError


def build(config: Mapping[str, Any], device: torch.device) -> tuple[Model, RandomCheckpoint]:
    """A Model of this config, and random weights for it."""
    read, wishes = nemotron_h.read_config(config), Wishes()
    main, head = nemotron_h.main_program(read, wishes), nemotron_h.head_program(read, wishes)
    model = Model(
        name="random", family="nemotron_h", vocab=read.vocab, hidden=read.hidden, window=read.window,
        main=main, head=head, weights=wishes.specs,
    )  # fmt: skip
    return model, RandomCheckpoint(specs=wishes.specs, config=config, device=device)


def bytes_a_row(model: Model, program: Program) -> int:
    """Weight bytes that one row reads: every matrix once, of the experts the chosen ones, of the embedding one row."""
    total = 0
    for op in program.ops:
        for name in op.weights:
            spec = model.weights[name]
            if isinstance(op.attrs, Experts):
                top = next(o.attrs.top for o in program.ops if op.ins[1] in o.outs)  # type: ignore[union-attr]
                total += spec.stored_bytes * top // spec.shape[0]
            elif type(op.attrs).__name__ == "Embed":
                total += spec.stored_bytes // spec.shape[0]
            else:
                total += spec.stored_bytes
    return total


class Clock:
    """Times calls on the device; on the CPU the host's clock is as good."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._warm = 3 if self._cuda else 0

    @property
    def on_device(self) -> bool:
        return self._cuda

    def wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def median(self, call: Callable[[], object], runs: int) -> float:
        times, warm = [], self._warm
        for _ in range(warm + runs):
            self.wait()
            started = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times[warm:])


def floors(device: torch.device, clock: Clock, dry: bool) -> dict[str, float]:
    """Bytes a second of a large read, operations a second of a large bf16 product, both measured now."""
    size = 1 << (20 if dry else 31)
    block = torch.ones(size // 4, device=device)
    read = clock.median(lambda: block.sum(), 10 if not dry else 3)
    n = 256 if dry else 8192
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    product = clock.median(lambda: a @ a, 10)
    return {"bytes_per_s": size / read, "flops_per_s": 2 * n**3 / product}


class Bench:
    """One loaded backend and what is asked of it."""

    def __init__(self, shape: str, device: torch.device, window: int) -> None:
        self.model, checkpoint = build(SHAPES[shape], device)
        self.backend = Backend()
        started = time.perf_counter()
        streams = 2 if shape == "tiny" else 8
        self.backend.load(self.model, checkpoint, Limits(window=window, streams=streams, device=str(device)))
        self.load_s = time.perf_counter() - started
        self.clock = Clock(device)
        self.streams = streams

    def tokens(self, start: int, count: int) -> tuple[int, ...]:
        return tuple(mix64(start * 1_000_003 + i) % self.model.vocab for i in range(count))

    def draw(self, position: int) -> Draw:
        return Draw(seed=3, position=position, temperature=1.0, top_k=0, top_p=0.95, min_p=0.0)

    def opened(self, seed: int, length: int) -> tuple[StreamId, int]:
        """A stream that has read `length` tokens, and the token that follows."""
        stream = self.backend.open(None)
        if not self.backend.reserve(stream, length + 128):
            raise MemoryError(f"no room for {length} tokens")
        piece = PromptPiece(stream=stream, start=0, tokens=self.tokens(seed, length), draw=self.draw(length))
        return stream, self.backend.wait(self.backend.read(piece))[0][0].token

    def window(self, stream: StreamId, start: int, tokens: tuple[int, ...], kept: int = 0) -> Window:
        draws = tuple(self.draw(start + 1 + i) for i in range(len(tokens)))
        return Window(stream=stream, start=start, tokens=tokens, draws=draws, kept=kept)

    def windows(self, runs: int, widths: tuple[int, ...]) -> dict[int, float]:
        """Seconds of one stream's window of so many rows, on tokens that change from run to run."""
        stream, _ = self.opened(1, 64)
        turn = iter(range(1_000_000))
        made = {}
        for width in widths:
            made[width] = self.clock.median(
                lambda width=width: self.backend.wait(self.backend.step([self.window(stream, 64, self.tokens(next(turn), width))])),
                runs,
            )
        self.backend.close(stream)
        return made

    def together(self, runs: int, counts: tuple[int, ...]) -> dict[int, float]:
        """Seconds of one row each of several streams."""
        streams = [self.opened(10 + i, 64)[0] for i in range(max(counts))]
        turn = iter(range(1_000_000, 2_000_000))
        made = {
            count: self.clock.median(
                lambda count=count: self.backend.wait(
                    self.backend.step([self.window(s, 64, self.tokens(next(turn), 1)) for s in streams[:count]])
                ),
                runs,
            )
            for count in counts
        }
        for stream in streams:
            self.backend.close(stream)
        return made

    def prompts(self, lengths: tuple[int, ...]) -> dict[int, float]:
        """Seconds to read a prompt and draw the first token; the second of two readings."""
        made = {}
        for length in lengths:
            for seed in (5, 6)[: 1 + self.clock.on_device]:
                self.clock.wait()
                started = time.perf_counter()
                stream, _ = self.opened(seed, length)
                made[length] = time.perf_counter() - started
                self.backend.close(stream)
        return made

    def exact(self, rounds: int) -> dict[str, bool]:
        """Drafted = serial and together = alone, bit by bit, at this size."""
        serial = self._reply(21, rounds, hostile=False)
        drafted = self._reply(21, rounds, hostile=True)
        others = [self.opened(30 + i, 40 + i)[0] for i in range(self.streams - 1)]
        beside = self._reply(21, rounds, hostile=False, others=others)
        for stream in others:
            self.backend.close(stream)
        return {"drafted_is_serial": drafted == serial, "together_is_alone": beside == serial}

    def _reply(self, seed: int, rounds: int, *, hostile: bool, others: list[StreamId] | None = None) -> list[int]:
        length = 50
        stream, token = self.opened(seed, length)
        reply, kept, at = [token], 0, length
        while len(reply) <= rounds:
            wrong = self.tokens(len(reply), 3) if hostile else ()
            windows = [self.window(stream, at, (reply[-1], *wrong), kept)]
            windows += [self.window(s, 40 + i, self.tokens(i, 1)) for i, s in enumerate(others or [])]
            rows = self.backend.wait(self.backend.step(windows))[0]
            stands = 1
            while stands < len(rows) and rows[stands - 1].token == windows[0].tokens[stands]:
                stands += 1
            reply += [row.token for row in rows[:stands]]
            kept, at = stands, at + stands
        self.backend.close(stream)
        return reply[: rounds + 1]


def tests(dry: bool) -> dict[str, Any]:
    """The kernels' and the backend's tests on this device."""
    environment = dict(os.environ) | ({"TRITON_INTERPRET": "1"} if dry else {"HOMESTRETCH_TEST_DEVICE": "cuda"})
    chosen = ["-k", "joined or embed or bias"] if dry else []
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "tests/engine/test_cuda_kernels.py",
        "tests/engine/test_cuda_backend.py",
        *chosen,
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return {"passed": done.returncode == 0, "tail": done.stdout.strip().splitlines()[-6:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="30b-a3b")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="every step on the CPU with the tiny shape; its times mean nothing")
    options = parser.parse_args()
    dry = options.dry_run
    refusal = None if dry else Backend.refusal(options.device)
    if refusal:
        print(f"bench/gpu.py: {refusal}; --dry-run walks every step on the CPU", file=sys.stderr)
        return 1
    began = time.monotonic()
    device = torch.device("cpu" if dry else options.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    result: dict[str, Any] = {
        "device": "cpu, interpreted" if dry else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
    }

    def left() -> float:
        return options.minutes * 60 - (time.monotonic() - began)

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    if not options.skip_tests:
        say("parity and exactness tests")
        result["tests"] = tests(dry)
        say("passed" if result["tests"]["passed"] else "FAILED: " + " | ".join(result["tests"]["tail"]))
    say("floors")
    clock = Clock(device)
    result["floors"] = floor = floors(device, clock, dry)
    lengths = (130,) if dry else (2048, 8192, 32768, 131072)
    say(f"loading random weights of the shape {'tiny' if dry else options.shape}")
    bench = Bench("tiny" if dry else options.shape, device, 512 if dry else 131072 + 2048)
    result["load_s"] = bench.load_s
    row_bytes = bytes_a_row(bench.model, bench.model.main)
    floor_s = row_bytes / floor["bytes_per_s"]
    result["row"] = {"bytes": row_bytes, "floor_s": floor_s}
    say("exactness at this size")
    result["exact"] = bench.exact(1 if dry else 24)
    rows = []
    widths = (1, 2) if dry else tuple(range(1, 17))
    say("windows")
    seconds = bench.windows(1 if dry else 20, widths)
    for width, s in seconds.items():
        rows.append({"what": f"window of {width}", "ms": s * 1e3, "of_one_row": s / seconds[1], "of_floor_pct": 100 * floor_s / s})
    say("streams")
    for count, s in bench.together(1 if dry else 20, (1, 2) if dry else (1, 2, 4, 8)).items():
        rows.append({"what": f"{count} streams", "ms": s * 1e3, "tokens_per_s": count / s})
    flops = 2 * (row_bytes / 4.5 * 8)
    for length in lengths:
        if left() < 20 and not dry:
            say(f"no time left for a prompt of {length:,}")
            break
        say(f"prompt of {length:,} tokens")
        s = bench.prompts((length,))[length]
        share = 100 * flops * length / s / floor["flops_per_s"]
        rows.append({"what": f"prompt of {length}", "ms": s * 1e3, "tokens_per_s": length / s, "of_matrix_rate_pct": share})
    result["rows"] = rows
    result["seconds"] = time.monotonic() - began
    for row in rows:
        figures = "  ".join(f"{name} {value:,.2f}" for name, value in row.items() if name != "what")
        print(f"{row['what']:20} {figures}")
    text = json.dumps(result)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if all(result["exact"].values()) and result.get("tests", {"passed": True})["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
