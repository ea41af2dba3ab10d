"""Rows of windows: a few rows of several streams, every row by itself, in launches whose shape depends on counts alone.

All that changes from step to step (tokens, positions, places, kept rows, phases) is read from device memory, so a captured graph
of one (rows, windows, chunks) shape can be replayed.
"""

from __future__ import annotations

import torch

from homestretch.engine.backends.cuda.executor import Executor, power
from homestretch.engine.backends.cuda.kernels import affine, attention, recurrent
from homestretch.engine.backends.cuda.lower import Step
from homestretch.engine.backends.cuda.memory import ROWS
from homestretch.engine.backends.cuda.weights import Packed
from homestretch.engine.program import QUANTUM, Attention, Conv, Ssm

CHUNK = 512
BLOCK = 64
LANES = 16


class Rows(Executor):
    """starts, places, kept and phases describe the windows: rows starts[w] .. starts[w+1] belong to stream place places[w]."""

    def prepare(self) -> None:
        """Buffers of the window tables; called once."""
        most = self.store.streams

        def table(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=self.device)

        self.starts, self.places, self.kept, self.phases = table(most + 1), table(most), table(most), table(most)
        self.windows, self.chunks = 1, 1
        logits = self.lowered.places[self.program.outputs["logits"]]
        self.logits = self.buffers[logits.buffer]
        self.hidden = self.value(self.program.outputs["hidden"])

    def product(self, number: int, matrix: Packed, out: torch.Tensor, count: int) -> None:
        x, sums = self.cast_of(number)
        affine.affine_rows[(matrix.blocks, -(-count // 16))](
            x, sums, matrix.words, matrix.scales, matrix.biases, out, count, matrix.n, matrix.k, out.stride(0),
            K=matrix.k, BN=matrix.bn, GROUP=matrix.group, BITS=matrix.bits,
        )  # fmt: skip

    asked = True
    """False leaves the logits out: rows that are only absorbed."""

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
        )  # fmt: skip

    def _attention(self, step: Step, a: Attention, count: int) -> None:
        q, k, v = (self.value(number) for number in step.ins)
        pool, tables, firsts = self.store.kv[step.slot or ""], self.store.tables, self.store.firsts[self.name]
        width = tables.stride(0)
        shape = {"KV": a.kv_heads, "D": a.head_dim, "BD": power(a.head_dim)}
        attention.store_kv[(count, a.kv_heads)](
            k, v, pool, tables, self.slots, self.positions, k.stride(0), v.stride(0), width, PAGE=QUANTUM, **shape
        )
        lanes = max(LANES, power(a.heads // a.kv_heads))
        kind = f"{a.kv_heads}.{lanes}.{a.head_dim}.{self.chunks}.{count}"
        part = self._scratch(f"part.{kind}", (count, a.kv_heads, self.chunks, lanes, a.head_dim))
        stats = self._scratch(f"stats.{kind}", (count, a.kv_heads, self.chunks, 2, lanes))
        attention.attend_rows[(count, a.kv_heads, self.chunks)](
            q, pool, tables, self.slots, self.positions, firsts, part, stats, a.scale, q.stride(0), width, self.chunks,
            HEADS=a.heads, BH=lanes, PAGE=QUANTUM, CHUNK=CHUNK, BLOCK=BLOCK, **shape,
        )  # fmt: skip
        attention.merge_rows[(count, a.kv_heads)](
            part, stats, self.slots, self.positions, firsts, self.value(step.outs[0]), self.chunks,
            HEADS=a.heads, BH=lanes, CHUNK=CHUNK, **shape,
        )  # fmt: skip

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
        bp = min(16, a.head_dim)
        recurrent.ssm_rows[(self.windows, a.heads, a.head_dim // bp)](
            x, dt, a_log, d, dt_bias, self.store.state[step.slot or ""], saved_x, saved_dt, self.value(step.outs[0]),
            self.starts, self.places, self.kept, self.phases, dt.stride(0), a.dt_min, a.dt_max, self.store.streams,
            HEADS=a.heads, P=a.head_dim, BP=bp, GROUPS=a.groups, N=a.state, BN=power(a.state), MOST=ROWS,
        )  # fmt: skip
