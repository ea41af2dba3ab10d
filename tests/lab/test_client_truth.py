"""The client against a server whose send times are known: every behaviour of docs/speed.md, errors within the promised bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from homestretch.lab.fake.behaviour import PRESETS, Behaviour, variant
from homestretch.lab.instrument import Check, Known

pytestmark = pytest.mark.timing

BEHAVIOURS: dict[str, Behaviour] = {
    **{name: variant(preset, prefill_tokens_per_s=20_000.0) for name, preset in PRESETS.items()},
    "fast": PRESETS["fast"],
    **{
        f"slow-{name}": variant(PRESETS[name], prefill_tokens_per_s=400.0)
        for name in ("single", "drafts", "early-role", "comments")
    },
    "quick": variant(PRESETS["single"], decode_tokens_per_s=200.0, prefill_tokens_per_s=20_000.0),
}
EXTENSIONS = {"return_token_ids": True}


@pytest.fixture(scope="module")
def known() -> Iterator[Known]:
    with Known(BEHAVIOURS) as server:
        yield server


def within(found: Check) -> bool:
    errors = (found.decode_error_pct, found.page_decode_error_pct, found.total_error_pct)
    return max(map(abs, errors)) < 0.5 and abs(found.ttft_error_s) < 0.005


def measured(known: Known, name: str, streams: int, tokens: int, good: Callable[[Check], bool] = within) -> Check:
    """The first attempt that is good, of five: on a shared machine one hiccup of 2 ms is 0.5 % of a short reply.

    A clock that is wrong is wrong in every attempt.
    """
    for attempt in range(1, 6):
        found = known.check(name, streams, tokens, attempt, EXTENSIONS, True)
        if good(found):
            break
    return found


@pytest.mark.parametrize(
    "name",
    [
        "single",
        "drafts",
        "drafts-ids",
        "drafts-plain",
        "early-role",
        "reasoning",
        "finish-usage",
        "every-usage",
        "no-usage",
        "textless-end",
        "comments",
    ],
)
def test_both_decode_definitions_first_token_and_total(known: Known, name: str) -> None:
    found = measured(known, name, 1, 128)
    assert within(found), found


def test_two_thousand_tokens_a_second(known: Known) -> None:
    found = measured(known, "fast", 1, 512)
    assert within(found), found
    assert found.true_decode > 1900


def test_eight_streams_of_250(known: Known) -> None:
    found = measured(known, "streams", 8, 256)
    assert within(found), found
    assert found.streams == 8
    assert found.tokens == 8 * 256


@pytest.mark.parametrize("name", ["drafts", "drafts-ids", "drafts-plain"])
def test_short_replies_with_many_tokens_an_event(known: Known, name: str) -> None:
    found = measured(known, name, 1, 32)
    assert within(found), found


@pytest.mark.parametrize("name", ["slow-single", "slow-drafts", "slow-early-role", "slow-comments"])
def test_prefill(known: Known, name: str) -> None:
    """A prompt of over 200 tokens at 400 tok/s: half a second to the first token, so 0.5 % are 2.6 ms."""
    limit_s = 0.005 * 210 / 400
    found = measured(known, name, 1, 64, lambda check: abs(check.ttft_error_s) < limit_s)
    assert abs(found.ttft_error_s) < limit_s, found
