"""Acceptance of hybrid-10m's MTP head on a real backend: one step at every position, and chains, for code, prose and chat prompts.

    python bench/acceptance.py [--backend reference] [--prompts 24] [--tokens 160]

Prompts come from this Python's own library and language reference: 64 tokens of source files, 64 tokens of reference topics, and
questions about functions, in the model's chat template. Of the source files only those are used that were kept out of the model's
training (SHA-256 of `stdlib/PATH` divisible by 50). Sampling: temperature 1.0, top-p 0.95. `one step` asks the head once at every
position of a serial reply; `chain` decodes with chains of 4 in every round. The two replies must be the same text.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import re
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homestretch.engine.backends import find
from homestretch.engine.chat import Template
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.families import build_model
from homestretch.engine.store import pull
from homestretch.engine.tokenizer import Tokenizer
from homestretch.engine.types import Draw, Limits, PromptPiece, StreamId, Window

KINDS = ("code", "prose", "chat")
PUBLISHED = {"code": (0.631, 1.30), "prose": (0.619, 1.31), "chat": (0.632, 1.34)}
"""(one step, accepted of a chain of 4) as the model's own page gives them."""
DEPTH = 4
LENGTH = 64


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a measurement runs on."""

    backend: Any
    tokenizer: Tokenizer
    template: Template
    ends: frozenset[int]


@dataclass(kw_only=True)
class Tally:
    """Sums over replies of one kind."""

    asked: int = 0
    right: int = 0
    rounds: int = 0
    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0


def load(name: str, backend: str) -> Model:
    checkpoint = open_checkpoint(pull(name).path)
    made = find(backend)()
    made.load(build_model(checkpoint), checkpoint, Limits(window=1024, streams=2, threads=1))
    text, core = checkpoint.text, checkpoint.tokenizer()
    tokenizer = core if isinstance(core, Tokenizer) else Tokenizer(core)
    template = Template(text.chat_template or "", tokenizer, bos=text.bos_token or "", eos=text.eos_token or "")
    return Model(backend=made, tokenizer=tokenizer, template=template, ends=text.ends)


def sources() -> Iterator[str]:
    """Source files of the standard library that the model was not trained on, without their leading comments."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if "site-packages" in name or "test" in name or "idlelib" in name or "pydoc_data" in name or "lib2to3" in name:
            continue
        if int(hashlib.sha256(f"stdlib/{name}".encode()).hexdigest(), 16) % 50 or not 300 < path.stat().st_size < 150_000:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if text.isascii():
            yield re.sub(r"\A(\s*#[^\n]*\n)+", "", text).lstrip()


def topics() -> Iterator[str]:
    """Paragraphs of the language reference that pydoc ships, markup dropped."""
    from pydoc_data.topics import topics as found

    for name in sorted(found):
        text = re.sub(r"[`*]|\"\"?", "", found[name])
        blocks = [" ".join(block.split()) for block in text.split("\n\n") if not block.startswith(("   ", "\n"))]
        prose = "\n\n".join(block for block in blocks if len(block) > 150 and block.isascii())
        if prose:
            yield prose


def questions() -> Iterator[tuple[str, bool]]:
    """Requests for functions of those source files, and whether the reply may think first (about one in three)."""
    for text in sources():
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            doc = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) and not node.name.startswith("__") else None
            if doc and isinstance(node, ast.FunctionDef) and len(doc.split("\n\n")[0]) > 15:
                first = re.sub(r"\s+", " ", doc.split("\n\n")[0])[:200].rstrip(".")
                number = int(hashlib.sha256(node.name.encode()).hexdigest(), 16)
                yield f"Write a Python function `{node.name}`: {first[0].lower()}{first[1:]}.", number % 3 == 0


def prompts(model: Model, kind: str, count: int) -> list[tuple[int, ...]]:
    rng = random.Random(5)
    if kind == "chat":
        found = list(questions())
        made = []
        for question, thinking in rng.sample(found, min(count, len(found))):
            messages = [{"role": "user", "content": question}]
            made.append(model.template.prompt(messages, options={"enable_thinking": thinking}).ids)
        return made
    ids = [token for text in (sources() if kind == "code" else topics()) for token in (*model.tokenizer.encode(text), 2)]
    starts = [rng.randrange(len(ids) - LENGTH) for _ in range(count)]
    return [tuple(ids[start : start + LENGTH]) for start in starts]


def wish(seed: int, position: int) -> Draw:
    return Draw(seed=seed, position=position, temperature=1.0, top_k=0, top_p=0.95, min_p=0.0)


def decode(model: Model, prompt: Sequence[int], seed: int, most: int, depth: int, tally: Tally) -> list[int]:
    """One reply. depth 0: serial, with one draft a position that is only looked at; else chains of `depth` in every round."""
    backend = model.backend
    stream: StreamId = backend.open(None)
    backend.reserve(stream, len(prompt) + most + 20)
    piece = PromptPiece(stream=stream, start=0, tokens=tuple(prompt), draw=wish(seed, len(prompt)))
    ((row,),) = backend.wait(backend.read(piece))
    reply, start, kept = [row.token], len(prompt), 0
    while len(reply) < most and reply[-1] not in model.ends:
        links = max(1, depth)
        drafts = [
            one.token
            for one in backend.wait(backend.draft(stream, kept, [wish(seed, start + 1 + i) for i in range(links)], links))[0]
        ]
        tokens = (reply[-1], *drafts) if depth else (reply[-1],)
        draws = tuple(wish(seed, start + 1 + i) for i in range(len(tokens)))
        (rows,) = backend.wait(backend.step([Window(stream=stream, start=start, tokens=tokens, draws=draws, kept=kept)]))
        right = 0
        while right < len(drafts) and right < len(rows) and drafts[right] == rows[right].token:
            right += 1
        kept = min(right, depth) + 1
        new = [one.token for one in rows[:kept]]
        end = next((i + 1 for i, token in enumerate(new) if token in model.ends), len(new))
        reply += new[:end]
        start += kept
        if depth and len(reply) <= most and end == len(new):
            tally.rounds, tally.accepted = tally.rounds + 1, tally.accepted + right
        if not depth:
            tally.asked, tally.right = tally.asked + 1, tally.right + right
    backend.close(stream)
    return reply[:most]


def measure(model: Model, kind: str, count: int, most: int) -> Tally:
    """SystemExit when a drafted reply differs from the serial one."""
    tally, began = Tally(), time.perf_counter()
    # A seed of its own for every prompt: one for all would draw the same noise at the same positions.
    for seed, prompt in enumerate(prompts(model, kind, count)):
        serial = decode(model, prompt, seed, most, 0, tally)
        if decode(model, prompt, seed, most, DEPTH, tally) != serial:
            raise SystemExit(f"{kind}: a drafted reply differs from the serial one")
        tally.tokens += len(serial)
    tally.seconds = time.perf_counter() - began
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="hybrid-10m")
    parser.add_argument("--backend", default="reference" if find("cpu").refusal() else "cpu")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=160)
    args = parser.parse_args()
    model = load(args.model, args.backend)
    for kind in args.kinds:
        tally = measure(model, kind, args.prompts, args.tokens)
        line = {
            "kind": kind,
            "backend": args.backend,
            "one_step": round(tally.right / tally.asked, 3),
            "one_step_published": PUBLISHED[kind][0],
            "chain_of_4": round(tally.accepted / tally.rounds, 2),
            "chain_of_4_published": PUBLISHED[kind][1],
            "positions": tally.asked,
            "rounds": tally.rounds,
            "reply_tokens": tally.tokens,
            "seconds": round(tally.seconds, 1),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
