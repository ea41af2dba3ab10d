"""The recount on runs that the lab itself measured against `fake`: every part, nothing differs, every number counted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from lab_fake import RETRY, options
from smallsetup import small_card

from homestretch.lab import check
from homestretch.lab.data.fetch import HOUSE
from homestretch.lab.fake.behaviour import Behaviour, FakeReply
from homestretch.lab.fake.server import FakeServer
from homestretch.lab.progress import Progress
from homestretch.lab.publish import Filter, publish
from homestretch.lab.run import measure

PARTS = "decode,prefill,conc,ctx,mmlupro,gpqa,ifeval,lcb,ruler,think,gauntlet"
ANSWERS = (
    FakeReply(match="Painter", text="```python\nprint('no')\n```"),
    FakeReply(match="special magic number", text="I see 1234567 and no more."),
    FakeReply(match="def ", text="```python\nprint(1)\n```"),
    FakeReply(match="A)", text="The answer is C."),
    FakeReply(match="planet", text="**B**"),
    FakeReply(match="river", text="I would say it is (A)."),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("homestretch.lab.run._check_instrument", lambda folder, say: None)
        server = FakeServer({"fake": Behaviour(decode_tokens_per_s=20_000.0, prefill_tokens_per_s=1e6)}, answers=ANSWERS)
        try:
            measure(options(server.url, folder, PARTS, data=Path(HOUSE)), progress=Progress(quiet=True), retry=RETRY)
        finally:
            server.close()
    return folder


def test_nothing_differs(run: Path) -> None:
    report = check.check_run(run)
    assert not [row for row in report.rows if row.outcome == "differs"]
    assert report.counts()["recounted"] > 120


def test_every_number_with_a_value_is_recounted(run: Path) -> None:
    report = check.check_run(run)
    assert not [row for row in report.rows if row.outcome == "cannot be recounted"]


def test_it_is_published_and_its_page_recounted(run: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.toml"
    card.write_bytes(msgspec.toml.encode(small_card(1, 8)))
    done = publish([run], tmp_path / "site", what=Filter(["sparkhost"]), card=card)
    assert sorted(done[0].counts) == sorted(PARTS.split(","))
    assert {entry.name for entry in done[0].held} <= {"replies-gpqa.jsonl", "replies-think.jsonl"}, "GPQA is never shown"
    reports = check.check_site(tmp_path / "site" / "public")
    assert all(report.passed for report in reports)
    page = next((tmp_path / "site" / "public" / "setup").iterdir()) / "index.html"
    assert "house set" in page.read_text()
