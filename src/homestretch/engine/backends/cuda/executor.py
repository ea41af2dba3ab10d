"""Launches a lowered program over rows; `rows.py` and `tiles.py` say how products, attention and recurrences differ."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from homestretch.engine.backends.cuda.kernels import affine, dense, pointwise, router
from homestretch.engine.backends.cuda.lower import Lowered, Step
from homestretch.engine.backends.cuda.memory import Store
from homestretch.engine.backends.cuda.sizes import LEAST_GROUP
from homestretch.engine.backends.cuda.weights import Dense, Packed
from homestretch.engine.program import (
    Add,
    Attention,
    Concat,
    Conv,
    Embed,
    Experts,
    GatedNorm,
    Head,
    Linear,
    Program,
    Relu2,
    RmsNorm,
    Rotary,
    Router,
    SiluMul,
    Ssm,
)

Matrices = Mapping[str, Packed | Dense]


def power(n: int) -> int:
    """The next power of two, at least 16."""
    return max(16, 1 << (n - 1).bit_length())


def logit_buffers(program: Program, lowered: Lowered) -> set[int]:
    """Buffers that hold logits and nothing else."""
    logits = {op.outs[0] for op in program.ops if isinstance(op.attrs, Head)}
    others = {place.buffer for number, place in lowered.places.items() if number not in logits}
    return {lowered.places[number].buffer for number in logits} - others


class Executor:
    """Buffers for up to `capacity` rows of one program, and the launches of its steps on the first `count` of them."""

    draws = True
    """False where nobody reads logits: their buffer, the largest by far, is not made."""

    def __init__(
        self,
        *,
        name: str,
        program: Program,
        lowered: Lowered,
        matrices: Matrices,
        store: Store,
        capacity: int,
        compute: torch.dtype,
    ) -> None:
        self.name, self.program, self.lowered, self.matrices, self.store = name, program, lowered, matrices, store
        self.capacity, self.compute, self.device = capacity, compute, store.device
        unused = set() if self.draws else logit_buffers(program, lowered)
        self.buffers = [
            torch.zeros((0 if number in unused else capacity, width), device=self.device)
            for number, width in enumerate(lowered.buffers)
        ]
        self.casts = [torch.zeros((capacity, width), dtype=compute, device=self.device) for width, _ in lowered.casts]
        # Rows of width // group, dense; a value that is prepared anew for another group takes the same buffer.
        self.sums = [torch.zeros(capacity * (width // LEAST_GROUP), device=self.device) for width, _ in lowered.casts]
        self.tokens = torch.zeros(capacity, dtype=torch.int64, device=self.device)
        self.positions = torch.zeros(capacity, dtype=torch.int32, device=self.device)
        self.slots = torch.full((capacity,), -1, dtype=torch.int32, device=self.device)
        self._inverse: dict[tuple[Rotary, tuple[str, ...]], torch.Tensor] = {}
        self._ids: dict[int, torch.Tensor] = {}
        self._held: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}
        self._zero = torch.zeros(1, device=self.device)

    def value(self, number: int) -> torch.Tensor:
        """A value's rows, (capacity, width); a view with the buffer's stride."""
        place = self.lowered.places[number]
        return self.buffers[place.buffer][:, place.first : place.first + place.width]

    def launch(self, count: int) -> None:
        """Every step on rows 0 .. count."""
        for step in self.lowered.steps:
            self._step(step, count)

    def _step(self, step: Step, count: int) -> None:
        a = step.attrs
        if a is None or isinstance(a, SiluMul | Relu2):
            self._activate(step, count)
        elif isinstance(a, Embed):
            self._embed(step, count)
        elif isinstance(a, RmsNorm):
            self._norm(step, a, count)
        elif isinstance(a, Linear):
            self._linear(step, count)
        elif isinstance(a, Head):
            self._head(step, count)
        elif isinstance(a, Add):
            self._add(step, count)
        elif isinstance(a, Concat):
            torch.cat([self.value(number)[:count] for number in step.ins], dim=1, out=self.value(step.outs[0])[:count])
        elif isinstance(a, Rotary):
            self._rotary(step, a, count)
        elif isinstance(a, GatedNorm):
            self._gated_norm(step, a, count)
        elif isinstance(a, Router):
            self._router(step, a, count)
        elif isinstance(a, Experts):
            self._experts(step, count)
        elif isinstance(a, Attention):
            self._attention(step, a, count)
        elif isinstance(a, Conv):
            self._conv(step, a, count)
        elif isinstance(a, Ssm):
            self._ssm(step, a, count)
        else:
            raise TypeError(f"no kernel for {type(a).__name__}")

    def cast_of(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The prepared copy of a value and its groups' sums."""
        at = self.lowered.prepared[number].cast
        return self.casts[at], self.sums[at]

    def _prepared(self, step: Step, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cast_of(number) if step.prepare else (self._zero, self._zero)

    def vector(self, name: str) -> torch.Tensor:
        """A dense weight that a kernel reads as it is."""
        matrix = self.matrices[name]
        if not isinstance(matrix, Dense):
            raise TypeError(f"{name} is packed where a dense tensor is read")
        return matrix.tensor

    def _embed(self, step: Step, count: int) -> None:
        table, out = self.matrices[step.weights[0]], self.value(step.outs[0])
        if isinstance(table, Packed):
            affine.affine_embed[(count, table.k // table.group)](
                self.tokens,
                table.words,
                table.scales,
                table.biases,
                out,
                K=table.k,
                BN=table.bn,
                GROUP=table.group,
                BITS=table.bits,
            )
        else:
            dense.dense_embed[(count, -(-table.k // 256))](self.tokens, table.tensor, out, table.k, BK=256)

    def _norm(self, step: Step, a: RmsNorm, count: int) -> None:
        first = self.value(step.ins[0])
        k = first.shape[1]
        x, sums = self._prepared(step, step.outs[0])
        summed = self.value(step.added) if step.added is not None else self._zero
        second = self.value(step.ins[1]) if step.added is not None else self._zero
        third = self.value(step.ins[2]) if len(step.ins) > 2 else self._zero
        first = self._whole(first, count)
        pointwise.add_norm[(count,)](
            first, self._whole(second, count), self._whole(third, count), self.vector(step.weights[0]),
            summed, self.value(step.outs[0]), x, sums, a.eps,
            K=k, BK=power(k), GROUP=step.prepare or 16, ADD=len(step.ins) - 1, PREPARE=bool(step.prepare), PLAIN=step.plain,
        )  # fmt: skip

    def _whole(self, value: torch.Tensor, count: int) -> torch.Tensor:
        """A value as rows without gaps; a part of a joined product or of a split is copied."""
        return value if value.dim() == 1 or value.stride(0) == value.shape[1] else value[:count].contiguous()

    def _activate(self, step: Step, count: int) -> None:
        first = self.value(step.ins[0])
        kind = 1 if isinstance(step.attrs, SiluMul) else 2 if isinstance(step.attrs, Relu2) else 0
        second = self.value(step.ins[1]) if kind == 1 else first
        number = step.outs[0] if step.outs else step.ins[0]
        x, sums = self._prepared(step, number)
        out = self.value(step.outs[0]) if step.outs else self._zero
        k = first.shape[1]
        pointwise.activate[(count,)](
            first, second, out, x, sums, first.stride(0), second.stride(0),
            K=k, BK=power(k), GROUP=step.prepare or 16, KIND=kind, PREPARE=bool(step.prepare), PLAIN=bool(step.outs) and step.plain,
        )  # fmt: skip

    def _gated_norm(self, step: Step, a: GatedNorm, count: int) -> None:
        y, z = self.value(step.ins[0]), self.value(step.ins[1])
        out = self.value(step.outs[0])
        k = y.shape[1]
        x, sums = self._prepared(step, step.outs[0])
        pointwise.gated_norm[(count, a.groups)](
            y, z, self.vector(step.weights[0]), out, x, sums, a.eps, y.stride(0), z.stride(0),
            K=k, PARTS=a.groups, BP=power(k // a.groups), GROUP=step.prepare or 16, PREPARE=bool(step.prepare), PLAIN=step.plain,
        )  # fmt: skip

    def _add(self, step: Step, count: int) -> None:
        a, b = (self._whole(self.value(number), count) for number in step.ins)
        k = a.shape[1]
        pointwise.add[(count, -(-k // 512))](a, b, self.value(step.outs[0]), k, BK=512)

    def _rotary(self, step: Step, a: Rotary, count: int) -> None:
        key = (a, step.weights)
        if key not in self._inverse:
            exponent = -torch.arange(0, a.dims, 2, dtype=torch.float64) / a.dims
            inverse = (a.base**exponent).to(torch.float32).to(self.device)
            self._inverse[key] = inverse / self.vector(step.weights[0]).to(torch.float32) if step.weights else inverse
        x = self.value(step.ins[0])
        pointwise.rotary[(count, a.heads)](
            x, self.positions, self._inverse[key], self.value(step.outs[0]), x.stride(0), a.heads,
            D=a.head_dim, BD=power(a.head_dim), DIMS=a.dims, INTERLEAVED=a.interleaved,
        )  # fmt: skip

    def _router(self, step: Step, a: Router, count: int) -> None:
        x = self.value(step.ins[0])
        logits = self._scratch(f"router{a.experts}", (self.capacity, a.experts))
        self.gate_product(x, self.vector(step.weights[0]), logits, count)
        router.select[(count,)](
            logits, self.vector(step.weights[1]), self._chosen(step.outs[0], a.top), self.value(step.outs[1]), a.scale,
            E=a.experts, BE=power(a.experts), TOP=a.top, GROUPS=a.groups, TOP_GROUPS=a.top_groups, NORMALISE=a.normalise,
        )  # fmt: skip

    def gate_product(self, x: torch.Tensor, gate: torch.Tensor, logits: torch.Tensor, count: int) -> None:
        """Scores of all experts."""
        self.dense_product(x, gate, None, logits, count)

    def _chosen(self, number: int, top: int) -> torch.Tensor:
        """Expert ids of a router's first output, (capacity, top) int32; one buffer serves all routers in turn."""
        if top not in self._ids:
            self._ids[top] = torch.zeros((self.capacity, top), dtype=torch.int32, device=self.device)
        return self._ids[top]

    def _scratch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A buffer that lives between two launches. It is never given back: captured graphs hold its address."""
        if (name, shape) not in self._held:
            self._held[name, shape] = torch.zeros(shape, dtype=dtype, device=self.device)
        return self._held[name, shape]

    def dense_product(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor, count: int) -> None:
        """y = x w^T (+ bias), 16 rows at a time."""
        n, k = w.shape
        dense.dense_rows[(-(-n // 16), -(-count // 16))](
            x,
            w,
            bias if bias is not None else self._zero,
            y,
            count,
            n,
            k,
            x.stride(0),
            y.stride(0),
            BN=16,
            BK=64,
            BIAS=bias is not None,
        )

    def _linear(self, step: Step, count: int) -> None:
        matrix = self.matrices[step.matrix]
        place = self.lowered.places[step.outs[0]]
        out = self.buffers[place.buffer][:, place.first :]
        bias = self.vector(step.weights[1]) if len(step.weights) > 1 and step.matrix == step.weights[0] else None
        if isinstance(matrix, Dense):
            self.dense_product(self.value(step.ins[0]), matrix.tensor, bias, out, count)
            return
        self.product(step.ins[0], matrix, out, count)
        if bias is not None:
            out[:count, : matrix.n].add_(bias.to(torch.float32))

    def product(self, number: int, matrix: Packed, out: torch.Tensor, count: int) -> None:
        raise NotImplementedError

    def _head(self, step: Step, count: int) -> None:
        raise NotImplementedError

    def _experts(self, step: Step, count: int) -> None:
        raise NotImplementedError

    def _attention(self, step: Step, a: Attention, count: int) -> None:
        raise NotImplementedError

    def _conv(self, step: Step, a: Conv, count: int) -> None:
        raise NotImplementedError

    def _ssm(self, step: Step, a: Ssm, count: int) -> None:
        raise NotImplementedError

    def expert_inner(self, inner: torch.Tensor, pairs: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared ReLU of the experts' inner rows, prepared for the second product."""
        k = inner.shape[1]
        x = self._scratch(f"inner{k}", (inner.shape[0], k), self.compute)
        sums = self._scratch(f"sums{k}", (inner.shape[0], k // group))
        pointwise.activate[(pairs,)](
            inner, inner, self._zero, x, sums, k, k, K=k, BK=power(k), GROUP=group, KIND=2, PREPARE=True, PLAIN=False
        )
        return x, sums

    def combine(self, step: Step, pairs: torch.Tensor, count: int) -> None:
        """Add up the chosen experts of every row."""
        shares = self._whole(self.value(step.ins[2]), count)
        out = self.value(step.outs[0])
        k = out.shape[1]
        pointwise.combine[(count, -(-k // 256))](out, pairs, shares, k, BK=256, TOP=shares.shape[1])
