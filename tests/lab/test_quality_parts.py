"""The quality parts end to end against a server of known answers: examples, resume, score again, faulty servers."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from lab_fake import RETRY, SMALL, quick

from homestretch.lab import parts, quietly
from homestretch.lab.asking import counts
from homestretch.lab.compare import compare
from homestretch.lab.contract import command
from homestretch.lab.data.code import CodeTask
from homestretch.lab.errors import WrongUse
from homestretch.lab.fake import FakeServer
from homestretch.lab.fake.behaviour import FakeReply
from homestretch.lab.graders import lcb
from homestretch.lab.options import Options, demo, given
from homestretch.lab.parts.lcb import PART
from homestretch.lab.progress import Progress
from homestretch.lab.records import RunFolder, append_lines
from homestretch.lab.run import Measured, measure
from homestretch.lab.score import score
from homestretch.lab.types import Answer, GuardSample, ProcessLoad

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


@pytest.mark.parametrize(
    ("right", "asked", "margin"),
    [(175, 400, 4.8), (81, 198, 6.8), (134, 200, 6.5), (12, 40, 13.7), (28, 40, 13.7), (22, 40, 14.7), (17, 30, 16.7)],
)
def test_margins_of_the_setup_page(right: int, asked: int, margin: float) -> None:
    answers = [Answer(row=str(number), verdict="right" if number < right else "wrong") for number in range(asked)]
    numbers = counts("part", answers, "test")
    assert round(numbers["part.margin_pts"].value or 0, 1) == margin
    low, high = numbers["part.right_pct"].low, numbers["part.right_pct"].high
    assert low is not None
    assert high is not None
    assert low < 100 * right / asked < high
    assert (high - low) / 2 == pytest.approx(numbers["part.margin_pts"].value)
    assert numbers["part.right_pct"].value == pytest.approx(100 * right / asked)


def test_long_prompts_fill_their_length_by_the_server_s_own_count(tmp_path: Path) -> None:
    done = run(tmp_path / "run", ("ruler",), (FakeReply(match="", text="nothing"),))
    records = RunFolder.open(done.folder).kept("ruler")
    assert len(records) == 24
    for record in records:
        assert record.usage is not None
        assert record.usage.prompt_tokens is not None
        room = record.detail["depth"] - 128
        assert 0.98 * room <= record.usage.prompt_tokens <= room, record.id
        assert record.settings["max_tokens"] == 128
    shares = {record.detail["task"] for record in records}
    assert shares == {"multikey", "common_words", "multihop_qa", "variables"}
    note = next(note for note in done.result.parts["ruler"].notes if note.startswith("By task"))
    assert "multi-key retrieval 0 of 2 and 0 of 2 and 0 of 2" in note


def test_runs_on_other_sets_or_graders_do_not_compare(tmp_path: Path) -> None:
    folders = []
    for name, questions in (("one", 9), ("two", 9), ("three", 10)):
        data = tmp_path / f"data-{name}" / "gpqa"
        data.mkdir(parents=True)
        rows = [
            {"question": f"Question {n}?\nA) one\nB) two\nC) three\nD) four", "answer": "ABCD"[n % 4]} for n in range(questions)
        ]
        (data / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        folders.append(run(tmp_path / name, ("gpqa",), (FakeReply(match="", text="B"),), data=data.parent).folder)
    assert compare(folders[0], folders[1]).refusals == {}
    refused = compare(folders[0], folders[2]).refusals["gpqa"]
    assert any(text.startswith("gpqa.set_sha256: ") for text in refused)
    text = (folders[1] / "contract.json").read_text(encoding="utf-8")
    contract = json.loads(text)
    contract["settings"]["gpqa.grader"]["value"] = 0
    (folders[1] / "contract.json").write_text(json.dumps(contract), encoding="utf-8")
    assert compare(folders[0], folders[1]).refusals == {"gpqa": ["gpqa.grader: 1 against 0"]}


def test_notes_name_each_busy_sample(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", ("gpqa",), (FakeReply(match="", text="B"),)).folder
    loads = [("backup", 31.5), ("backup", 26.0), ("indexer", 99.4), ("shell", 25.0), ("", 0.0)]
    samples = [
        GuardSample(
            at=f"2026-01-01T00:00:{n:02d}Z",
            mono=float(n),
            step="gpqa/one",
            foreign=[ProcessLoad(name=name, pid=1, cpu_pct=pct)] if name else [],
        )
        for n, (name, pct) in enumerate(loads)
    ]
    other = [ProcessLoad(name="compiler", pid=2, cpu_pct=100.0)]
    samples.append(GuardSample(at="2026-01-01T00:01:00Z", mono=60.0, step="decode/code-1", foreign=other))
    (folder / "quiet.jsonl").unlink(missing_ok=True)
    append_lines(folder / "quiet.jsonl", samples)
    told = "The busiest other process was sampled every 10 s (5 samples): at most 99.4 % of one core (indexer)."
    assert quietly.notes(RunFolder.open(folder), "gpqa") == [f"{told} Above 25 %: 3 of them (2 of backup, 1 of indexer)."]


def test_an_answer_limit_is_cut_to_what_the_window_leaves_and_said(tmp_path: Path) -> None:
    done = run(tmp_path / "run", ("think",), (FakeReply(match="", text="B"),), server_ctx=2000)
    records = RunFolder.open(done.folder).kept("think")
    assert {record.settings["max_tokens"] for record in records} == {record.detail["limit_cut_to_window"] for record in records}
    assert all(1700 < record.settings["max_tokens"] < 2000 - 64 for record in records)
    assert "8 answer limits were cut to what the window leaves." in done.result.parts["think"].notes
    whole = run(tmp_path / "whole", ("think",), (FakeReply(match="", text="B"),))
    assert {record.settings["max_tokens"] for record in RunFolder.open(whole.folder).kept("think")} == {2048}


def test_lengths_beyond_the_window_are_left_out_by_name() -> None:
    ruler = parts.load("ruler")
    settings = ruler.settings(Options(data=Path("house"), window=2048))
    assert settings["lengths"].value == [1024, 2048]
    assert settings["lengths"].source == "default of the house set; 4096 left out, the window holds 2048 tokens"
    assert ruler.settings(Options(data=Path("house"), window=8192))["lengths"].value == [1024, 2048, 4096]
    with pytest.raises(WrongUse, match="the window of 512 tokens holds none of its lengths"):
        ruler.settings(Options(data=Path("house"), window=512))


def test_a_program_that_ran_out_of_time_runs_once_more_on_a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    outcomes = {
        ("slow under load", 0): lcb.Judged(verdict="timeout", reason="test 3 of 4: not done in 6 s", passed=2, failed_test=2),
        ("slow under load", 2): lcb.Judged(verdict="right", passed=4),
        ("slow", 0): lcb.Judged(verdict="timeout", reason="test 1 of 4: not done in 6 s", failed_test=0),
        ("wrong", 0): lcb.Judged(verdict="wrong", reason="test 1 of 4: wrong output", failed_test=0),
    }

    def judge(cage: object, text: str, tests: object, function: str = "", *, begin: int = 0) -> lcb.Judged:
        calls.append((text, begin))
        return outcomes[text, begin]

    monkeypatch.setattr("homestretch.lab.graders.lcb.judge", judge)
    monkeypatch.setattr("homestretch.lab.parts.lcb.wait_for_quiet", lambda: calls.append(("quiet", -1)))
    texts = ["slow under load", "slow", "wrong"]
    work = [(CodeTask(row=text, question="", starter="", function="", date="", tests=()), text) for text in texts]
    judged = PART._judge(None, work)  # type: ignore[arg-type]
    assert {row: verdict.verdict for row, verdict in judged.items()} == {
        "slow under load": "right",
        "slow": "timeout",
        "wrong": "wrong",
    }
    assert calls[3:] == [("quiet", -1), ("slow under load", 2), ("quiet", -1), ("slow", 0)]


def test_the_demo_asks_our_own_questions() -> None:
    profile = demo(Options())
    assert "mmlupro" in profile.parts
    assert profile.data == Path("house")
    assert Options().data is None
    said = command(profile, "http://127.0.0.1:1/v1", "fake")
    assert said[said.index("--data") + 1] == "house", "who repeats the demo must ask the same questions"
    settings = parts.load("mmlupro").settings(profile)
    assert settings["set"].value == "house"
    assert len(settings["rows"].value) == 40
    assert settings["max_tokens"].value == 128
