"""One request as a part wants it and as it came out: the ask, the outcome, and sending a step's asks at one barrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from homestretch.lab.types import ReplyRecord, RequestRecord

if TYPE_CHECKING:
    from homestretch.lab.context import Context, Step

Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request. body: made anew for each attempt, so that its nonce is fresh (`lambda: context.body(...)`), or fixed.

    detail: what the part needs to score it. prompt_tokens: what the lab counted while building the prompt, None if it did not.
    """

    body: Callable[[], Body] | Body
    prompt_id: str = ""
    prompt_tokens: int | None = None
    prompt_tokens_source: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came back: the record and the reply as the raw files hold them."""

    record: RequestRecord
    reply: ReplyRecord
    retry_after_s: float = 0.0

    def discarded(self, reason: str) -> Outcome:
        return Outcome(record=msgspec.structs.replace(self.record, discarded=reason), reply=self.reply)
