"""The embedded model on `reference` against transformers with the same GGUF weights in fp32: logits and 64 greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from homestretch.engine.backends import reference
from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.families import build_model
from homestretch.engine.tokenizer import Tokenizer
from homestretch.engine.types import Draw, Limits, PromptPiece, Window

pytestmark = pytest.mark.oracle

GREEDY = 64
PROMPTS = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou answer in rhymes.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a Python function that reverses a linked list.<|im_end|>\n<|im_start|>assistant\n",
    "The quick brown fox",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "import numpy as np\n\nclass Matrix:\n    def __init__(self, rows: int, cols: int) -> None:\n",
    "SELECT name, COUNT(*) FROM orders WHERE total > 100 GROUP BY",
    '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "address": {',
    "1 2 3 5 8 13 21 34 55 89",
    "3.14159 * 2 =",
    "日本の首都は東京です。フランスの首都は",
    "Привет, как дела? Меня зовут",
    "مرحبا بكم في",
    "🎉🎊 Happy birthday! 🎂",
    "    \n\n\t\n  indented and spaced   out",
    "a",
    "<|endoftext|>\n\nChapter 1\n",
    "Once upon a time, in a land far away, there lived a",
    "Q: If a train leaves at 3 pm and travels 60 miles an hour, when has it gone 150 miles?\nA:",
    "The history of the printing press. " * 24 + "In short,",
)


Reply = tuple[tuple[int, ...], list[int], torch.Tensor]


class Listener:
    """Stands where `reference` draws, and keeps the logits of every row."""

    def __init__(self) -> None:
        self.logits: list[torch.Tensor] = []
        self._draw = reference.drawing.draw

    def draw(self, logits: torch.Tensor, draw: Draw) -> Any:
        self.logits.append(logits.clone())
        return self._draw(logits, draw)


def greedy(position: int) -> Draw:
    return Draw(seed=0, position=position, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture(scope="module")
def loaded(smollm: Path) -> tuple[reference.Backend, Tokenizer]:
    """The embedded model on the reference backend."""
    checkpoint, backend = open_checkpoint(smollm), reference.Backend()
    backend.load(build_model(checkpoint), checkpoint, Limits(window=512, streams=len(PROMPTS) + 1))
    return backend, Tokenizer(checkpoint.tokenizer())


@pytest.fixture(scope="module")
def replies(loaded: tuple[reference.Backend, Tokenizer]) -> list[Reply]:
    """For each prompt: its ids, 64 greedy tokens, and the logits (64, vocab) that drew them; all streams step together."""
    (backend, tokenizer), listener = loaded, Listener()
    prompts = [tokenizer.encode(text, special=True) for text in PROMPTS]
    assert max(map(len, prompts)) > 128, "one prompt crosses a tile"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference.drawing, "draw", listener.draw)
        streams, replies = [], []
        for prompt in prompts:
            stream = backend.open(None)
            assert backend.reserve(stream, len(prompt) + GREEDY)
            piece = PromptPiece(stream=stream, start=0, tokens=prompt, draw=greedy(len(prompt)))
            replies.append([backend.wait(backend.read(piece))[0][0].token])
            streams.append(stream)
        for count in range(1, GREEDY):
            windows = [
                Window(
                    stream=stream,
                    start=len(prompt) + count - 1,
                    tokens=(reply[-1],),
                    draws=(greedy(len(prompt) + count),),
                    kept=int(count > 1),
                )
                for stream, prompt, reply in zip(streams, prompts, replies, strict=True)
            ]
            for reply, rows in zip(replies, backend.wait(backend.step(windows)), strict=True):
                reply.append(rows[0].token)
    rows = torch.stack(listener.logits).reshape(GREEDY, len(PROMPTS), -1)
    return [(prompt, reply, rows[:, at]) for at, (prompt, reply) in enumerate(zip(prompts, replies, strict=True))]


@pytest.fixture(scope="module")
def oracle(smollm: Path) -> Any:
    """transformers' reading of the same file, widened to fp32."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    return transformers.AutoModelForCausalLM.from_pretrained(smollm.parent, gguf_file=smollm.name, dtype=torch.float32).eval()


@pytest.mark.filterwarnings("ignore")
def test_logits_and_greedy_tokens_equal_transformers(replies: list[Reply], oracle: Any, record_property: Any) -> None:
    """Teacher forcing: if the oracle prefers each token after the ones before it, its own greedy reply is the same."""
    for text, (prompt, reply, logits) in zip(PROMPTS, replies, strict=True):
        with torch.inference_mode():
            theirs = oracle(torch.tensor([[*prompt, *reply[:-1]]])).logits[0, len(prompt) - 1 :]
        assert theirs.argmax(-1).tolist() == reply, text
        error = float((logits - theirs).abs().max() / theirs.abs().max())
        assert error <= 1e-4, f"{text!r}: {error:.2e} of the largest logit"
        record_property("difference", f"{error:.1e} of the largest logit: {text[:30]!r}")


@pytest.mark.parametrize("at", [3, len(PROMPTS) - 1])
def test_alone_with_drafts_gives_the_same_bits(
    loaded: tuple[reference.Backend, Tokenizer], replies: list[Reply], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same reply in a stream of its own, in windows of 1 to 5 rows whose drafts are right: all logits are equal to the bit."""
    (backend, _), (prompt, reply, logits) = loaded, replies[at]
    listener = Listener()
    monkeypatch.setattr(reference.drawing, "draw", listener.draw)
    stream = backend.open(None)
    assert backend.reserve(stream, len(prompt) + GREEDY)
    backend.wait(backend.read(PromptPiece(stream=stream, start=0, tokens=prompt, draw=greedy(len(prompt)))))
    done, kept = 0, 0
    for rows in (1, 2, 3, 4, 5):
        start = len(prompt) + done
        draws = tuple(greedy(start + row + 1) for row in range(rows))
        window = Window(stream=stream, start=start, tokens=tuple(reply[done : done + rows]), draws=draws, kept=kept)
        assert [row.token for row in backend.wait(backend.step([window]))[0]] == reply[done + 1 : done + rows + 1]
        done, kept = done + rows, rows
    backend.close(stream)
    assert torch.equal(torch.stack(listener.logits), logits[: done + 1])
