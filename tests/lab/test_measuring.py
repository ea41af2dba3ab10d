"""Whole runs against `fake`: every number there, the folder complete, the printed command measures the same again."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from lab_fake import options, quick, run, serving

from homestretch.lab import parts
from homestretch.lab.compare import compare
from homestretch.lab.doubts import DOUBTS
from homestretch.lab.errors import WrongUse
from homestretch.lab.records import RunFolder, sha256_of
from homestretch.lab.run import Measured
from homestretch.lab.score import score
from homestretch.lab.types import GuardSample


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(fake=quick(), cold=quick(tokenize=False)) as address:
        yield address


@pytest.fixture(scope="module")
def done(url: str, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return run(url, tmp_path_factory.mktemp("runs") / "whole", "speed")


def test_every_part_is_done_and_every_number_has_a_value(done: Measured) -> None:
    assert done.exit_code == 0, done.failures
    assert {part.state for part in done.result.parts.values()} == {"done"}
    empty = [name for name, number in done.result.numbers.items() if number.value is None]
    assert empty == ["decode.window1.tokens_per_s"], "replies of 96 tokens have no first window of 256"


@pytest.mark.timing
def test_numbers_agree_with_the_schedule(done: Measured) -> None:
    numbers = done.result.numbers
    assert numbers["decode.tokens_per_s"].value == pytest.approx(1000.0, rel=0.2)
    assert numbers["prefill.1024.tokens_per_s"].value == pytest.approx(30_000.0, rel=0.5)
    assert numbers["conc.2.total_tokens_per_s"].value == pytest.approx(2 * 96 / (0.095 + 0.007), rel=0.4)


def test_every_number_is_declared_by_its_part(done: Measured) -> None:
    def fits(pattern: str, name: str) -> bool:
        one, other = pattern.split("."), name.split(".")
        return len(one) == len(other) and all(a.isupper() or a == b for a, b in zip(one, other, strict=True))

    declared = [spec for name in ("decode", "prefill", "conc", "ctx") for spec in parts.load(name).numbers]
    for name, number in done.result.numbers.items():
        spec = next((spec for spec in declared if fits(spec.name, name)), None)
        assert spec is not None, name
        assert spec.unit == number.unit, name
    assert {name for number in done.result.numbers.values() for name in number.doubts} <= set(DOUBTS)


def test_prompts_have_exactly_the_tokens_asked_for(done: Measured) -> None:
    folder = RunFolder.open(done.folder)
    for part in ("prefill", "ctx"):
        for record in folder.kept(part):
            assert record.prompt_tokens == record.detail["depth"]
            assert record.prompt_tokens_source == "usage"


def test_no_text_in_requests_and_a_fresh_prompt_each_time(done: Measured) -> None:
    folder = RunFolder.open(done.folder)
    records = [record for part in ("decode", "prefill", "conc", "ctx") for record in folder.requests(part)]
    assert len({record.prompt_sha256 for record in records}) == len(records)
    assert all("messages" not in record.settings for record in records)
    assert {record.settings["temperature"] for record in records} == {1.0}


def test_every_setting_has_a_source(done: Measured) -> None:
    contract = RunFolder.open(done.folder).contract()
    assert not [name for name, setting in contract.settings.items() if not setting.source]
    assert contract.settings["decode.runs"].source == "--runs"
    assert contract.settings["decode.warmups"].source == "default"
    assert contract.hashes["prompts"]


def test_the_manifest_names_every_file(done: Measured) -> None:
    folder = RunFolder.open(done.folder)
    files = folder.manifest().files
    present = {path.name for path in done.folder.iterdir()} - {"manifest.json"}
    assert set(files) == present
    assert all(entry.sha256 == sha256_of(done.folder / name) for name, entry in files.items())


def test_the_guard_sampled_every_half_second_throughout(done: Measured) -> None:
    samples = RunFolder.open(done.folder).guard_samples()
    gaps = [b.mono - a.mono for a, b in itertools.pairwise(samples)]
    assert max(gaps) < 3.0
    assert {sample.step.split("/")[0] for sample in samples} >= {"decode", "conc"}
    assert msgspec.json.decode((done.folder / "quiet.jsonl").read_bytes().splitlines()[0], type=GuardSample).mono


def test_scoring_again_gives_the_same_result(done: Measured) -> None:
    before = (done.folder / "result.json").read_bytes()
    score(done.folder)
    assert (done.folder / "result.json").read_bytes() == before


def test_the_printed_command_measures_the_same_again(done: Measured, tmp_path: Path) -> None:
    contract = RunFolder.open(done.folder).contract()
    again = tmp_path / "again"
    words = [word.replace("$RUN", str(again)) for word in contract.command]
    assert words[:2] == ["homestretch", "measure"]
    command = [sys.executable, "-m", "homestretch", *words[1:], "--json"]
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "200"}, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout.splitlines()[-1])["numbers"]["decode.tokens_per_s"]
    found = compare(done.folder, again)
    assert found.refusals == {}
    assert len(found.rows) == len(done.result.numbers)


def test_runs_with_other_settings_are_not_compared(done: Measured, url: str, tmp_path: Path) -> None:
    other = run(url, tmp_path / "other", "decode,conc", max_tokens=80)
    found = compare(done.folder, other.folder)
    assert found.refusals == {"decode": ["decode.max_tokens: 96 against 80"]}
    assert {row.name.split(".")[0] for row in found.rows} == {"conc"}


def test_lengths_are_exact_without_a_tokenizer_too(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "cold", "prefill", model="cold")
    folder = RunFolder.open(done.folder)
    assert [record.prompt_tokens for record in folder.kept("prefill")] == [512, 512, 1024, 1024]
    assert "tokenizer_guessed" in done.result.doubts
    assert folder.contract().settings["prompt.tokenizer"].value == "usage"


def test_a_run_is_never_overwritten(done: Measured, url: str) -> None:
    with pytest.raises(WrongUse, match="never overwritten"):
        run(url, done.folder, "decode")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parts": ("speeed",)}, "no part is called 'speeed'"),
        ({"runs": 0}, "at least 1"),
        ({"max_tokens": 1}, "at least 2"),
        ({"conc_levels": (0,)}, "from 1 up"),
        ({"prompt_ids": ("poem",)}, "not in the prompts file"),
        ({"ctx_depths": (300_000,)}, "window of 262144"),
        ({"base_url": "localhost:8080"}, "no address"),
        ({"base_url": ""}, "nothing to measure"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    url: str, tmp_path: Path, changes: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from homestretch.lab.run import measure

    monkeypatch.setattr("homestretch.lab.run._check_instrument", lambda folder, say: None)
    asked = replace(options(url, tmp_path / "run", "speed"), **changes)  # type: ignore[arg-type]
    with pytest.raises(WrongUse, match=says):
        measure(asked)
    assert not list((tmp_path / "run").glob("requests-decode*"))
