"""A piece of one stream's prompt, up to 2,048 rows: wide products, chunked scans, attention, experts sorted into blocks."""

from __future__ import annotations

import torch

from homestretch.engine.backends.cuda.executor import Executor, power
from homestretch.engine.backends.cuda.kernels import affine, attention, recurrent
from homestretch.engine.backends.cuda.lower import Step
from homestretch.engine.backends.cuda.weights import WIDE, Packed, stages
from homestretch.engine.program import QUANTUM, Attention, Conv, Ssm

HIGH = 64
"""Rows of a product's block."""
SCAN = 32
"""Tokens of a chunk of the scan; QUANTUM is a multiple of it, so chunks stand at absolute positions."""


class Tiles(Executor):
    """`at` says whose prompt and where before a launch."""

    draws = False
    place = 0
    start = 0
    low = 0

    def at(self, place: int, start: int, count: int, low: int) -> None:
        """The next launch reads `count` rows of stream place `place` from position `start`; keys below `low` are not seen."""
        self.place, self.start, self.low = place, start, low
        torch.arange(start, start + count, dtype=torch.int32, device=self.device, out=self.positions[:count])
        self.slots[:count] = place

    def hidden(self) -> torch.Tensor:
        """The final hidden rows of the last launch."""
        return self.value(self.program.outputs["hidden"])

    def product(self, number: int, matrix: Packed, out: torch.Tensor, count: int) -> None:
        x, _ = self.cast_of(number)
        affine.affine_tiles[(-(-count // HIGH), matrix.blocks * matrix.bn // WIDE)](
            x, matrix.words, matrix.scales, matrix.biases, out, count, matrix.n, matrix.k, out.stride(0),
            K=matrix.k, BM=HIGH, BN=matrix.bn, BT=WIDE, GROUP=matrix.group, BITS=matrix.bits,
            num_warps=8, num_stages=stages(matrix.bits, matrix.group, wide=True),
        )  # fmt: skip

    def _head(self, step: Step, count: int) -> None:
        """Logits are the window path's: only a prompt's last row is asked for."""

    def _experts(self, step: Step, count: int) -> None:
        first, second = (self.matrices[name] for name in step.weights)
        if not (isinstance(first, Packed) and isinstance(second, Packed)):
            raise TypeError("experts are packed")
        ids = self._chosen(step.ins[1], self.value(step.ins[2]).shape[1])
        top = ids.shape[1]
        pairs = count * top
        order, blocks = sort_pairs(ids[:count].flatten(), first.experts, HIGH)
        x, _ = self.cast_of(step.ins[0])
        inner = self._scratch(f"fc1.{first.n}", (self.capacity * top, first.n))
        outer = self._scratch(f"fc2.{second.n}", (self.capacity * top, second.n))
        self._grouped(x, order, blocks, first, inner, top)
        y, _ = self.expert_inner(inner, pairs, second.group)
        self._grouped(y, order, blocks, second, outer, 1)
        self.combine(step, outer, count)

    def _grouped(self, x: torch.Tensor, order: torch.Tensor, blocks: torch.Tensor, m: Packed, y: torch.Tensor, share: int) -> None:
        affine.affine_grouped[(blocks.shape[1], m.blocks * m.bn // WIDE)](
            x, order, blocks[0], blocks[1], blocks[2], m.words, m.scales, m.biases, y, m.n, m.k, m.n, share,
            K=m.k, BM=HIGH, BN=m.bn, BT=WIDE, GROUP=m.group, BITS=m.bits, BLOCKS=m.blocks,
            num_warps=8, num_stages=stages(m.bits, m.group, wide=True),
        )  # fmt: skip

    def _attention(self, step: Step, a: Attention, count: int) -> None:
        q, k, v = (self.value(number) for number in step.ins)
        pool, tables = self.store.kv[step.slot or ""], self.store.tables
        shape = {"KV": a.kv_heads, "D": a.head_dim, "BD": power(a.head_dim)}
        attention.store_kv[(count, a.kv_heads)](
            k, v, pool, tables, self.slots, self.positions, k.stride(0), v.stride(0), tables.stride(0), PAGE=QUANTUM, **shape
        )
        attention.attend_tiles[(-(-count // 64), a.heads)](
            q, pool, tables[self.place], self.value(step.outs[0]), a.scale, self.start, count, self.low, q.stride(0),
            HEADS=a.heads, PAGE=QUANTUM, BQ=64, BLOCK=64, **shape,
        )  # fmt: skip

    def _conv(self, step: Step, a: Conv, count: int) -> None:
        x, state = self.value(step.ins[0]), self.store.state[step.slot or ""][self.place]
        bias = self.vector(step.weights[1]) if len(step.weights) > 1 else self._scratch(f"nobias{a.channels}", (a.channels,))
        recurrent.conv_tiles[(-(-count // 32), -(-a.channels // 64))](
            x, self.vector(step.weights[0]), bias, state, self.value(step.outs[0]), count, x.stride(0),
            C=a.channels, TAPS=a.kernel, BT=32, BC=64,
        )  # fmt: skip
        keep = a.kernel - 1
        state.copy_(torch.cat((state, x[:count]))[-keep:])

    def _ssm(self, step: Step, a: Ssm, count: int) -> None:
        x, dt = (self.value(number) for number in step.ins)
        a_log, d, dt_bias = (self.vector(name) for name in step.weights)
        bp = min(32, a.head_dim & -a.head_dim)
        recurrent.ssd_tiles[(a.heads, a.head_dim // bp)](
            x, dt, a_log, d, dt_bias, self.store.state[step.slot or ""][self.place], self.value(step.outs[0]),
            count, dt.stride(0), a.dt_min, a.dt_max,
            HEADS=a.heads, P=a.head_dim, BP=bp, GROUPS=a.groups, N=a.state, BN=power(a.state), Q=SCAN,
            NARROW=self.compute == torch.bfloat16,
        )  # fmt: skip


def sort_pairs(ids: torch.Tensor, experts: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(order, blocks) of (pairs,) expert ids, without asking the device for a size.

    order: pair numbers sorted by expert, stable. blocks (3, most): expert, first place in `order` and count of each block of at
    most `high` pairs; unused blocks count 0.
    """
    order = torch.argsort(ids, stable=True).to(torch.int32)
    counts = torch.zeros(experts, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, ids.long(), torch.ones_like(ids, dtype=torch.int64))
    needed = (counts + high - 1) // high
    ends = needed.cumsum(0)
    begins = counts.cumsum(0) - counts
    most = ids.numel() // high + experts
    block = torch.arange(most, device=ids.device)
    expert = torch.searchsorted(ends, block, right=True).clamp_max(experts - 1)
    within = block - (ends[expert] - needed[expert])
    left = (counts[expert] - within * high).clamp(0, high)
    left = torch.where(block < ends[-1], left, 0)
    return order, torch.stack((expert, begins[expert] + within * high, left)).to(torch.int32)
