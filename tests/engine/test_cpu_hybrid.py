"""A hybrid with an MTP head on the cpu backend: against the reference backend, and exact against itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny_nemotron
from cpu_worlds import difference, drawn, loaded_at, read, serial, step

from homestretch.engine.backends import Backend
from homestretch.engine.types import RowOut, Window

VOCAB = 320
DECODE, PROMPT = 3e-4, 2e-2
PATTERNS = ("ME*-ME", "M-M*", "EM*E")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four-bit MLX folders, and one in bf16."""
    root = tmp_path_factory.mktemp("hybrids")
    made = {}
    for seed, pattern in enumerate(PATTERNS):
        config = tiny_nemotron.config_of(pattern)
        tensors = tiny_nemotron.random_tensors(config, seed)
        made[pattern] = tiny_nemotron.write_mlx(root / f"mlx-{seed}", config, tensors)
    config = tiny_nemotron.config_of()
    made["bf16"] = tiny_nemotron.write_hf(root / "hf", config, tiny_nemotron.random_tensors(config, 7))
    return made


def rows_of(backend: Backend, tokens: Sequence[int]) -> list[RowOut]:
    stream = backend.open(None)
    rows: list[RowOut] = []
    for at, token in enumerate(tokens):
        rows += step(backend, stream, at, [token], [drawn(1, at + 1, VOCAB)], min(at, 1))
    backend.close(stream)
    return rows


@pytest.mark.parametrize("kind", [*PATTERNS, "bf16"])
def test_rows_prompts_and_drafts_agree_with_the_reference(folders: dict[str, Path], kind: str) -> None:
    pair = [loaded_at(name, folders[kind], threads=2) for name in ("cpu", "reference")]
    tokens = [(37 * i + 11) % VOCAB for i in range(24)]
    assert max(difference(a, b) for a, b in zip(*(rows_of(b, tokens) for b in pair), strict=True)) < DECODE
    prompt = [(53 * i + 5) % VOCAB for i in range(150)]
    made = []
    for backend in pair:
        stream = backend.open(None)
        rows = read(backend, stream, prompt, drawn(1, 150, VOCAB))
        assert backend.reserve(stream, 170)
        rows += backend.wait(backend.draft(stream, 0, [drawn(1, 151 + i, VOCAB) for i in range(2)], 2))[0]
        made.append(rows)
    assert max(difference(a, b) for a, b in zip(*made, strict=True)) < PROMPT


@pytest.mark.parametrize("width", [2, 4, 7, 16])
@pytest.mark.parametrize("kind", ["ME*-ME", "bf16"])
def test_windows_commit_the_rows_that_stand(folders: dict[str, Path], kind: str, width: int) -> None:
    backend = loaded_at("cpu", folders[kind], threads=2)
    prompt = [(7 * i + 1) % VOCAB for i in range(121)]
    truth = serial(backend, prompt, 40, seed=5, vocab=VOCAB)
    stream = backend.open(None)
    rows = read(backend, stream, prompt, drawn(5, len(prompt), VOCAB))
    kept = at = 0
    while at + width < 40:
        drafts = [truth[at + i + 1].token if (at + i) % 3 else 0 for i in range(width - 1)]
        tokens = [truth[at].token, *drafts]
        position = len(prompt) + at
        got = step(backend, stream, position, tokens, [drawn(5, position + 1 + i, VOCAB) for i in range(width)], kept)
        kept = 1
        while kept < width and tokens[kept] == got[kept - 1].token:
            kept += 1
        rows += got[:kept]
        at += kept
    assert len(rows) > 20
    assert rows == truth[: len(rows)]


def test_drafts_of_the_head_change_nothing_and_it_absorbs_every_row(folders: dict[str, Path]) -> None:
    """Chains drawn with the target's key; the same drafts whether the head absorbs row by row or a window at once."""
    backend = loaded_at("cpu", folders["ME*-ME"], threads=2)
    prompt = [(5 * i + 3) % VOCAB for i in range(60)]
    truth = serial(backend, prompt, 30, seed=2, vocab=VOCAB)
    chains: dict[int, dict[int, tuple[RowOut, ...]]] = {}
    for depth in (1, 4):
        stream = backend.open(None)
        rows = read(backend, stream, prompt, drawn(2, len(prompt), VOCAB))
        assert backend.reserve(stream, 120)
        kept = at = 0
        chains[depth] = {}
        while at + 6 < 30:
            position = len(prompt) + at
            chain = backend.wait(backend.draft(stream, kept, [drawn(2, position + 1 + i, VOCAB) for i in range(depth)], depth))[0]
            chains[depth][position] = chain[:1]
            tokens = [truth[at].token, *(truth[at + i].token for i in range(1, depth))]
            got = step(backend, stream, position, tokens, [drawn(2, position + 1 + i, VOCAB) for i in range(depth)], kept)
            kept = depth
            rows += got
            at += depth
        assert rows == truth[: len(rows)]
        backend.close(stream)
    same = chains[1].keys() & chains[4].keys()
    assert len(same) > 4
    assert all(chains[1][position] == chains[4][position] for position in same)


def test_beside_others_threads_and_marks_change_no_bit(folders: dict[str, Path]) -> None:
    prompts = [[(11 * i + k) % VOCAB for i in range(30 + 61 * k)] for k in range(4)]
    alone = [serial(loaded_at("cpu", folders["ME*-ME"]), prompt, 8, seed=k, vocab=VOCAB) for k, prompt in enumerate(prompts)]
    for threads in (1, 3):
        backend = loaded_at("cpu", folders["ME*-ME"], threads=threads)
        streams = [backend.open(None) for _ in prompts]
        rows = [read(backend, s, p, drawn(k, len(p), VOCAB)) for k, (s, p) in enumerate(zip(streams, prompts, strict=True))]
        for at in range(8):
            windows = []
            for k, stream in enumerate(streams):
                position = len(prompts[k]) + at
                assert backend.reserve(stream, position + 1)
                wish = drawn(k, position + 1, VOCAB)
                windows.append(Window(stream=stream, start=position, tokens=(rows[k][-1].token,), draws=(wish,), kept=min(at, 1)))
            for k, got in enumerate(backend.wait(backend.step(windows))):
                rows[k] += got
        assert rows == alone
        first = backend.open(None)
        read(backend, first, prompts[3][:128], None)
        mark = backend.mark(first)
        assert mark is not None
        backend.close(first)
        again = backend.open(mark)
        resumed = read(backend, again, prompts[3][128:], drawn(3, len(prompts[3]), VOCAB), start=128)
        resumed += step(backend, again, len(prompts[3]), [resumed[0].token], [drawn(3, len(prompts[3]) + 1, VOCAB)], 0)
        assert resumed == alone[3][:2]
