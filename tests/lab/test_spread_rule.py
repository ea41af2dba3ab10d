"""The page's own two runs, as raw files: 132.4 and 399.2 tok/s spread by 71.0 %, no headline, the copying reply named."""

from __future__ import annotations

from pathlib import Path

import pytest

from homestretch.lab.doubts import refuses
from homestretch.lab.exchange import Outcome
from homestretch.lab.records import RunFolder
from homestretch.lab.score import score
from homestretch.lab.types import Contract, ReplyRecord, RequestRecord, Sourced, Usage

RUNS = [
    ("code", 1, 132.4, 281, 490),
    ("code", 2, 399.2, 475, 492),
    ("prose", 1, 141.0, 213, 480),
    ("prose", 2, 143.4, 213, 481),
]


def outcome(prompt: str, run: int, rate: float, accepted: int, drafted: int) -> Outcome:
    """512 tokens at a rate, two an event."""
    events = [(0.2 + (2 * n) / rate, "content", 2) for n in range(256)]
    events[-1] = (0.2 + 511 / rate, "content", 2)
    name = f"decode-{prompt}-{run}-a1"
    record = RequestRecord(
        id=name,
        part="decode",
        step=f"{prompt}-{run}",
        at="2026-11-10T10:00:00.000Z",
        prompt_id=prompt,
        prompt_sha256="",
        settings={},
        events=events,  # type: ignore[arg-type]
        usage=Usage(prompt_tokens=150, completion_tokens=512, cached_tokens=0),
        usage_where="every event",
        k1=2,
        k1_source="usage",
        finish_reason="length",
        status=200,
        extras={"drafts": {"drafted": drafted, "accepted": accepted, "source": "reply: speculative"}},
        detail={"run": run},
    )
    return Outcome(record=record, reply=ReplyRecord(id=name, text="one two " * 100))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path / "nea1")
    values = {
        "parts": ["decode"],
        "decode.version": 1,
        "decode.prompt_ids": ["code", "prose"],
        "decode.runs": 2,
        "decode.max_tokens": 512,
        "decode.warmups": 0,
        "guard.allow_load": False,
        "sampling.temperature": 1.0,
        "server.window": 262144,
        "server.slots": 8,
        "server.version": "TensorFold 1.2.5",
        "cache.check": "reported",
    }
    contract = Contract(
        run="nea1",
        label="nea1",
        created="2026-11-10T10:00:00.000Z",
        lab_version="0",
        card=None,
        base_url="http://127.0.0.1:8080/v1",
        model="nemotron",
        settings={name: Sourced(value=value, source="the test") for name, value in values.items()},
        hashes={},
        machine={},
        command=[],
    )
    run.write_contract(contract)
    return run


def test_the_pages_first_run_gets_no_headline_and_its_cause_is_named(folder: RunFolder) -> None:
    for row in RUNS:
        folder.append("decode", [outcome(*row)])
    result = score(folder.path)
    numbers = result.numbers
    assert f"{numbers['decode.code.spread_pct'].value:.1f}" == "71.0"
    assert f"{numbers['decode.prose.spread_pct'].value:.1f}" == "1.2"
    assert f"{numbers['decode.spread_pct'].value:.1f}" == "71.0"
    assert f"{numbers['decode.code.tokens_per_s'].value:.1f}" == "265.8"
    assert refuses(numbers["decode.tokens_per_s"].doubts)
    assert refuses(numbers["decode.code.tokens_per_s"].doubts)
    assert numbers["decode.prose.tokens_per_s"].doubts == []
    (said,) = result.doubts["spread_over_limit"]
    assert said == (
        "decode, code prompt: runs at 132.4 and 399.2 tok/s, a spread of 71.0 % against the limit of 15 %; draft tokens accepted: "
        "281 of 490 (57.3 %) and 475 of 492 (96.5 %); in run 2 nearly all stood, as when a reply copies its prompt"
    )
    assert f"{numbers['drafts.acceptance_pct'].value:.1f}" == "60.8"
    assert f"{numbers['drafts.mean_accepted_length'].value:.1f}" == "2.4"
    assert (numbers["drafts.acceptance_pct"].n, numbers["drafts.mean_accepted_length"].n) == (1943, 2048)


def test_the_truer_definition_takes_the_first_event_off(folder: RunFolder) -> None:
    for row in RUNS:
        folder.append("decode", [outcome(*row)])
    numbers = score(folder.path).numbers
    assert numbers["decode.prose.tokens_per_s"].value == pytest.approx((141.0 + 143.4) / 2)
    assert numbers["decode.prose.k1_tokens_per_s"].value == pytest.approx((141.0 + 143.4) / 2 * 510 / 511)


def test_a_part_that_lacks_a_step_is_missing_and_has_no_headline(folder: RunFolder) -> None:
    for row in RUNS[:2]:
        folder.append("decode", [outcome(*row)])
    result = score(folder.path)
    assert result.parts["decode"].state == "missing"
    assert "prose-1" in result.parts["decode"].reason
    assert result.numbers["decode.tokens_per_s"].value is None
