"""One call of the kernels: windows, tokens and draws as C structures, and what came back as RowOuts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from homestretch.engine.backends.cpu import native
from homestretch.engine.draws import MASK64
from homestretch.engine.types import Draw, RowOut

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive rows of one stream. kept: rows of its last window to commit first; seen: attention sees no key below it."""

    stream: int
    start: int
    tokens: Sequence[int]
    kept: int = 0
    seen: int = 0


class Caller:
    """Runs programs of one engine."""

    def __init__(self, library: ctypes.CDLL, engine: int, vocab: int, hidden: int) -> None:
        self.library, self.engine, self.vocab, self.hidden = library, engine, vocab, hidden

    def run(
        self,
        program: int,
        windows: Sequence[Rows],
        draws: Sequence[tuple[int, Draw]],
        *,
        prompt: bool = False,
        hidden: F32 | None = None,
        want_hidden: bool = False,
    ) -> tuple[list[RowOut], F32 | None]:
        """The drawn row of each (row of the call, Draw), and the rows' hidden (rows, width) if wanted.

        prompt: one window, read as prompt tiles. hidden (rows, width): input of a head program. FloatingPointError when a
        row's logits hold NaN or no finite candidate is left.
        """
        rows = sum(len(window.tokens) for window in windows)
        call = native.Call(program=program, rows=rows, windows=len(windows), prompt=int(prompt), draws=len(draws))
        call.window = (native.Window * len(windows))()
        call.tokens = (ctypes.c_int32 * rows)(*(token for window in windows for token in window.tokens))
        first = 0
        for made, window in zip(call.window, windows, strict=False):
            made.stream, made.start, made.rows, made.first = window.stream, window.start, len(window.tokens), first
            made.kept, made.seen = window.kept, window.seen
            first += made.rows
        keep: list[object] = []
        if draws:
            call.draw_rows = (ctypes.c_int32 * len(draws))(*(row for row, _ in draws))
            call.draw = (native.Draw * len(draws))()
            call.drawn = (native.Drawn * len(draws))()
            for index, (_, draw) in enumerate(draws):
                self._draw(call.draw[index], call.drawn[index], draw, keep)
        out = None
        if hidden is not None:
            given = np.ascontiguousarray(hidden, dtype=np.float32)
            call.hidden = given.ctypes.data
        if want_hidden:
            out = np.empty((rows, self.hidden), dtype=np.float32)
            call.hidden_out = out.ctypes.data
        self.library.hs_run(self.engine, ctypes.byref(call))
        return [_row(call.drawn[index], draw) for index, (_, draw) in enumerate(draws)], out

    def _draw(self, made: native.Draw, drawn: native.Drawn, draw: Draw, keep: list[object]) -> None:
        made.seed, made.position = draw.seed & MASK64, draw.position
        made.temperature, made.top_k, made.top_p, made.min_p = draw.temperature, draw.top_k, draw.top_p, draw.min_p
        made.inverse = 1.0 / draw.temperature if draw.temperature > 0 else 0.0
        if draw.bias:
            for token, _ in draw.bias:
                if not 0 <= token < self.vocab:
                    raise ValueError(f"a bias names token {token}; the vocabulary has {self.vocab}")
            ids = (ctypes.c_int32 * len(draw.bias))(*(token for token, _ in draw.bias))
            addends = (ctypes.c_float * len(draw.bias))(*(addend for _, addend in draw.bias))
            keep += [ids, addends]
            made.biases, made.bias_ids, made.bias_values = len(draw.bias), ids, addends
        if draw.mask is not None:
            mask = draw.mask.ljust(-(-self.vocab // 8), b"\0")
            keep.append(mask)
            made.mask = mask
        if draw.logprobs:
            count = min(draw.logprobs, self.vocab)
            top_ids, values = (ctypes.c_int32 * count)(), (ctypes.c_double * count)()
            keep += [top_ids, values]
            made.logprobs, drawn.top_ids, drawn.top_values = count, top_ids, values


def _row(drawn: native.Drawn, draw: Draw) -> RowOut:
    if drawn.fault == native.FAULT_NAN:
        raise FloatingPointError(f"the logits of position {draw.position} hold NaN")
    if drawn.fault == native.FAULT_EMPTY:
        raise FloatingPointError(f"position {draw.position} has no token to draw: every candidate is masked or infinite")
    if not draw.logprobs:
        return RowOut(token=drawn.token)
    top = tuple((drawn.top_ids[i], drawn.top_values[i]) for i in range(drawn.top))
    return RowOut(token=drawn.token, logprob=drawn.logprob, top=top)
