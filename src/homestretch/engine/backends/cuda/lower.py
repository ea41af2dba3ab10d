"""A Program as a short list of launches: products that read the same rows are joined, a residual and the norm after it are one.

A value is a place in a buffer: (buffer, first column, width). Buffers are reused once their values have been read for the last
time, so that a prompt of 2,048 rows needs a few of them and not one for every operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from homestretch.engine.program import (
    Add,
    Attention,
    Attrs,
    Concat,
    Conv,
    Embed,
    Experts,
    GatedNorm,
    Head,
    Linear,
    Op,
    Program,
    Relu2,
    RmsNorm,
    Router,
    SiluMul,
    Split,
    Ssm,
)

FUSED = (RmsNorm, SiluMul, Relu2, GatedNorm)
"""Kinds whose kernels also prepare their output (GatedNorm where its parts are whole groups)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value lies: columns [first, first + width) of a buffer."""

    buffer: int
    first: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One launch or a few. ins and outs are value numbers, weight names resolved by the executor.

    added: for a norm, the value number that takes the sum of its two or three inputs. prepare: group size of the prepared output,
    0 for none; plain: somebody reads the float32 output. matrix: key of the joined weights of a product.
    """

    attrs: Attrs | None
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    weights: tuple[str, ...] = ()
    slot: str | None = None
    added: int | None = None
    prepare: int = 0
    plain: bool = True
    matrix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The prepared copy of a value: which cast buffer, for groups of which size."""

    cast: int
    group: int


@dataclass(slots=True, kw_only=True)
class Lowered:
    """steps in order; places of every value; widths of the buffers; joined: matrix key -> the weight names it joins.

    prepared: value -> its prepared copy; casts: (width, group) of the buffers that hold those.
    """

    steps: list[Step] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    buffers: list[int] = field(default_factory=list)
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prepared: dict[int, Prepared] = field(default_factory=dict)
    casts: list[tuple[int, int]] = field(default_factory=list)


class Lowering:
    """Builds a Lowered from a program. groups: weight name -> group size of a packed matrix, 0 for a dense one."""

    def __init__(
        self, program: Program, widths: Mapping[str, tuple[int, ...]], groups: Mapping[str, int], joinable: Mapping[str, object]
    ) -> None:
        self.program, self.widths, self.groups, self.joinable = program, widths, groups, joinable
        self.out = Lowered()
        self._last = {number: at for at, op in enumerate(program.ops) for number in op.ins}
        self._kept = set(program.outputs.values())
        self._width: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}
        self._casts: dict[tuple[int, int], list[int]] = {}
        self._users: dict[int, int] = {}
        self._readers: dict[int, list[Op]] = {}
        for op in program.ops:
            for number in op.ins:
                self._readers.setdefault(number, []).append(op)

    def run(self, hidden: int) -> Lowered:
        """hidden: width of the value `hidden`, input 1 of a head."""
        if len(self.program.inputs) > 1:
            self._put(1, hidden)
        done: set[int] = set()
        for at, op in enumerate(self.program.ops):
            if at in done:
                self._let_go(at)
                continue
            if isinstance(op.attrs, Split):
                self._split(op)
            elif isinstance(op.attrs, Linear) and len(op.weights) == 1:
                self._products(at, op, done)
            elif isinstance(op.attrs, Add) and self._norm_follows(at):
                self._sum_and_norm(at, op.ins, op.outs[0], done)
            elif isinstance(op.attrs, Add) and (first := self._sum_follows(at)) is not None:
                done.add(at + 1)
                self._sum_and_norm(at + 1, (first, *op.ins), self.program.ops[at + 1].outs[0], done)
            else:
                self._emit(op, ins=op.ins)
            self._let_go(at)
        return self.out

    def _norm_follows(self, at: int) -> bool:
        follower = self.program.ops[at + 1] if at + 1 < len(self.program.ops) else None
        return follower is not None and isinstance(follower.attrs, RmsNorm) and follower.ins == self.program.ops[at].outs

    def _sum_follows(self, at: int) -> int | None:
        """The other summand, when a sum is read by nothing but a sum right after it that has a norm after itself."""
        made = self.program.ops[at].outs[0]
        follower = self.program.ops[at + 1] if at + 1 < len(self.program.ops) else None
        if follower is None or not isinstance(follower.attrs, Add) or not self._norm_follows(at + 1):
            return None
        others = [number for number in follower.ins if number != made]
        alone = self._readers.get(made) == [follower] and made not in self._kept
        return others[0] if alone and len(others) == 1 else None

    def _sum_and_norm(self, at: int, ins: tuple[int, ...], total: int, done: set[int]) -> None:
        """One launch for the last sum, at `at`, and the norm after it."""
        done.add(at + 1)
        self._put(total, self._width[ins[0]])
        self._emit(self.program.ops[at + 1], ins=ins, added=total)

    def _emit(self, op: Op, *, ins: Sequence[int], added: int | None = None) -> None:
        for number, width in zip(op.outs, self._out_widths(op), strict=True):
            self._put(number, width)
        self._prepare_inputs(op)
        prepare = self._wish(op.outs[0]) if isinstance(op.attrs, FUSED) else 0
        if prepare and isinstance(op.attrs, GatedNorm) and self._width[op.outs[0]] // op.attrs.groups % prepare:
            prepare = 0
        if prepare:
            self._cast(op.outs[0], prepare)
        self.out.steps.append(
            Step(
                attrs=op.attrs,
                ins=tuple(ins),
                outs=op.outs,
                weights=op.weights,
                slot=op.slot,
                added=added,
                prepare=prepare,
                plain=not prepare or self._needs_plain(op.outs[0]),
                matrix=op.weights[0] if isinstance(op.attrs, Linear | Head) else "",
            )
        )

    def _products(self, at: int, op: Op, done: set[int]) -> None:
        """Join this product with the following ones of the same input, where their weights can be joined."""
        group = [op]
        kind = self.joinable.get(op.weights[0])
        for later in range(at + 1, min(at + 6, len(self.program.ops))):
            other = self.program.ops[later]
            same = isinstance(other.attrs, Linear) and other.ins == op.ins and len(other.weights) == 1
            if same and kind is not None and self.joinable.get(other.weights[0]) == kind:
                group.append(other)
                done.add(later)
        self._prepare_inputs(op)
        key = "+".join(o.weights[0] for o in group)
        self.out.joined[key] = tuple(o.weights[0] for o in group)
        widths = [self.widths[o.weights[0]][-2] for o in group]
        buffer = self._take(sum(widths))
        first = 0
        for other, width in zip(group, widths, strict=True):
            self.out.places[other.outs[0]] = Place(buffer=buffer, first=first, width=width)
            self._width[other.outs[0]] = width
            self._users[buffer] = self._users.get(buffer, 0) + 1
            first += width
        outs = tuple(o.outs[0] for o in group)
        self.out.steps.append(Step(attrs=Linear(), ins=op.ins, outs=outs, weights=self.out.joined[key], matrix=key))

    def _split(self, op: Op) -> None:
        """A split is a matter of places; its input's buffer lives as long as its parts."""
        place = self.out.places[op.ins[0]]
        first = place.first
        sizes = op.attrs.sizes if isinstance(op.attrs, Split) else ()
        for number, width in zip(op.outs, sizes, strict=True):
            self.out.places[number] = Place(buffer=place.buffer, first=first, width=width)
            self._width[number] = width
            self._users[place.buffer] += 1
            first += width

    def _prepare_inputs(self, op: Op) -> None:
        """A prepared copy for a packed product whose input was not prepared where it was made."""
        group = self._group(op)
        held = self.out.prepared.get(op.ins[0])
        if group and (held is None or held.group != group):
            self._cast(op.ins[0], group)
            self.out.steps.append(Step(attrs=None, ins=(op.ins[0],), outs=(), prepare=group, plain=False))

    def _group(self, op: Op) -> int:
        """Group size of the packed matrix that reads the op's first input; 0 for none."""
        return self.groups.get(op.weights[0], 0) if isinstance(op.attrs, Linear | Head | Experts) else 0

    def _wish(self, number: int) -> int:
        """The group for which a value's first packed reader wants it prepared."""
        return next((self._group(op) for op in self._readers.get(number, []) if op.ins[0] == number and self._group(op)), 0)

    def _needs_plain(self, number: int) -> bool:
        wish = self._wish(number)
        return number in self._kept or any(
            not (op.ins[0] == number and self._group(op) == wish) for op in self._readers.get(number, [])
        )

    def _out_widths(self, op: Op) -> tuple[int, ...]:
        a, w = op.attrs, self.widths
        if isinstance(a, Embed):
            return (w[op.weights[0]][-1],)
        if isinstance(a, Linear | Head):
            return (w[op.weights[0]][-2],)
        if isinstance(a, Experts):
            return (w[op.weights[1]][-2],)
        if isinstance(a, Router):
            return (a.top, a.top)
        if isinstance(a, Concat):
            return (sum(self._width[number] for number in op.ins),)
        if isinstance(a, Ssm):
            return (a.heads * a.head_dim,)
        if isinstance(a, Conv):
            return (a.channels,)
        if isinstance(a, Attention):
            return (a.heads * a.head_dim,)
        return (self._width[op.ins[0]],)

    def _put(self, number: int, width: int) -> None:
        buffer = self._take(width)
        self.out.places[number] = Place(buffer=buffer, first=0, width=width)
        self._width[number] = width
        self._users[buffer] = self._users.get(buffer, 0) + 1

    def _cast(self, number: int, group: int) -> None:
        kind = (self._width[number], group)
        free = self._casts.get(kind)
        if free:
            cast = free.pop()
        else:
            self.out.casts.append(kind)
            cast = len(self.out.casts) - 1
        self.out.prepared[number] = Prepared(cast=cast, group=group)

    def _take(self, width: int) -> int:
        free = self._free.get(width)
        if free:
            return free.pop()
        self.out.buffers.append(width)
        return len(self.out.buffers) - 1

    def _let_go(self, at: int) -> None:
        """Buffers whose last reader has run may be written again."""
        for number, prepared in self.out.prepared.items():
            if self._last.get(number, -1) == at and number not in self._kept:
                self._casts.setdefault(self.out.casts[prepared.cast], []).append(prepared.cast)
        for number, place in list(self.out.places.items()):
            last = self._last.get(number, -1)
            if last != at or number in self._kept or self._users.get(place.buffer, 0) == 0:
                continue
            self._users[place.buffer] -= 1
            if self._users[place.buffer] == 0:
                self._free.setdefault(self.out.buffers[place.buffer], []).append(place.buffer)
