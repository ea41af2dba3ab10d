"""Draws the tokens of many rows on the device: settings go up once, a few small kernels run, tokens stay there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from homestretch.engine.backends.cuda.kernels import draws as kernels
from homestretch.engine.draws import COLD, key
from homestretch.engine.types import Draw

BLOCK = 2048


class Drawer:
    """Buffers and launches for up to `rows` rows over `vocab` logits. `launch` is what a captured graph holds."""

    def __init__(self, *, vocab: int, rows: int, device: torch.device) -> None:
        self.vocab, self.rows, self.device = vocab, rows, device
        self.blocks = -(-vocab // BLOCK)
        self.lanes = 1 << (self.blocks - 1).bit_length()

        def buffer(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.keys = buffer(rows, dtype=torch.int64)
        self.inverse, self.top_p, self.min_p = (buffer(rows, dtype=torch.float32) for _ in range(3))
        self.top_k = buffer(rows, dtype=torch.int32)
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
        self.keys[:count].copy_(torch.from_numpy(keys), non_blocking=True)
        self.inverse[:count].copy_(torch.from_numpy(inverse), non_blocking=True)
        for target, values in ((self.top_p, [r.top_p for r in rows]), (self.min_p, [r.min_p for r in rows])):
            target[:count].copy_(torch.tensor(values, dtype=torch.float32), non_blocking=True)
        self.top_k[:count].copy_(torch.tensor([r.top_k for r in rows], dtype=torch.int32), non_blocking=True)

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
            self.vocab, self.blocks, BLOCK=BLOCK, BB=self.lanes, WITHIN=mode in ("number", "mass"),
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
            )  # fmt: skip
            kernels.narrow_row[(count,)](
                self.mass, self.number, self.top_k[first:], self.top_p[first:], self.wanted, self.above, self.prefix,
                self.threshold, self.ties, LEVEL=level, BY_MASS=by_mass,
            )  # fmt: skip
        kernels.count_ties[(count, self.blocks)](logits, self.threshold, self.counts, self.vocab, self.blocks, BLOCK=BLOCK)
