"""Rows of windows: a few rows of several streams, every row by itself, in launches whose shape depends on counts alone.

All that changes from step to step (tokens, positions, places, kept rows, phases) is read from device memory, so a captured graph
of one (rows, windows, chunks) shape can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from homestretch.engine.backends.cuda.executor import Executor, power
from homestretch.engine.backends.cuda.kernels import affine, attention, recurrent, router
from homestretch.engine.backends.cuda.lower import Step
from homestretch.engine.backends.cuda.memory import ROWS, send
from homestretch.engine.backends.cuda.sizes import PARTS
from homestretch.engine.backends.cuda.weights import Packed, stages
from homestretch.engine.program import QUANTUM, Attention, Conv, Ssm

CHUNK = 512
BLOCK = 64
LANES = 16


def chunks_for(position: int) -> int:
    """Attention chunks a launch provides for: the next power of two, so that few graphs serve a growing text."""
    return 1 << (position // CHUNK).bit_length()


class Rows(Executor):
    """starts, places, kept and phases describe the windows: rows starts[w] .. starts[w+1] belong to stream place places[w]."""

    def prepare(self) -> None:
        """Buffers of the window tables; called once."""
        most = self.store.streams

        # One buffer, so that all that a step sends goes up in one copy.
        rows = self.capacity
        self._sizes = (2 * rows, rows, rows, most + 1, most, most, most)
        self._board = torch.zeros(sum(self._sizes), dtype=torch.int32, device=self.device)
        tokens, self.positions, self.slots, self.starts, self.places, self.kept, self.phases = (
            self._board[end - size : end] for end, size in zip(accumulate(self._sizes), self._sizes, strict=True)
        )
        self.tokens = tokens.view(torch.int64)
        self.windows, self.chunks = 1, 1
        last = self.store.tables.shape[1] * QUANTUM - 1
        row = max(
            (a.attrs.kv_heads * chunks_for(last) * part_of(a.attrs) for a in self.program.ops if isinstance(a.attrs, Attention)),
            default=0,
        )
        self._parts = torch.zeros(min(self.capacity * row, max(PARTS, row)), device=self.device)
        logits = self.lowered.places[self.program.outputs["logits"]]
        self.logits = self.buffers[logits.buffer]
        self.hidden = self.value(self.program.outputs["hidden"])

    def fill(
        self,
        *,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        starts: Sequence[int],
        places: Sequence[int],
        kept: Sequence[int],
        phases: Sequence[int],
    ) -> None:
        """Rows and windows of the next launch, sent to the device."""
        board = np.zeros(sum(self._sizes), dtype=np.int32)
        board[: self._sizes[0]].view(np.int64)[: len(tokens)] = tokens
        at = self._sizes[0]
        for values, size in zip((positions, slots, starts, places, kept, phases), self._sizes[1:], strict=True):
            board[at : at + len(values)] = values
            at += size
        send(self._board, board)
        self.windows, self.chunks = len(places), chunks_for(max(positions))

    def product(self, number: int, matrix: Packed, out: torch.Tensor, count: int) -> None:
        x, sums = self.cast_of(number)
        affine.affine_rows[(matrix.blocks, -(-count // 16))](
            x, sums, matrix.words, matrix.scales, matrix.biases, out, count, matrix.n, matrix.k, out.stride(0),
            K=matrix.k, BN=matrix.bn, GROUP=matrix.group, BITS=matrix.bits,
            STAGES=stages(matrix.bits, matrix.group, wide=False),
        )  # fmt: skip

    asked = True
    """False leaves the logits out: rows that are only absorbed."""

    def gate_product(self, x: torch.Tensor, gate: torch.Tensor, logits: torch.Tensor, count: int) -> None:
        """Each row by itself and four experts a program: 16 rows at once would keep eight programs busy, one after the other."""
        experts, k = gate.shape
        router.scores[(count, -(-experts // 4))](x, gate, logits, x.stride(0), experts, K=k, BE=4, BK=512)

    def launch_head(self, step: Step, count: int) -> None:
        """The logits of rows whose prepared hidden stands in its buffer."""
        self._head(step, count)

    def _head(self, step: Step, count: int) -> None:
        if not self.asked:
            return
        matrix = self.matrices[step.matrix]
        if isinstance(matrix, Packed):
            self.product(step.ins[0], matrix, self.logits, count)
        else:
            self.dense_product(self.value(step.ins[0]), matrix.tensor, None, self.logits, count)

    def _experts(self, step: Step, count: int) -> None:
        first, second = (self.matrices[name] for name in step.weights)
        if not (isinstance(first, Packed) and isinstance(second, Packed)):
            raise TypeError("experts are packed")
        ids = self._chosen(step.ins[1], self.value(step.ins[2]).shape[1])
        top = ids.shape[1]
        pairs = count * top
        x, sums = self.cast_of(step.ins[0])
        inner = self._scratch(f"fc1.{first.n}", (self.capacity * top, first.n))
        outer = self._scratch(f"fc2.{second.n}", (self.capacity * top, second.n))
        self._pairs(x, sums, ids, first, inner, pairs, top)
        y, totals = self.expert_inner(inner, pairs, second.group)
        self._pairs(y, totals, ids, second, outer, pairs, 1)
        self.combine(step, outer, count)

    def _pairs(
        self, x: torch.Tensor, sums: torch.Tensor, ids: torch.Tensor, m: Packed, y: torch.Tensor, pairs: int, share: int
    ) -> None:
        affine.affine_pairs[(m.blocks, pairs)](
            x, sums, ids, m.words, m.scales, m.biases, y, pairs, m.n, m.k, m.n, share,
            K=m.k, BN=m.bn, GROUP=m.group, BITS=m.bits, BLOCKS=m.blocks,
            STAGES=stages(m.bits, m.group, wide=False),
        )  # fmt: skip

    def _attention(self, step: Step, a: Attention, count: int) -> None:
        q, k, v = (self.value(number) for number in step.ins)
        pool, tables, firsts = self.store.kv[step.slot or ""], self.store.tables, self.store.firsts[self.name]
        width = tables.stride(0)
        shape = {"KV": a.kv_heads, "D": a.head_dim, "BD": power(a.head_dim)}
        attention.store_kv[(count, a.kv_heads)](
            k, v, pool, tables, self.slots, self.positions, k.stride(0), v.stride(0), width, PAGE=QUANTUM, **shape
        )
        lanes, y = lanes_of(a), self.value(step.outs[0])
        per = a.kv_heads * self.chunks
        turn = self._parts.numel() // (per * part_of(a))
        turn = min(count, 1 << (turn.bit_length() - 1))
        part, stats = self._parts[: turn * per * lanes * a.head_dim], self._parts[turn * per * lanes * a.head_dim :]
        for at in range(0, count, turn):
            many, slots, positions = min(turn, count - at), self.slots[at:], self.positions[at:]
            attention.attend_rows[(many, a.kv_heads, self.chunks)](
                q[at:], pool, tables, slots, positions, firsts, part, stats, a.scale, q.stride(0), width, self.chunks,
                HEADS=a.heads, BH=lanes, PAGE=QUANTUM, CHUNK=CHUNK, BLOCK=BLOCK, **shape,
            )  # fmt: skip
            attention.merge_rows[(many, a.kv_heads)](
                part, stats, slots, positions, firsts, y[at:], self.chunks, HEADS=a.heads, BH=lanes, CHUNK=CHUNK, **shape
            )

    def _conv(self, step: Step, a: Conv, count: int) -> None:
        x, saved = self.value(step.ins[0]), self.store.keep_inputs(f"{step.slot}.raw", a.channels)
        bias = self.vector(step.weights[1]) if len(step.weights) > 1 else self._scratch(f"nobias{a.channels}", (a.channels,))
        recurrent.conv_rows[(self.windows, -(-a.channels // 128))](
            x, self.vector(step.weights[0]), bias, self.store.state[step.slot or ""], saved, self.value(step.outs[0]),
            self.starts, self.places, self.kept, self.phases, x.stride(0), self.store.streams,
            C=a.channels, TAPS=a.kernel, BC=128, BT=max(4, 1 << (a.kernel - 2).bit_length()), MOST=ROWS,
        )  # fmt: skip

    def _ssm(self, step: Step, a: Ssm, count: int) -> None:
        x, dt = (self.value(number) for number in step.ins)
        saved_x = self.store.keep_inputs(f"{step.slot}.x", x.shape[1])
        saved_dt = self.store.keep_inputs(f"{step.slot}.dt", a.heads)
        a_log, d, dt_bias = (self.vector(name) for name in step.weights)
        bp = min(16, a.head_dim & -a.head_dim)
        recurrent.ssm_rows[(self.windows, a.heads, a.head_dim // bp)](
            x, dt, a_log, d, dt_bias, self.store.state[step.slot or ""], saved_x, saved_dt, self.value(step.outs[0]),
            self.starts, self.places, self.kept, self.phases, dt.stride(0), a.dt_min, a.dt_max, self.store.streams,
            HEADS=a.heads, P=a.head_dim, BP=bp, GROUPS=a.groups, N=a.state, BN=power(a.state), MOST=ROWS,
            enable_fp_fusion=False,  # a replayed row must round as it did in its window
        )  # fmt: skip


def lanes_of(a: Attention) -> int:
    """Query heads of a KV head as the kernels hold them."""
    return max(LANES, power(a.heads // a.kv_heads))


def part_of(a: Attention) -> int:
    """Elements that one chunk of one row and KV head leaves behind: sums, maxima, masses."""
    return lanes_of(a) * (a.head_dim + 2)
