"""Draws the tokens of many rows on the device: settings go up once, a few small kernels run, tokens stay there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from homestretch.engine.backends.cuda.kernels import draws as kernels
from homestretch.engine.backends.cuda.memory import send
from homestretch.engine.draws import COLD, key
from homestretch.engine.types import Draw

BLOCK = 2048


def add_bias(row: torch.Tensor, bias: Sequence[tuple[int, float]]) -> None:
    """Add a draw's biases to a row of logits (vocab,) on the device."""
    ids = torch.tensor([token for token, _ in bias], device=row.device)
    row.index_add_(0, ids, torch.tensor([addend for _, addend in bias], dtype=row.dtype, device=row.device))


class Drawer:
    """Buffers and launches for up to `rows` rows over `vocab` logits. `launch` is what a captured graph holds.

    Noise and masses are computed without fused multiply-adds: `engine/draws.py` rounds after each operation.
    """

    def __init__(self, *, vocab: int, rows: int, device: torch.device) -> None:
        self.vocab, self.rows, self.device = vocab, rows, device
        self.blocks = -(-vocab // BLOCK)
        self.lanes = 1 << (self.blocks - 1).bit_length()

        def buffer(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        # One buffer, so that a step's settings go up in one copy.
        self._settings = buffer(6 * rows, dtype=torch.int32)
        lines = self._settings.view(6, rows)
        self.keys = self._settings[: 2 * rows].view(torch.int64)
        self.inverse, self.top_p, self.min_p = (lines[at].view(torch.float32) for at in (2, 3, 4))
        self.top_k = lines[5]
        self.peak, self.best = buffer(rows, dtype=torch.float32), buffer(rows, dtype=torch.float32)
        self.tokens = buffer(rows, dtype=torch.int64)
        self.values, self.ids = buffer(rows, self.blocks, dtype=torch.float32), buffer(rows, self.blocks, dtype=torch.int32)
        self.counts = buffer(rows, self.blocks, dtype=torch.int32)
        self.mass, self.number = buffer(rows, 2048, dtype=torch.int64), buffer(rows, 2048, dtype=torch.int32)
        self.wanted, self.above = buffer(rows, dtype=torch.float64), buffer(rows, dtype=torch.int64)
        self.prefix, self.threshold, self.ties = (buffer(rows, dtype=torch.int32) for _ in range(3))

    @staticmethod
    def mode(rows: Sequence[Draw]) -> str:
        """greedy, plain (noise only), mass (top-p) or number (top-k, then top-p): the least that these rows need."""
        warm = [row for row in rows if row.temperature >= COLD]
        if any(row.top_k > 0 for row in warm):
            return "number"
        if any(row.top_p < 1.0 for row in warm):
            return "mass"
        return "plain" if warm else "greedy"

    def set(self, rows: Sequence[Draw]) -> None:
        """Send the rows' settings to the device."""
        warm = [row.temperature >= COLD for row in rows]
        count = len(rows)
        inverse = np.asarray([1.0 / r.temperature if w else 0.0 for r, w in zip(rows, warm, strict=True)], dtype=np.float32)
        keys = np.asarray([key(r.seed, r.position) for r in rows], dtype=np.uint64).view(np.int64)
        table = np.zeros((6, self.rows), dtype=np.int32)
        table[:2].reshape(-1).view(np.int64)[:count] = keys
        table[2:5].view(np.float32)[:, :count] = inverse, [r.top_p for r in rows], [r.min_p for r in rows]
        table[5, :count] = [r.top_k for r in rows]
        send(self._settings, table.reshape(-1))

    def launch(self, logits: torch.Tensor, count: int, mode: str, first: int = 0) -> torch.Tensor:
        """Draw `count` rows of logits (count, vocab) float32 by the settings from `first` on; (count,) int64 on the device."""
        blocks = (count, self.blocks)
        kernels.peaks[blocks](logits, self.values, self.ids, self.vocab, self.blocks, BLOCK=BLOCK)
        kernels.best_row[(count,)](self.values, self.ids, self.peak, self.tokens, self.blocks, BB=self.lanes)
        if mode == "greedy":
            return self.tokens[:count]
        if mode == "number":
            self._select(logits, count, first, by_mass=False, within=False)
            self._select(logits, count, first, by_mass=True, within=True)
        elif mode == "mass":
            self._select(logits, count, first, by_mass=True, within=False)
        kernels.noisy_peaks[blocks](
            logits, self.peak, self.inverse[first:], self.min_p[first:], self.keys[first:], self.threshold, self.ties, self.counts,
            self.values, self.ids,
            self.vocab, self.blocks, BLOCK=BLOCK, BB=self.lanes, WITHIN=mode in ("number", "mass"), enable_fp_fusion=False,
        )  # fmt: skip
        kernels.best_row[(count,)](self.values, self.ids, self.best, self.tokens, self.blocks, BB=self.lanes)
        return self.tokens[:count]

    def draw(self, logits: torch.Tensor, rows: Sequence[Draw]) -> torch.Tensor:
        """Set and launch in one go."""
        self.set(rows)
        return self.launch(logits, len(rows), self.mode(rows))

    def _select(self, logits: torch.Tensor, count: int, first: int, *, by_mass: bool, within: bool) -> None:
        """Narrow the candidate set to the wanted mass or number, three levels of key bits."""
        for level in range(3):
            self.mass[:count].zero_()
            self.number[:count].zero_()
            kernels.tally[(count, self.blocks)](
                logits, self.peak, self.inverse[first:], self.threshold, self.ties, self.counts, self.prefix,
                self.mass, self.number, self.vocab, self.blocks, BLOCK=BLOCK, BB=self.lanes, LEVEL=level, WITHIN=within,
                enable_fp_fusion=False,
            )  # fmt: skip
            kernels.narrow_row[(count,)](
                self.mass, self.number, self.top_k[first:], self.top_p[first:], self.wanted, self.above, self.prefix,
                self.threshold, self.ties, LEVEL=level, BY_MASS=by_mass,
            )  # fmt: skip
        kernels.count_ties[(count, self.blocks)](logits, self.threshold, self.counts, self.vocab, self.blocks, BLOCK=BLOCK)
