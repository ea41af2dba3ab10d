"""What runs a Program, and how to find one: a folder here with a `Backend` class in its `__init__.py` is a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from homestretch.engine.checkpoint import Checkpoint
from homestretch.engine.program import Model
from homestretch.engine.types import (
    Draw,
    Limits,
    Mark,
    MemoryPlan,
    Numerics,
    PromptPiece,
    RowOut,
    StreamId,
    Ticket,
    Window,
    WindowCosts,
)


class Backend(Protocol):
    """Runs one model. All calls come from one thread. A row's bits depend on its own inputs and its stream's past only."""

    name: ClassVar[str]
    numerics: Numerics

    @classmethod
    def refusal(cls, device: str = "") -> str | None:
        """Why this backend cannot work on this machine, in one line with what would; None if it can. Reads no weights."""

    @classmethod
    def lacks(cls, model: Model) -> str | None:
        """Operations of this model that the backend does not compute, in one line; None if it has all. Reads no weights."""

    def plan(self, model: Model, limits: Limits) -> MemoryPlan:
        """Memory from headers alone."""

    def load(self, model: Model, checkpoint: Checkpoint, limits: Limits) -> None:
        """Read the weights. Called once."""

    def open(self, mark: Mark | None) -> StreamId:
        """A new stream, empty or standing at `mark`."""

    def reserve(self, stream: StreamId, upto: int) -> bool:
        """Make room for positions below `upto`; False: no room now, ask again when another stream has closed."""

    def read(self, piece: PromptPiece) -> Ticket:
        """Read prompt tokens in tiles; with a draw, `wait` gives one window of one row, else no window."""

    def step(self, windows: Sequence[Window]) -> Ticket:
        """One step of several streams: commit `kept` rows of each stream's last window, run the rows, draw every token."""

    def draft(self, stream: StreamId, kept: int, draws: Sequence[Draw], limit: int) -> Ticket:
        """MTP: absorb the `kept` rows of the stream's last window into the head, then draft up to `limit` tokens after them.

        Called after `wait` on the step and before the next one (which commits the same `kept`). draws[i] draws draft i, with
        the position that token will have. limit 0 only absorbs (the round's drafts come from elsewhere). `wait` gives one
        window of the drafted rows. Chain state is dropped. Illegal without a head. After a prompt `kept` is 0: the token that
        its last piece drew is the pending one. Rounds may go by without a call; the head then sees the text from the next on.
        """

    def wait(self, ticket: Ticket) -> tuple[tuple[RowOut, ...], ...]:
        """Results of a call, one tuple of rows per window."""

    def mark(self, stream: StreamId) -> Mark | None:
        """Keep the stream's state, which must stand at a multiple of QUANTUM and be made by `read` alone. None: no room."""

    def drop(self, mark: Mark) -> None:
        """Forget a mark; streams opened from it live on."""

    def close(self, stream: StreamId) -> None:
        """Forget a stream. Legal while a call is in flight."""

    def free_bytes(self) -> int:
        """Memory left for streams and marks."""

    def costs(self) -> WindowCosts:
        """Measured at load; zeros where nothing was measured."""


def names() -> tuple[str, ...]:
    """Names of the backends in this folder, sorted."""
    import pkgutil

    return tuple(sorted(info.name for info in pkgutil.iter_modules(__path__) if info.ispkg))


def find(name: str) -> type[Backend]:
    """The Backend class of a folder here. KeyError for a name that is not in `names()`."""
    import importlib

    if name not in names():
        raise KeyError(name)
    backend: type[Backend] = importlib.import_module(f"{__name__}.{name}").Backend
    return backend
