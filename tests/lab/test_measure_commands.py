"""The commands fake, measure, score and compare as a person calls them: exit codes, messages, plain progress, JSON on stdout."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab_fake import quick, serving
from typer.testing import CliRunner

from homestretch.cli import build
from homestretch.lab.client import Target, try_json

COMMAND = [sys.executable, "-m", "homestretch"]
SMALL = ["--model", "fake", "--runs", "1", "--max-tokens", "80", "--warmups", "0", "--allow-load"]


def called(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build(), list(words))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["measure"], "nothing to measure"),
        (["measure", "no-such-card"], "there is no card no-such-card"),
        (["measure", "--base-url", "http://127.0.0.1:9/v1", "--runs", "0"], "at least 1"),
        (["measure", "--base-url", "http://127.0.0.1:9/v1", "--conc-levels", "1,x"], "whole numbers with commas"),
        (["measure", "--base-url", "http://127.0.0.1:9/v1", "--sampling", "warm"], "no JSON"),
        (["measure", "--base-url", "http://127.0.0.1:9/v1", "--limit", "mmlupro"], "PART=TOKENS"),
        (["score", "nowhere"], "no run folder"),
        (["compare", "nowhere", "either"], "no run folder"),
        (["fake", "--behaviour", "single", "--set", "speed=3"], "speed"),
        (["fake", "--behaviour", "slow"], "no behaviour is called 'slow'"),
    ],
)
def test_wrong_use_is_exit_2_and_says_what_to_do(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, errors = called(*words)
    assert code == 2, errors
    assert says in errors
    assert out == ""


def test_a_server_that_is_not_there_is_exit_1(tmp_path: Path) -> None:
    code, _, errors = called("measure", "--base-url", "http://127.0.0.1:9/v1", "--output", str(tmp_path / "run"))
    assert code == 1
    assert "no server answers at http://127.0.0.1:9/v1" in errors


def test_an_address_without_v1_is_named(tmp_path: Path) -> None:
    with serving(fake=quick()) as url:
        bare = url.removesuffix("/v1")
        code, _, errors = called("measure", "--base-url", bare, "--output", str(tmp_path / "run"))
    assert code == 1
    assert f"usually {url}" in errors


def test_measure_score_and_compare_in_a_pipe(tmp_path: Path) -> None:
    with serving(fake=quick()) as url:
        runs = []
        for tokens in ("80", "90"):
            folder = tmp_path / tokens
            words = ["measure", "--base-url", url, "--output", str(folder), "--parts", "decode", *SMALL, "--json"]
            words[words.index("--max-tokens") + 1] = tokens
            done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=90, check=False)
            assert done.returncode == 0, done.stderr
            assert len(done.stdout.splitlines()) == 1
            runs.append(json.loads(done.stdout))
            assert "decode 1 of 2: code-1" in done.stderr
            assert "decode 2 of 2: prose-1, about " in done.stderr
            assert "short_run" in done.stderr
            assert "\x1b" not in done.stderr, "plain lines when piped"
    code, out, _ = called("score", str(tmp_path / "80"), "--json")
    assert (code, json.loads(out)["numbers"]) == (0, runs[0]["numbers"])
    code, out, errors = called("compare", str(tmp_path / "80"), str(tmp_path / "90"), "--json")
    assert code == 1
    assert "decode is not comparable: decode.max_tokens: 80 against 90" in errors
    assert json.loads(out)["numbers"] == {}
    code, out, _ = called("compare", str(tmp_path / "80"), str(tmp_path / "80"), "--json")
    assert code == 0
    assert json.loads(out)["numbers"]["decode.tokens_per_s"]["difference_pct"] == 0


def test_fake_serves_what_was_set_and_stops_when_asked(tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps([{"match": "capital", "text": "Oslo"}]))
    words = ["fake", "--port", "0", "--set", "decode_tokens_per_s=5000", "--set", "window=4096", "--answers", str(answers)]
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "5000 tok/s, window 4096 tokens" in line
    target = Target(url=line.split()[2].rstrip(","))
    body = {"model": "fake", "messages": [{"role": "user", "content": "The capital of Norway?"}], "max_tokens": 8}
    assert try_json(target, "/chat/completions", body)["choices"][0]["message"]["content"] == "Oslo"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    process.stdout.close()
