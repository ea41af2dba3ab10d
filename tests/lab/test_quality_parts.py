"""The quality parts end to end against a server of known answers: examples, resume, score again, faulty servers."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from lab_fake import RETRY, SMALL, quick

from homestretch.lab import parts
from homestretch.lab.fake import FakeServer
from homestretch.lab.fake.behaviour import FakeReply
from homestretch.lab.options import given
from homestretch.lab.progress import Progress
from homestretch.lab.run import Measured, measure
from homestretch.lab.score import score

QUALITY = ("mmlupro", "gpqa", "ifeval", "lcb", "ruler", "think")


def run(folder: Path, names: tuple[str, ...], replies: tuple[FakeReply, ...], **changes: object) -> Measured:
    with closing(FakeServer({"fake": quick(window=16_384)}, answers=replies)) as server:
        chosen = {
            **SMALL,
            "base_url": f"http://127.0.0.1:{server.port}/v1",
            "output": folder,
            "parts": names,
            "data": Path("house"),
            **changes,
        }
        return measure(given(**chosen), progress=Progress(quiet=True), retry=RETRY)


@pytest.fixture(autouse=True)
def only_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before the questions has its own tests; here it would only take time."""
    monkeypatch.setattr("homestretch.lab.run._check_instrument", lambda folder, say: None)
    monkeypatch.setattr("homestretch.lab.run.Prober.run", lambda prober, say: prober.found)
    monkeypatch.setattr("homestretch.lab.exchange.undisturbed", nullcontext)


@pytest.mark.parametrize("name", QUALITY)
def test_example(name: str, tmp_path: Path) -> None:
    example = parts.load(name).example()
    replies = tuple(
        FakeReply(match=answer.match, text=answer.text, reasoning=answer.reasoning, finish_reason=answer.finish_reason)
        for answer in example.answers
    )
    done = run(tmp_path / "run", (name,), replies)
    assert done.exit_code == 0, done.failures
    for number, expected in example.numbers.items():
        assert done.result.numbers[number].value == pytest.approx(expected), number
    specs = [spec.name for spec in parts.load(name).numbers]
    tasks = ("multikey", "common_words", "multihop_qa", "variables")
    for number in done.result.numbers:
        pieces = ["DEPTH" if piece.isdigit() else "TASK" if piece in tasks else piece for piece in number.split(".")]
        assert ".".join(pieces) in specs
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.suffix in (".json", ".jsonl")}
    score(tmp_path / "run")
    after = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.suffix in (".json", ".jsonl")}
    assert after == before, "grading again gives the same bytes"
