"""What drafts bring on the cpu backend: the same replies with and without them, in turn, through the engine's own core.

    .venv/bin/python bench/drafts.py [--rounds 5] [--threads 1] [--processor-time]

Cases: an edit that repeats its prompt (copies, SmolLM2-135M, greedy) and hybrid-10m with its MTP head (temperature 1.0 and greedy).
The replies must be equal, token for token; a figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from homestretch.engine.backends import find
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.core import Core, Options
from homestretch.engine.families import build_model
from homestretch.engine.store import pull
from homestretch.engine.types import Event, Limits, Request, Sampling

TEXT = """def area(width, height):
    return width * height

def volume(width, height, depth):
    return area(width, height) * depth
"""
PROMPTS = {
    "smollm2-135m": "<|im_start|>user\nRepeat this code exactly.\n" + TEXT * 3 + "<|im_end|>\n<|im_start|>assistant\n" + TEXT,
    "hybrid-10m": '"""Reads and writes files."""\n\nimport os\nimport sys\n\nclass Reader:\n    def __init__(self, path):\n',
}


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    model: str
    temperature: float


CASES = (
    Case(name="copies on an edit", model="smollm2-135m", temperature=0.0),
    Case(name="MTP at T 1.0", model="hybrid-10m", temperature=1.0),
    Case(name="MTP greedy", model="hybrid-10m", temperature=0.0),
)


class Engine:
    """A core on the cpu backend."""

    def __init__(self, name: str, threads: int) -> None:
        checkpoint = open_checkpoint(pull(name).path)
        model = build_model(checkpoint)
        self.tokenizer = checkpoint.tokenizer()

        def load() -> tuple[Any, Options, bool]:
            backend = find("cpu")()
            backend.load(model, checkpoint, Limits(window=2048, streams=1, threads=threads))
            return backend, Options(window=2048, streams=1), model.head is not None

        self.core = Core(load)
        self.core.start()
        self.made = 0

    def reply(self, prompt: Sequence[int], case: Case, tokens: int, seed: int, draft: bool) -> tuple[list[int], Any]:
        done, out = threading.Event(), []
        last: list[Any] = [None]

        def emit(event: Event) -> None:
            out.extend(event.tokens)
            if event.summary:
                last[0] = event.summary
                done.set()

        self.made += 1
        sampling = Sampling(temperature=case.temperature, top_p=0.95)
        self.core.submit(
            Request(
                id=str(self.made),
                prompt=tuple(prompt),
                max_tokens=tokens,
                sampling=sampling,
                seed=seed,
                ends=frozenset(),
                emit=emit,
                draft=draft,
                cache=False,
            )
        )
        done.wait(300)
        return out, last[0]


def main() -> None:
    """Prints a line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.processor_time else time.perf_counter
    engines: dict[str, Engine] = {}
    for case in CASES:
        engine = engines.setdefault(case.model, Engine(case.model, options.threads))
        prompt = engine.tokenizer.encode(PROMPTS[case.model]).ids
        ratios, drafted, accepted, equal = [], 0, 0, True
        for number in range(options.rounds + 1):
            seconds, replies = [], []
            for draft in (False, True):
                started = clock()
                tokens, summary = engine.reply(prompt, case, options.tokens, number, draft)
                seconds.append(clock() - started)
                replies.append(tokens)
            equal &= replies[0] == replies[1]
            if number:
                ratios.append(seconds[0] / seconds[1])
                drafted, accepted = drafted + summary.drafts.drafted, accepted + summary.drafts.accepted
        print(
            f"{case.name:22}{statistics.median(ratios):6.2f} x, {accepted} of {drafted} drafts stood, "
            f"replies {'equal' if equal else 'DIFFER'}"
        )
    for engine in engines.values():
        engine.core.stop()


if __name__ == "__main__":
    main()
