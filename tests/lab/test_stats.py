"""The arithmetic of the setup page: margins, spreads, draft counts; and the records it is done on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homestretch.lab import rates, stats
from homestretch.lab.doubts import DOUBTS, refuses
from homestretch.lab.types import RequestRecord, Usage


@pytest.mark.parametrize(
    ("right", "asked", "margin"),
    [
        (175, 400, "4.8"),
        (81, 198, "6.8"),
        (134, 200, "6.5"),
        (12, 40, "13.7"),
        (28, 40, "13.7"),
        (22, 40, "14.7"),
        (17, 30, "16.7"),
    ],
)
def test_margins_as_the_page_prints_them(right: int, asked: int, margin: str) -> None:
    assert f"{stats.wilson_half_width(right, asked):.1f}" == margin
    low, high = stats.wilson(right, asked)
    assert (high - low) / 2 == pytest.approx(stats.wilson_half_width(right, asked))


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_rate_and_stays_inside(counts: tuple[int, int]) -> None:
    right, asked = counts
    low, high = stats.wilson(right, asked)
    assert 0.0 <= low <= 100.0 * right / asked + 1e-9
    assert 100.0 * right / asked - 1e-9 <= high <= 100.0


def test_spread_and_drafts_as_the_page_prints_them() -> None:
    assert f"{stats.spread_pct([132.4, 399.2]):.1f}" == "71.0"
    assert stats.spread_pct([5.0]) is None
    assert f"{stats.acceptance_pct(1182, 1943):.1f}" == "60.8"
    assert f"{stats.mean_accepted_length(2048, 1182):.1f}" == "2.4"
    assert stats.acceptance_pct(0, 0) is None


def record(
    events: list[tuple[float, str, int | None]], tokens: int, k1: int = 1, source: str = "usage", **more: object
) -> RequestRecord:
    return RequestRecord(
        id="a",
        part="decode",
        step="code-1",
        at="",
        prompt_sha256="",
        settings={},
        events=events,  # type: ignore[arg-type]
        usage=Usage(prompt_tokens=1000, completion_tokens=tokens, **more),  # type: ignore[arg-type]
        k1=k1,
        k1_source=source,
        prompt_tokens=1000,
    )


def test_both_decode_definitions_and_the_textless_end() -> None:
    events = [(0.5, "role", None), (1.0, "content", 3), (2.0, "content", 4), (3.0, "finish", 1), (3.5, "usage", None)]
    t = rates.timing(record(events, 8, k1=3))
    assert t is not None
    assert (t.t_first, t.t_last, t.events) == (1.0, 3.0, 2)
    assert (t.decode(), t.decode_k1()) == (7 / 2.0, 5 / 2.0)
    plain = rates.timing(record([*events[:3], (3.0, "finish", None)], 7, k1=3))
    assert plain is not None
    assert plain.t_last == 2.0


def test_an_assumed_first_event_has_bounds() -> None:
    events: list[tuple[float, str, int | None]] = [(1.0, "content", None), (2.0, "content", None), (3.0, "content", None)]
    t = rates.timing(record(events, 10, source="assumed"))
    assert t is not None
    assert t.most_k1 == 8
    assert (t.decode_low(), t.decode(), t.decode_k1()) == (2 / 2.0, 9 / 2.0, None)


def test_prefill_leaves_cached_tokens_out() -> None:
    events: list[tuple[float, str, int | None]] = [(0.1, "role", None), (0.5, "content", 1)]
    assert rates.prefill(record(events, 5)) == 2000.0
    assert rates.prefill(record(events, 5, cached_tokens=500)) == 1000.0


def test_the_first_window_ends_with_the_event_that_fills_it() -> None:
    events = [(1.0 + n, "content", 4) for n in range(100)]
    assert rates.window1(record(events, 400)) == pytest.approx(255 / 63)  # type: ignore[arg-type]
    assert rates.window1(record(events[:40], 160)) is None  # type: ignore[arg-type]


def test_doubts_that_refuse() -> None:
    assert refuses(["short_run", "few_tokens"])
    assert not refuses(["short_run", "queued"])
    assert all(doubt.meaning.endswith(".") and doubt.hint.endswith(".") for doubt in DOUBTS.values())
