"""`kill -9` during every part, then `--resume`: the result has the form of an undisturbed run's, raw files stay whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab_fake import quick, serving

from homestretch.lab.records import RunFolder, append_lines
from homestretch.lab.types import ReplyRecord, RequestRecord

SMALL = "--runs 2 --max-tokens 96 --prefill-depths 512 --prefill-runs 2 --conc-levels 1,2 --conc-rounds 1 --conc-max-tokens 96"
ARGUMENTS = ["--model", "fake", "--allow-load", *f"{SMALL} --ctx-depths 1024 --ctx-runs 1 --ctx-max-tokens 96".split(" ")]


def command(url: str, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "homestretch", "measure", "--base-url", url, "--output", str(folder), *ARGUMENTS, *more]


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or not path.stat().st_size:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_killed_in_every_part_and_resumed(tmp_path: Path) -> None:
    with serving(fake=quick(decode_tokens_per_s=400.0)) as url:
        whole = tmp_path / "whole"
        subprocess.run(command(url, whole), check=True, capture_output=True, timeout=120)
        killed = tmp_path / "killed"
        before: dict[str, bytes] = {}
        for part in ("probe", "decode", "prefill", "conc", "ctx"):
            more = ["--resume"] if killed.exists() else []
            process = subprocess.Popen(command(url, killed, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_for(killed / f"requests-{part}.jsonl", process)
            time.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            for name, data in before.items():
                assert (killed / name).read_bytes().startswith(data.rpartition(b"\n")[0]), f"{name} was changed"
            before = {path.name: path.read_bytes() for path in killed.glob("requests-*.jsonl")}
        finished = subprocess.run(
            command(url, killed, "--resume", "--json"), capture_output=True, text=True, timeout=120, check=False
        )
    assert finished.returncode == 0, finished.stderr
    one, other = RunFolder.open(whole), RunFolder.open(killed)
    assert one.result().numbers.keys() == other.result().numbers.keys()
    assert {part.state for part in other.result().parts.values()} == {"done"}
    for part in ("decode", "prefill", "conc", "ctx"):
        assert other.steps_done(part) == one.steps_done(part)
        assert len(other.kept(part)) == len(one.kept(part))
        assert {record.id for record in other.requests(part)} == set(other.replies(part))
    assert set(other.manifest().files) == {path.name for path in killed.iterdir()} - {"manifest.json"}
    assert json.loads(finished.stdout.splitlines()[-1])["exit"] == 0


def record(name: str, step: str, of: int, attempt: int = 1) -> RequestRecord:
    return RequestRecord(id=name, part="conc", step=step, of=of, attempt=attempt, at="", prompt_sha256="", settings={})


def test_recovery_cuts_only_what_a_kill_left_half(tmp_path: Path) -> None:
    requests, replies = tmp_path / "requests-conc.jsonl", tmp_path / "replies-conc.jsonl"
    append_lines(replies, [ReplyRecord(id=name) for name in ("a", "b", "c", "d", "e")])
    append_lines(requests, [record("a", "2-1", 2), record("b", "2-1", 2), record("c", "2-2", 2)])
    whole = requests.read_bytes()
    with requests.open("ab") as file:
        file.write(b'{"id":"d","part":"co')
    folder = RunFolder(tmp_path)
    cut = folder.recover()
    assert [text.split(":")[0] for text in cut] == ["requests-conc.jsonl", "requests-conc.jsonl", "replies-conc.jsonl"]
    assert requests.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])
    assert set(folder.replies("conc")) == {"a", "b"}
    assert folder.steps_done("conc") == {"2-1"}
    assert folder.recover() == []


def test_an_unreadable_line_inside_is_broken_not_skipped(tmp_path: Path) -> None:
    from homestretch.lab.errors import BrokenRun

    append_lines(tmp_path / "requests-conc.jsonl", [record("a", "1-1", 1)])
    with (tmp_path / "requests-conc.jsonl").open("ab") as file:
        file.write(b"{}\n")
    append_lines(tmp_path / "requests-conc.jsonl", [record("b", "1-2", 1)])
    with pytest.raises(BrokenRun, match="line 2"):
        RunFolder(tmp_path).requests("conc")
