"""One contender in a process of its own: reads JSON lines (load, decode, window, streams, prefill), answers with seconds.

    python bench/workers.py ours|llama_cpp|transformers|mlx_lm elapsed|processor

llama_cpp runs in the bench's own environment, the others in the project's.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

clock = time.process_time if sys.argv[2:] == ["processor"] else time.perf_counter
"""On a machine that others load only processor time can be measured; with one thread it is the elapsed time of an idle machine."""
IDS = [(7919 * i + 13) % 4000 + 5 for i in range(4096)]
"""The prompt of every contender."""


class Ours:
    """The cpu backend through its protocol, as the core's loop calls it."""

    def load(self, path: str, threads: int, **options: Any) -> str:
        from pathlib import Path

        from homestretch.engine.backends import find
        from homestretch.engine.checkpoint.opening import open_checkpoint
        from homestretch.engine.families import build_model
        from homestretch.engine.types import Draw, Limits, PromptPiece, Window

        self.Draw, self.Piece, self.Window = Draw, PromptPiece, Window
        checkpoint = open_checkpoint(Path(path))
        self.backend: Any = find("cpu")(**options)
        self.backend.load(build_model(checkpoint), checkpoint, Limits(window=4096, streams=8, threads=threads))
        return str(self.backend.numerics)

    def _draw(self, position: int) -> Any:
        return self.Draw(seed=1, position=position, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)

    def _read(self, count: int) -> tuple[Any, int]:
        stream = self.backend.open(None)
        self.backend.reserve(stream, count + 260)
        piece = self.Piece(stream=stream, start=0, tokens=tuple(IDS[:count]), draw=self._draw(count))
        return stream, self.backend.wait(self.backend.read(piece))[0][0].token

    def prefill(self, count: int) -> float:
        started = clock()
        stream, _ = self._read(count)
        taken = clock() - started
        self.backend.close(stream)
        return taken

    def decode(self, position: int, tokens: int) -> float:
        """Seconds a token, the draw included."""
        stream, token = self._read(position)
        started = clock()
        for at in range(position, position + tokens):
            window = self.Window(stream=stream, start=at, tokens=(token,), draws=(self._draw(at + 1),), kept=int(at > position))
            token = self.backend.wait(self.backend.step([window]))[0][0].token
        taken = clock() - started
        self.backend.close(stream)
        return taken / tokens

    def window(self, position: int, rows: int, tokens: int) -> float:
        """Seconds of one window of `rows` rows, of which one stands."""
        stream, token = self._read(position)
        started = clock()
        for at in range(position, position + tokens):
            draws = tuple(self._draw(at + 1 + i) for i in range(rows))
            window = self.Window(stream=stream, start=at, tokens=(token, *IDS[: rows - 1]), draws=draws, kept=int(at > position))
            token = self.backend.wait(self.backend.step([window]))[0][0].token
        taken = clock() - started
        self.backend.close(stream)
        return taken / tokens

    def streams(self, count: int, tokens: int) -> float:
        """Seconds of one step of `count` streams, a row each."""
        open_streams = [self._read(16) for _ in range(count)]
        last = [token for _, token in open_streams]
        started = clock()
        for at in range(16, 16 + tokens):
            windows = [
                self.Window(stream=s, start=at, tokens=(token,), draws=(self._draw(at + 1),), kept=int(at > 16))
                for (s, _), token in zip(open_streams, last, strict=True)
            ]
            last = [rows[0].token for rows in self.backend.wait(self.backend.step(windows))]
        taken = clock() - started
        for stream, _ in open_streams:
            self.backend.close(stream)
        return taken / tokens


class LlamaCpp:
    """llama.cpp at its C interface: llama_decode and a greedy pick."""

    def load(self, path: str, threads: int) -> str:
        import llama_cpp

        self.c = llama_cpp
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 4096, 2048, 512
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(model, options)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.sampler = llama_cpp.llama_sampler_init_greedy()
        return f"llama-cpp-python {llama_cpp.__version__}: " + llama_cpp.llama_print_system_info().decode()

    def _feed(self, tokens: list[int]) -> int:
        made = (self.c.llama_token * len(tokens))(*tokens)
        if self.c.llama_decode(self.context, self.c.llama_batch_get_one(made, len(tokens))):
            raise RuntimeError("llama_decode failed")
        return int(self.c.llama_sampler_sample(self.sampler, self.context, -1))

    def _fresh(self) -> None:
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)

    def prefill(self, count: int) -> float:
        self._fresh()
        started = clock()
        self._feed(IDS[:count])
        return clock() - started

    def decode(self, position: int, tokens: int) -> float:
        self._fresh()
        token = self._feed(IDS[:position])
        started = clock()
        for _ in range(tokens):
            token = self._feed([token])
        return (clock() - started) / tokens


class Transformers:
    """transformers with its cache, greedy; bf16 or fp32."""

    def load(self, path: str, threads: int, dtype: str = "bfloat16") -> str:
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        self.torch = torch
        options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
        if path.endswith(".gguf"):
            folder, _, file = path.rpartition("/")
            self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, **options)
        else:
            self.model = transformers.AutoModelForCausalLM.from_pretrained(path, **options)
        self.model.eval()
        return f"transformers {transformers.__version__} {dtype}"

    def _feed(self, ids: list[int], past: Any) -> tuple[int, Any]:
        with self.torch.inference_mode():
            out = self.model(input_ids=self.torch.tensor([ids]), past_key_values=past, use_cache=True, logits_to_keep=1)
        cache = getattr(out, "past_key_values", None)
        return int(out.logits[0, -1].argmax()), out.cache_params if cache is None else cache

    def prefill(self, count: int) -> float:
        started = clock()
        self._feed(IDS[:count], None)
        return clock() - started

    def decode(self, position: int, tokens: int) -> float:
        token, past = self._feed(IDS[:position], None)
        started = clock()
        for _ in range(tokens):
            token, past = self._feed([token], past)
        return (clock() - started) / tokens


class MlxLm:
    """mlx-lm on mlx[cpu], which takes the threads it likes."""

    def load(self, path: str, threads: int) -> str:
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache
        from mlx_lm.utils import load_model

        self.mx, self.cache = mx, make_prompt_cache
        self.model = load_model(__import__("pathlib").Path(path))[0]
        return "mlx-lm"

    def _feed(self, ids: list[int], cache: Any) -> int:
        logits = self.model(self.mx.array([ids]), cache=cache)[:, -1]
        return int(self.mx.argmax(logits, axis=-1).item())

    def prefill(self, count: int) -> float:
        started = clock()
        self._feed(IDS[:count], self.cache(self.model))
        return clock() - started

    def decode(self, position: int, tokens: int) -> float:
        cache = self.cache(self.model)
        token = self._feed(IDS[:position], cache)
        started = clock()
        for _ in range(tokens):
            token = self._feed([token], cache)
        return (clock() - started) / tokens


KINDS: dict[str, Any] = {"ours": Ours, "llama_cpp": LlamaCpp, "transformers": Transformers, "mlx_lm": MlxLm}


def main() -> None:
    """Answers each line with {"value": ...} or {"error": ...}."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    worker = KINDS[sys.argv[1]]()
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            answer = {"value": getattr(worker, ask.pop("do"))(**ask)}
        except Exception as error:  # noqa: BLE001 - the driver reports it and goes on
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
