"""`homestretch play` to the end and `homestretch check` after it: against a server of known answers, and on the embedded model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import gauntlet_solver
import pytest

from homestretch.lab import check
from homestretch.lab.fake import FakeServer
from homestretch.lab.fake.behaviour import Behaviour, FakeReply
from homestretch.lab.game.seasons import season

TITLES = {"ferry": "River ferry", "painter": "Painter", "seating": "Bench seating", "snake": "Snake"}


def play(*words: str, folder: Path, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "homestretch", "play", *words, "--allow-load", "--json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s)


def broken(run: Path, name: str, old: bytes, new: bytes) -> list[str]:
    """What `check` finds after one edit of a copy whose manifest was made anew, so that no hash gives it away."""
    from homestretch.lab.records import RunFolder

    copy = run.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    data = (copy / "gauntlet" / name).read_bytes()
    assert old in data
    (copy / "gauntlet" / name).write_bytes(data.replace(old, new, 1))
    RunFolder(copy).write_manifest()
    return [row.name for row in check.check_run(copy).rows if row.outcome == "differs"]


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A race of season 3: ferry and painter solved, the others not."""
    folder = tmp_path_factory.mktemp("play")
    made = season(3).tasks
    said = tuple(
        FakeReply(match=TITLES[task], text=gauntlet_solver.solve(task, made[task].statement)) for task in ("ferry", "painter")
    )
    quick = Behaviour(decode_tokens_per_s=20_000.0, prefill_tokens_per_s=200_000.0)
    server = FakeServer(
        {"fake": quick}, answers=(*said, FakeReply(match="Snake", text="I pass."), FakeReply(match="Bench", text="{}"))
    )
    try:
        done = play(server.url, "--model", "fake", "--season", "3", "--output", "run", folder=folder)
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    return folder / "run", json.loads(done.stdout.splitlines()[-1])


def test_play_writes_a_run_that_check_passes(raced: tuple[Path, dict[str, object]]) -> None:
    run, told = raced
    numbers = told["numbers"]
    assert isinstance(numbers, dict)
    assert (numbers["gauntlet.hits"], numbers["gauntlet.loops"], numbers["gauntlet.loops_s"]) == (10, 10, 150.0)
    report = check.check_run(run)
    assert report.passed, [row for row in report.rows if row.outcome != "equal"]
    assert any(row.name == "gauntlet: judged again" for row in report.rows)


def test_check_finds_a_changed_byte_in_answers_and_result(raced: tuple[Path, dict[str, object]]) -> None:
    run, _ = raced
    assert "gauntlet: judged again" in broken(run, "io.jsonl", b"def put(x, y, c)", b"def put(x, y, d)")
    assert "gauntlet: judged again" in broken(run, "result.json", b'"model": "fake"', b'"model": "fakf"')
    assert broken(run, "result.json", b'"hits": 5', b'"hits": 4')
    assert broken(run, "model.json", b'"season": 3', b'"season": 4')


def test_play_says_what_is_wrong(tmp_path: Path) -> None:
    for words, code, said in (
        (("http://127.0.0.1:9/v1", "--season", "3"), 1, "no server answers at http://127.0.0.1:9/v1"),
        (("no-such-card",), 2, "there is no card no-such-card"),
        (("http://127.0.0.1:9/v1", "--season", "0"), 2, "a season is a whole number from 1"),
        (("http://127.0.0.1:9/v1", "--buzzers", "soon"), 2, "give four limits in seconds"),
    ):
        done = play(*words, folder=tmp_path)
        assert done.returncode == code, (words, done.stderr)
        assert said in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_race_on_the_embedded_model_is_checked(smollm: Path, tmp_path: Path) -> None:
    done = play("smollm2-135m", "--season", "21", "--output", "run", "--max-tokens", "120", folder=tmp_path, timeout_s=580)
    assert done.returncode == 0, done.stderr
    report = check.check_run(tmp_path / "run")
    assert report.passed, [row for row in report.rows if row.outcome != "equal"]
    assert broken(tmp_path / "run", "io.jsonl", b'"thinking_ms":', b'"thinking_ms":1')
    assert broken(tmp_path / "run", "result.json", b'"loops": 5', b'"loops": 4')


@pytest.mark.long
def test_fit_on_the_embedded_model(smollm: Path, tmp_path: Path) -> None:
    words = ["measure", "smollm2-135m", "--parts", "fit", "--fit-smallest", "2048", "--fit-largest", "8192", "--output", "run"]
    command = [sys.executable, "-m", "homestretch", *words, "--allow-load", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1_500)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout.splitlines()[-1])["numbers"]
    assert numbers["fit.largest_tokens"] == 8192
    assert [numbers[f"fit.{size}.prompt_tokens"] for size in (2048, 4096, 8192)] == [1945, 3891, 7782]
    assert (tmp_path / "run" / "server.log").read_text().count("streams at once") >= 4, "started for the probes and for each window"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for size in (2048, 4096, 8192):
        own, mapped, rise = (numbers.get(f"fit.{size}.{name}_gib", 0.0) for name in ("tree", "mapped", "peak"))
        doubted = "memory_intruder" in result["numbers"][f"fit.{size}.peak_gib"].get("doubts", [])
        assert (
            doubted or abs(rise - (own - mapped)) <= max(0.15 * own, 100 / 1024) or abs(rise - own) <= max(0.15 * own, 100 / 1024)
        )
    assert check.check_run(tmp_path / "run").passed


def test_thinking_without_a_switch_is_refused() -> None:
    from homestretch.lab.errors import WrongUse
    from homestretch.lab.options import given
    from homestretch.lab.parts.gauntlet import PART

    for options in (given(thinking=True, base_url="http://127.0.0.1:9/v1"), given(thinking=True, card=Path("smollm2-135m"))):
        with pytest.raises(WrongUse, match="names the model's switch"):
            PART.settings(options)


def test_reasoning_in_a_race_with_thinking_off_is_doubted_and_not_ranked(
    raced: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    from homestretch.lab.parts.gauntlet import PART
    from homestretch.lab.records import RunFolder
    from homestretch.lab.site.figures import refused

    copy = tmp_path / "run"
    shutil.copytree(raced[0], copy)
    assert PART.score(RunFolder(copy)).doubts == {}
    path = copy / "gauntlet" / "io.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"reasoning":""', b'"reasoning":"well, let me see"', 1))
    scored = PART.score(RunFolder(copy))
    assert scored.doubts == {"thinking_leaked": ["gauntlet: thinking is off, yet reasoning came back in River ferry"]}
    assert refused(scored.numbers["gauntlet.finish_s"])
