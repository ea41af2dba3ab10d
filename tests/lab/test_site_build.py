"""The build: only what changed, large sites, hostile folders, the preview, and files for programs."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import threading
import time
import urllib.request
import xml.etree.ElementTree
from pathlib import Path

import msgspec
import pytest
import smallsetup
from pagefiles import read_card, seal

from homestretch.lab import site
from homestretch.lab.errors import WrongUse
from homestretch.lab.publish import Filter
from homestretch.lab.site import preview
from homestretch.lab.types import EarlierRun, Setup

WHAT = Filter(["sparkhost"])


@pytest.fixture
def setups(tmp_path: Path) -> Path:
    for index in range(3):
        smallsetup.make(tmp_path / "setups", index, 64)
    return tmp_path / "setups"


def times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_an_unchanged_site_is_not_written_again(setups: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert len(site.build(setups, out, what=WHAT).rebuilt) == 3
    before = times(out)
    again = site.build(setups, out, what=WHAT)
    assert (again.rebuilt, again.unchanged) == ([], 3)
    before.pop(".build.json")
    assert {name: at for name, at in times(out).items() if name != ".build.json"} == before


def test_only_the_changed_setup_is_made_anew_and_a_removed_one_goes(setups: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    site.build(setups, out, what=WHAT)
    other = (out / "setup" / "small-000" / "index.html").stat().st_mtime_ns
    card = setups / "small-001" / "card.toml"
    card.write_text(card.read_text().replace("setup 1", "setup one"))
    built = site.build(setups, out, what=WHAT)
    assert built.rebuilt == ["small-001"]
    assert "setup one" in (out / "index.html").read_text()
    assert (out / "setup" / "small-000" / "index.html").stat().st_mtime_ns == other
    shutil.rmtree(setups / "small-002")
    site.build(setups, out, what=WHAT)
    assert not (out / "setup" / "small-002").exists()
    assert not (out / "raw" / "v2" / "small-002").exists()
    assert "small-002" not in (out / "index.html").read_text()


def test_no_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="is not a folder; give the folder that holds one folder per setup"):
        site.build(tmp_path / "nowhere", tmp_path / "out", what=WHAT)


def test_an_empty_site_is_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "setups").mkdir()
    built = site.build(tmp_path / "setups", tmp_path / "out", what=WHAT)
    assert "No setup has been published yet" in built.index.read_text()


def test_files_for_programs_hold_the_printed_digits(setups: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    site.build(setups, out, what=WHAT, base="https://example.org/")
    rows = list(csv.DictReader((out / "data" / "setups.csv").read_text().splitlines()))
    assert [row["decode.tokens_per_s"] for row in rows] == ["34.0", "27.0", "20.0"]
    data = json.loads((out / "data" / "setups.json").read_text())
    assert data[0]["numbers"]["decode.tokens_per_s"] == {"value": 34.0, "unit": "tok/s"}
    table = json.loads((out / "class" / "64" / "table.json").read_text())
    assert [row["rank"] for row in table] == ["1", "2", "3"]
    assert (out / "compare" / "64" / "table.csv").read_text().startswith("measurement,unit,small-002,small-001,small-000")
    feed = xml.etree.ElementTree.fromstring((out / "feed.xml").read_text())
    links = [link.get("href") for link in feed.iter("{http://www.w3.org/2005/Atom}link")]
    assert "https://example.org/setup/small-002/index.html" in links


def test_history_shows_runs_that_counted_before(setups: Path, tmp_path: Path) -> None:
    home = setups / "small-001"
    shutil.copytree(home / "runs" / "r0", home / "runs" / "r-old")
    contract = json.loads((home / "runs" / "r-old" / "contract.json").read_text())
    contract["created"], contract["card"]["engine"]["version"] = "2026-09-01T00:00:00Z", "0.9"
    (home / "runs" / "r-old" / "contract.json").write_text(json.dumps(contract))
    seal(home / "runs" / "r-old")
    setup = msgspec.toml.decode((home / "setup.toml").read_bytes(), type=Setup)
    setup = msgspec.structs.replace(setup, earlier=[EarlierRun(part="decode", run="runs/r-old", replaced="2026-11-02")])
    (home / "setup.toml").write_bytes(msgspec.toml.encode(setup))
    site.build(setups, tmp_path / "out", what=WHAT)
    text = (tmp_path / "out" / "history" / "small-001" / "index.html").read_text()
    assert "2026-09-01" in text
    assert "llama.cpp 0.9" in text
    assert "replaced 2026-11-02" in text
    assert "history/small-001" in (tmp_path / "out" / "setup" / "small-001" / "index.html").read_text()


def test_no_private_name_reaches_any_file_of_the_site(setups: Path, tmp_path: Path) -> None:
    """In titles, prompt names, folder names, process names and doubts: charts, lists, state and feeds are filtered as well."""
    home = (setups / "small-001").rename(setups / "of-kellerkind")
    card = home / "card.toml"
    card.write_text(card.read_text().replace("setup 1", "on Kellerkind").replace('label = "1× DGX', 'label = "kellerkind 1× DGX'))
    run = home / "runs" / "r0"
    for name in ("requests-decode.jsonl", "result.json", "contract.json"):
        text = (run / name).read_text().replace('"code"', '"kellerkind"').replace("decode.code.", "decode.kellerkind.")
        (run / name).write_text(text)
    seal(run)
    bad = smallsetup.make(setups, 9, 64)
    (bad / "card.toml").write_text((bad / "card.toml").read_text().replace('"small-009"', '"box-kellerkind"'))
    built = site.build(setups, tmp_path / "out", what=Filter(["kellerkind"]))
    assert "holds a private name" in built.refused["small-009"]
    assert "small-001" in built.pages
    for path in (tmp_path / "out").rglob("*"):
        assert "kellerkind" not in path.name.lower()
        if path.is_file():
            assert "kellerkind" not in path.read_text(errors="replace").lower(), path


@pytest.mark.timing
def test_three_hundred_setups(tmp_path: Path) -> None:
    """Seconds of this process, so that a busy machine does not fail it: under 20 to build, under 2 unchanged, home under 300 kB."""
    for index in range(300):
        smallsetup.make(tmp_path / "setups", index, (8, 16, 32, 64, 128)[index % 5])
    began = time.process_time()
    built = site.build(tmp_path / "setups", tmp_path / "out", what=WHAT)
    first = time.process_time() - began
    began = time.process_time()
    again = site.build(tmp_path / "setups", tmp_path / "out", what=WHAT)
    second = time.process_time() - began
    assert (len(built.pages), len(again.rebuilt)) == (300, 0)
    assert first < 20
    assert second < 2
    loaded = ["index.html", "assets/site.css", "assets/site.js", "assets/mark.svg"]
    assert sum((tmp_path / "out" / name).stat().st_size for name in loaded) < 300_000


# --- hostile folders -------------------------------------------------------------------------------------------------------

SCRIPT = "<script>alert(1)</script>"


def hostile(root: Path, slug: str = "hostile") -> Path:
    """A setup that tries what it can: scripts in every text, links that run, odd names, symlinks, broken and deep JSON."""
    home = smallsetup.make(root, 7, 64)
    card = msgspec.to_builtins(read_card())
    for key in ("title", "summary", "specialist"):
        card[key] = f"{key} {SCRIPT}"
    card |= {"slug": slug, "memory_class_gb": 64, "differences": [SCRIPT], "notes": {"speed": SCRIPT, "context": SCRIPT}}
    card["author"] = {
        "name": SCRIPT,
        "links": [{"label": "x", "url": "javascript:alert(1)"}, {"label": "y", "url": "data:text/html,x"}],
    }
    card["recipe"] = {"title": SCRIPT, "url": 'https://x.example/" onmouseover="alert(1)'}
    card["credits"] = [{"label": SCRIPT, "url": "file:///etc/passwd"}]
    card["start"]["command"] = ["serve", SCRIPT, "$(rm -rf /)"]
    (home / "card.toml").write_bytes(msgspec.toml.encode(card))
    run = home / "runs" / "r0"
    result = json.loads((run / "result.json").read_text())
    result["parts"]["decode"]["notes"] = [SCRIPT]
    result["numbers"]["decode.code.tokens_per_s"]["source"] = '../../../x" onclick="alert(1)'
    result["doubts"] = {SCRIPT: [SCRIPT]}
    (run / "result.json").write_text(json.dumps(result))
    (run / "replies-decode.jsonl").write_text(json.dumps({"id": "code-1", "text": SCRIPT}) + "\n")
    (run / "guard.jsonl").write_text("{broken\n")
    (run / "quiet.jsonl").write_text('{"at": "x", "mono": 1, "foreign": [{"name": "<b>x</b>", "pid": 1, "cpu_pct": 1.0}]}\n')
    (run / "requests-conc.jsonl").write_text("[" * 100_000)
    (run / "passwd.txt").symlink_to("/etc/passwd")
    (run / "up").symlink_to("/etc")
    (run / f"{SCRIPT.replace('/', '')}.txt").write_text("x")
    (run / "..strange..txt").write_text("x")
    (run / ("n" * 200 + ".txt")).write_text("x")
    (run / "new\nline.txt").write_text("x")
    (run / "zip.zip").write_bytes(b"PK\x03\x04" + b"\0" * 1000)
    os.mkfifo(run / "pipe.log")
    deep = run
    for _ in range(30):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "deep.txt").write_text("x")
    with (run / "server.log").open("wb") as file:
        file.truncate(2_000_000_000)
    return home


def outside(root: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in root.rglob("*") if "out" not in path.parts}


def test_a_hostile_folder_writes_nothing_outside_and_runs_nothing(setups: Path, tmp_path: Path) -> None:
    hostile(setups)
    before = outside(tmp_path)
    out = tmp_path / "out"
    built = site.build(setups, out, what=WHAT)
    assert outside(tmp_path) == before
    assert {"small-000", "small-001", "small-002", "hostile"} <= set(built.pages)
    for page in out.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert SCRIPT not in text, page
        assert not re.search(r'(?:href|src)="(?:javascript|data|file):', text), page
        assert not re.search(r"<[^>]*\son\w+=", text), page
    for path in out.rglob("*"):
        assert not path.is_symlink()
        assert "passwd" not in path.name
    assert "root:" not in "".join(path.read_text(errors="replace") for path in (out / "raw").rglob("*.txt"))
    held = {
        entry["name"]: entry["reason"]
        for entry in json.loads((out / "raw/v2/hostile/r0/published.json").read_text())["files"]
        if entry["state"] == "held"
    }
    assert "symbolic link" in held["passwd.txt"]
    assert "larger than" in held["server.log"]
    assert "not a regular file" in held["pipe.log"]
    assert "independent check failed" in (out / "setup" / "hostile" / "index.html").read_text()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda home: (home / "setup.toml").write_text("runs = 3"),
        lambda home: (home / "card.toml").write_text("not toml ["),
        lambda home: (home / "card.toml").write_text((home / "card.toml").read_text().replace('"small-005"', '"../../../etc"')),
        lambda home: (home / "card.toml").write_text((home / "card.toml").read_text().replace('"small-005"', '"small-000"')),
        lambda home: (home / "setup.toml").write_text('card = "../small-000/card.toml"\nruns = {}\n'),
    ],
    ids=["setup", "card", "slug that climbs", "slug of another", "card outside"],
)
def test_a_setup_that_cannot_be_used_is_named_and_the_others_are_built(setups: Path, tmp_path: Path, spoil) -> None:
    spoil(smallsetup.make(setups, 5, 64))
    built = site.build(setups, tmp_path / "out", what=WHAT)
    assert set(built.pages) == {"small-000", "small-001", "small-002"}
    assert list(built.refused) == ["small-005"]
    assert "small-005" in built.index.read_text()


@pytest.mark.parametrize("path", ["../../small-000/runs/r0", "/etc", "runs/../../small-000/runs/r0", "linked"])
def test_a_run_outside_its_setup_is_not_read(setups: Path, tmp_path: Path, path: str) -> None:
    home = setups / "small-001"
    (home / "linked").symlink_to(setups / "small-000" / "runs" / "r0")
    (home / "setup.toml").write_bytes(msgspec.toml.encode(Setup(card="card.toml", runs={"decode": path})))
    site.build(setups, tmp_path / "out", what=WHAT)
    page = (tmp_path / "out" / "setup" / "small-001" / "index.html").read_text()
    assert "Not everything could be read" in page
    assert not (tmp_path / "out" / "raw" / "v2" / "small-001" / "r0").exists()


def test_the_preview_rebuilds_and_tells_open_pages(setups: Path, tmp_path: Path) -> None:
    server, watch = preview.start(setups, tmp_path / "out", port=0, what=WHAT, say=lambda text: None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        assert "EventSource" in urllib.request.urlopen(f"{base}/", timeout=10).read().decode()
        events = urllib.request.urlopen(f"{base}/-/changes", timeout=20)
        assert watch.look() is False
        card = setups / "small-001" / "card.toml"
        card.write_text(card.read_text().replace("setup 1", "setup one"))
        assert watch.look() is True
        assert events.readline() == b"data: built\n"
        assert "setup one" in urllib.request.urlopen(f"{base}/setup/small-001/", timeout=10).read().decode()
        with pytest.raises(WrongUse, match="cannot be used"):
            preview.start(setups, tmp_path / "out", port=server.server_address[1], what=WHAT, say=lambda text: None)
    finally:
        server.shutdown()
        server.server_close()
