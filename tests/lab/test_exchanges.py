"""Streams of other servers, as recorded or documented in seam/exchanges, are read to the right counts, however they are cut."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from homestretch.lab.exchange import with_drafts
from homestretch.lab.stream import Reply, parse_stream

FOLDER = Path(__file__).resolve().parents[2] / "seam" / "exchanges"
ROWS = [json.loads(line) for path in sorted(FOLDER.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_server_that_the_lab_knows_has_exchanges() -> None:
    from homestretch.lab import servers

    assert {row["server"] for row in ROWS} == set(servers.names()) - {"attach"}


def check(reply: Reply, expect: dict[str, Any]) -> None:
    assert reply.text == expect["text"]
    assert reply.reasoning == expect.get("reasoning", "")
    assert [event.kind for event in reply.events] == expect["kinds"]
    assert (reply.usage.completion_tokens if reply.usage else None) == expect["completion_tokens"]
    assert reply.finish_reason == expect["finish_reason"]
    assert reply.error == ""
    if "cached_tokens" in expect:
        assert reply.usage is not None
        assert reply.usage.cached_tokens == expect["cached_tokens"]
    if "usage_where" in expect:
        assert reply.usage_where == expect["usage_where"]
    assert (reply.k1, reply.k1_source) == (expect.get("k1"), expect.get("k1_source", ""))
    if "tokens" in expect:
        assert [event.tokens for event in reply.counting()] == expect["tokens"]
    ends = sum(event.tokens or 0 for event in reply.events if event.kind == "finish")
    assert ends == expect.get("end_tokens", 0)
    assert reply.tool_calls == expect.get("tool_calls", [])
    if "extras" in expect:
        assert sorted(set(reply.extras) - {"system_fingerprint"}) == expect["extras"]
    if "drafts" in expect:
        drafts = with_drafts(reply.extras)["drafts"]
        assert {name: drafts[name] for name in ("drafted", "accepted")} == expect["drafts"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['server']}: {row['name']}")
def test_whole_and_cut_anywhere(row: dict[str, Any]) -> None:
    wire = "".join(row["stream"]).encode()
    check(parse_stream([(float(n), event.encode()) for n, event in enumerate(row["stream"])]), row["expect"])
    check(parse_stream([(float(n), wire[n : n + 1]) for n in range(len(wire))]), row["expect"])
    source = random.Random(row["name"])
    for _ in range(20):
        cuts = sorted(source.sample(range(1, len(wire)), 5))
        pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
        check(parse_stream([(float(n), piece) for n, piece in enumerate(pieces)]), row["expect"])
