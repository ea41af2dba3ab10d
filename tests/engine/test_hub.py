"""Pulling from the hub, against a local stand-in: only what is needed, checked, resumed, and never outside the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_stand import COMMIT, Stand
from tiny_nemotron import config_of, random_tensors, write_mlx

from homestretch.engine.checkpoint.opening import open_checkpoint
from homestretch.engine.errors import SetupError
from homestretch.engine.families import build_model
from homestretch.engine.store.headers import peek_repo
from homestretch.engine.store.hub import pull_repo
from homestretch.engine.store.names import Repo

TINY = Repo(name="team/tiny")
EXTRAS = {"README.md": b"# tiny", "pytorch_model.bin": b"x" * 100, "assets/picture.png": b"png", "consolidated.safetensors": b"y"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    config = config_of("ME*-")
    folder = write_mlx(tmp_path_factory.mktemp("made") / "m", config, random_tensors(config, 0), shards=2)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homestretch.engine.store.hub.time.sleep", lambda _: None)


def notes() -> tuple[list[str], Callable[[str, int, int | None], None]]:
    said: list[str] = []
    return said, lambda what, done, total: said.append(f"{what} {done}/{total}")


def test_only_the_files_of_the_checkpoint_are_pulled_once(files: dict[str, bytes], tmp_path: Path) -> None:
    stand, (said, report) = Stand(files={**files, **EXTRAS}), notes()
    with stand.open() as endpoint:
        pulled = pull_repo(TINY, tmp_path, report, endpoint=endpoint)
        assert pulled.fetched
        assert pulled.source == f"hub:team/tiny@{COMMIT}"
        assert pulled.bytes == sum(len(data) for data in files.values())
        assert {path.name for path in pulled.path.iterdir()} == {*files, "pulled.json"}
        assert build_model(open_checkpoint(pulled.path)).head is not None
        assert any("downloading mtp-4bit.safetensors" in line for line in said)
        asked = len(stand.requests)
        again = pull_repo(TINY, tmp_path, report, endpoint=endpoint)
        assert (again.fetched, again.path) == (False, pulled.path)
        assert len(stand.requests) == asked + 1
    named = pull_repo(Repo(name="team/tiny", revision=COMMIT), tmp_path, report, endpoint="http://127.0.0.1:9")
    assert (named.fetched, named.path) == (False, pulled.path)
    offline = pull_repo(TINY, tmp_path, report, endpoint="http://127.0.0.1:9")
    assert offline.path == pulled.path
    assert any("the hub cannot be reached; using what was pulled before" in line for line in said)
    with pytest.raises(SetupError, match=r"team/other: the hub cannot be reached .* nothing was pulled before"):
        pull_repo(Repo(name="team/other"), tmp_path, report, endpoint="http://127.0.0.1:9")


def test_a_broken_download_goes_on_where_it_broke(files: dict[str, bytes], tmp_path: Path) -> None:
    name = "model-00001-of-00002.safetensors"
    stand, (said, report) = Stand(files=files, cuts=[(name, 1000), (name, 5000)]), notes()
    with stand.open() as endpoint:
        pulled = pull_repo(TINY, tmp_path, report, endpoint=endpoint)
    assert (pulled.path / name).read_bytes() == files[name]
    assert [asked for path, asked in stand.requests if path.endswith(name)] == ["", "bytes=1000-", "bytes=5000-"]
    assert sum("broke off" in line for line in said) == 2


def test_a_later_pull_goes_on_too_and_servers_without_ranges_start_anew(files: dict[str, bytes], tmp_path: Path) -> None:
    name = "model-00002-of-00002.safetensors"
    stand, (_, report) = Stand(files=files, cuts=[(name, 700)] + [(name, 0)] * 5), notes()
    with stand.open() as endpoint:
        with pytest.raises(SetupError, match=r"could not be downloaded .* pull again to go on from byte 700"):
            pull_repo(TINY, tmp_path, report, endpoint=endpoint)
        stand.cuts.clear()
        stand.ranges = False
        pulled = pull_repo(TINY, tmp_path, report, endpoint=endpoint)
    assert stand.requests[-1][1] == "" or any(asked == "bytes=700-" for _, asked in stand.requests)
    assert (pulled.path / name).read_bytes() == files[name]


def test_content_that_is_not_what_the_hub_lists_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    name = "mtp-4bit.safetensors"
    wrong = {"lfs": {"size": len(files[name]), "sha256": "0" * 64, "pointerSize": 1}}
    stand, (_, report) = Stand(files=files, listed={name: wrong}), notes()
    with stand.open() as endpoint, pytest.raises(SetupError, match=f"{name} came with another hash"):
        pull_repo(TINY, tmp_path, report, endpoint=endpoint)
    assert not list(tmp_path.rglob(f"{name}*"))
    stand.listed = {"config.json": {"blobId": "1" * 40}}
    with stand.open() as endpoint, pytest.raises(SetupError, match=r"config.json came with another hash"):
        pull_repo(TINY, tmp_path / "b", report, endpoint=endpoint)
    stand.listed = {name: {"size": len(files[name]) - 1}}
    with stand.open() as endpoint, pytest.raises(SetupError, match="sends more than the"):
        pull_repo(TINY, tmp_path / "c", report, endpoint=endpoint)


def test_a_file_that_changed_on_disk_is_pulled_again(files: dict[str, bytes], tmp_path: Path) -> None:
    stand, (_, report) = Stand(files=files), notes()
    with stand.open() as endpoint:
        pulled = pull_repo(TINY, tmp_path, report, endpoint=endpoint)
        (pulled.path / "config.json").write_bytes(b"{}" + b" " * (len(files["config.json"]) - 2))
        again = pull_repo(TINY, tmp_path, report, endpoint=endpoint)
    assert again.fetched
    assert (again.path / "config.json").read_bytes() == files["config.json"]
    assert sum(path.endswith(".safetensors") for path, _ in stand.requests) == 3


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/evil.json", "a/../../b.json", "..\\evil.json", "C:evil.json"])
def test_a_listing_that_leads_out_of_the_cache_is_refused(name: str, files: dict[str, bytes], tmp_path: Path) -> None:
    stand, (_, report) = Stand(files={**files, name: b"x"}), notes()
    with stand.open() as endpoint, pytest.raises(SetupError, match="leads out of its folder; nothing was pulled"):
        pull_repo(TINY, tmp_path / "cache", report, endpoint=endpoint)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_an_index_or_a_commit_that_leads_out_of_the_cache_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    bad = {**files, "model.safetensors.index.json": b'{"weight_map": {"a": "../../outside.safetensors"}}'}
    (_, report) = notes()
    with (
        Stand(files=bad).open() as endpoint,
        pytest.raises(SetupError, match=r"'../../outside.safetensors' is not among the files"),
    ):
        pull_repo(TINY, tmp_path, report, endpoint=endpoint)
    with Stand(files=files, commit="../../x").open() as endpoint, pytest.raises(SetupError, match="40 hexadecimal digits"):
        pull_repo(TINY, tmp_path, report, endpoint=endpoint)


def test_a_repository_of_one_gguf_gives_the_file(tmp_path: Path) -> None:
    stand, (_, report) = Stand(files={"tiny-Q4_1.gguf": b"GGUF" * 100, "README.md": b"x"}), notes()
    with stand.open() as endpoint:
        pulled = pull_repo(TINY, tmp_path, report, endpoint=endpoint)
        assert pulled.path.name == "tiny-Q4_1.gguf"
        assert pulled.sha256
        stand.files["tiny-Q8_0.gguf"] = b"GGUF"
        stand.commit = "e" * 40
        with pytest.raises(SetupError, match=r"holds 2 .gguf files and no config.json"):
            pull_repo(TINY, tmp_path, report, endpoint=endpoint)


def test_a_plan_needs_headers_alone(files: dict[str, bytes], tmp_path: Path) -> None:
    stand, (_, report) = Stand(files=files), notes()
    with stand.open() as endpoint:
        peeked = peek_repo(TINY, tmp_path, report, endpoint=endpoint)
        model = build_model(open_checkpoint(peeked.path))
        assert model.head is not None
        asked = [(path, part) for path, part in stand.requests if path.endswith(".safetensors")]
        assert all(part.startswith("bytes=0-") for _, part in asked)
        assert not any(path.endswith("tokenizer.json") for path, _ in stand.requests)
        name = "mtp-4bit.safetensors"
        assert (peeked.path / name).stat().st_size == len(files[name])
        assert not any((peeked.path / name).read_bytes()[-100:])
        pulled = pull_repo(TINY, tmp_path, report, endpoint=endpoint)
        assert pulled.path != peeked.path
        assert peek_repo(TINY, tmp_path, report, endpoint=endpoint).path == pulled.path
        assert build_model(open_checkpoint(pulled.path)).weights == model.weights
        stand.ranges, stand.commit = False, "f" * 40
        assert build_model(open_checkpoint(peek_repo(TINY, tmp_path, report, endpoint=endpoint).path)).weights == model.weights
        stand.files, stand.commit = {**files, name: b"\xff" * 64}, "a" * 40
        with pytest.raises(SetupError, match="it is no safetensors file"):
            peek_repo(TINY, tmp_path, report, endpoint=endpoint)


def test_what_the_hub_does_not_have_is_said(files: dict[str, bytes], tmp_path: Path) -> None:
    stand, (_, report) = Stand(files=files), notes()
    with stand.open() as endpoint:
        with pytest.raises(SetupError, match=r"team/tiny@v9: the hub has no such revision"):
            pull_repo(Repo(name="team/tiny", revision="v9"), tmp_path, report, endpoint=endpoint)
        with pytest.raises(SetupError, match="team/nothing is not on the hub, or private"):
            pull_repo(Repo(name="team/nothing"), tmp_path, report, endpoint=endpoint)
        stand.status = 500
        with pytest.raises(SetupError, match="the hub cannot be reached"):
            pull_repo(TINY, tmp_path, report, endpoint=endpoint)


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder is moved by a variable that only Linux has")
def test_serve_pulls_first(files: dict[str, bytes], tmp_path: Path) -> None:
    """`homestretch serve ORG/REPO` in a process of its own, with the stand-in as its hub and an empty cache."""
    stand = Stand(files=files)
    with stand.open() as endpoint:
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
        command = [
            sys.executable,
            "-m",
            "homestretch",
            "serve",
            "team/tiny",
            "--port",
            "0",
            "--backend",
            "reference",
            "--threads",
            "1",
        ]
        running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
        guard = threading.Timer(120, running.kill)
        guard.start()
        said: list[str] = []
        try:
            for line in running.stderr or ():
                said.append(line.rstrip())
                if line.startswith("ready: "):
                    break
            assert said[-1].startswith("ready: "), said
        finally:
            running.terminate()
            running.communicate(timeout=60)
            guard.cancel()
    assert any(line.startswith("downloading mtp-4bit.safetensors") for line in said)
    assert any("tiny on cpu (reference), window 2,048 tokens" in line and "drafts: MTP + copies" in line for line in said)
    assert list(tmp_path.rglob("pulled.json"))
