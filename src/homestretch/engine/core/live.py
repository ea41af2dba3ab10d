"""One request on its way: what it has read and written, how its rows are drawn, and where its reply ends."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from homestretch.engine.drafts import Proposer
from homestretch.engine.drafts.depth import Acceptance
from homestretch.engine.types import DraftCounts, Draw, FinishReason, Request, RowOut, StreamId, Summary, Window

PRIOR_COPIES, PRIOR_HEAD = 0.8, 0.6
"""What is expected of a draft before the first one was checked."""


class Live:
    """The mutable side of a Request. `known` holds tokens that were sent before a restart; the same ones must come again."""

    def __init__(self, request: Request, *, seed: int, arrival: int) -> None:
        self.request, self.seed, self.arrival = request, seed, arrival
        # What a restart keeps.
        self.names: tuple[bytes, ...] | None = None
        self.stops: tuple[int, ...] = ()
        self.known: tuple[int, ...] = ()
        self.acceptance: dict[str, Acceptance] = {}
        self.passed = 0
        self.cached: int | None = None
        self.alone = False
        self.cancelled = False
        self.started_at = self.first_at = 0.0
        self.rounds = 0
        self.drafted: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        # What belongs to one stream of the backend.
        self.stream: StreamId | None = None
        self.room = self.read = self.kept = 0
        self.reply: list[int] = []
        self.used: Counter[int] = Counter()
        self.stalled = self.head = False
        self.head_idle = self.head_pause = 0
        self.proposers: dict[str, Proposer] = {}

    def restart(self) -> None:
        """Back to nothing read and nothing written; what was written is known."""
        self.known = max(self.known, tuple(self.reply), key=len)
        self.stream = None
        self.room = self.read = self.kept = 0
        self.reply, self.used, self.proposers = [], Counter(), {}
        self.stalled = self.head = False
        self.head_idle = self.head_pause = 0

    # Where it stands.

    @property
    def length(self) -> int:
        return len(self.request.prompt)

    @property
    def left(self) -> int:
        """Prompt tokens still to read."""
        return self.length - self.read

    @property
    def replying(self) -> bool:
        return self.stream is not None and bool(self.reply)

    @property
    def replaying(self) -> bool:
        """Whether the next token was already sent before a restart."""
        return len(self.reply) < len(self.known)

    @property
    def position(self) -> int:
        """Absolute position of the pending token, the last of the reply."""
        return self.length + len(self.reply) - 1

    @property
    def limit(self) -> int:
        """Drafts that the next window may hold before the reply must end."""
        return self.request.max_tokens - len(self.reply) - 1

    def count(self, source: str, drafted: int, accepted: int) -> None:
        """A round of drafts by `source`, `accepted` of which stood."""
        self.rounds += 1
        for name, rate in self.acceptance.items():
            if name != source or not drafted:
                rate.rest()
        if drafted:
            self.accept_rate(source).observe(drafted, accepted)
            self.drafted[source] += drafted
            self.accepted[source] += accepted

    def accept_rate(self, source: str) -> Acceptance:
        if source not in self.acceptance:
            self.acceptance[source] = Acceptance(PRIOR_HEAD if source == "mtp" else PRIOR_COPIES)
        return self.acceptance[source]

    # How rows are drawn.

    def admissible(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """Drafts up to the first that the grammar rejects, or that the window of the reply has no place for."""
        drafts = tuple(drafts[: max(0, self.limit)])
        grammar = self.request.grammar
        if grammar is None:
            return drafts
        path = tuple(self.reply)
        for count, token in enumerate(drafts):
            if not grammar.allows(path, token):
                return drafts[:count]
            path = (*path, token)
        return drafts

    def draw(self, beyond: Sequence[int] = ()) -> Draw:
        """How the token after the reply and `beyond` is drawn: bias, penalties and grammar follow exactly that path."""
        sampling, grammar = self.request.sampling, self.request.grammar
        bias = sampling.bias
        if sampling.presence_penalty or sampling.frequency_penalty:
            used = self.used + Counter(beyond) if beyond else self.used
            addends = dict(sampling.bias)
            for token, count in used.items():
                penalty = sampling.presence_penalty + sampling.frequency_penalty * count
                addends[token] = addends.get(token, 0.0) - penalty
            bias = tuple(sorted(addends.items()))
        return Draw(
            seed=self.seed,
            position=self.length + len(self.reply) + len(beyond),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            bias=bias,
            mask=None if grammar is None else grammar.mask((*self.reply, *beyond)),
            logprobs=self.request.logprobs,
        )

    def window(self, drafts: Sequence[int]) -> Window:
        """The next rows: the pending token and its drafts. RuntimeError when the request has no stream."""
        if self.stream is None:
            raise RuntimeError("a reply without a stream")
        draws = tuple(self.draw(drafts[:i]) for i in range(len(drafts) + 1))
        return Window(stream=self.stream, start=self.position, tokens=(self.reply[-1], *drafts), draws=draws, kept=self.kept)

    # What stands.

    def take(self, drafts: Sequence[int], rows: Sequence[RowOut]) -> tuple[tuple[RowOut, ...], FinishReason | None]:
        """Add the tokens that stand. rows[i] drew the token after drafts[:i]; a draft stands iff it equals the row's own draw.

        Returns the new rows and why the reply ends with the last of them, if it does. ValueError when a restarted reply
        differs from what was sent.
        """
        new: list[RowOut] = []
        finish: FinishReason | None = None
        for i, row in enumerate(rows):
            new.append(row)
            finish = self._add(row.token)
            if finish is not None or i >= len(drafts) or drafts[i] != row.token:
                break
        return tuple(new), finish

    def _add(self, token: int) -> FinishReason | None:
        again = self.replaying
        if again and self.known[len(self.reply)] != token:
            raise ValueError(f"token {len(self.reply)} of a restarted reply is {token}, was {self.known[len(self.reply)]}")
        self.reply.append(token)
        self.used[token] += 1
        if again:
            return None  # it did not end there before
        if token in self.request.ends:
            return "stop"
        if self.request.watch is not None and self.request.watch.push(token):
            return "stop"
        return "length" if len(self.reply) >= self.request.max_tokens else None

    def summary(self, finish: FinishReason, now: float, error: str = "") -> Summary:
        """The end of the reply, at second `now`."""
        reply = max(self.known, tuple(self.reply), key=len)
        first = self.first_at or now
        return Summary(
            finish=finish,
            prompt_tokens=self.length,
            cached_tokens=self.cached or 0,
            completion_tokens=len(reply),
            prompt_s=max(0.0, first - self.started_at) if self.started_at else 0.0,
            decode_s=max(0.0, now - first),
            drafts=DraftCounts(
                rounds=self.rounds,
                drafted=self.drafted.total(),
                accepted=self.accepted.total(),
                accepted_copies=self.accepted["copies"],
                accepted_mtp=self.accepted["mtp"],
            ),
            token_sha=hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in reply)).hexdigest(),
            error=error,
        )
