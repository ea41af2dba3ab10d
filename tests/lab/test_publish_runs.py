"""Publishing: setups grow, earlier and refused runs stay and are named, clones merge, signatures hold, a page can be repeated."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pagefiles
import pagerun
import pytest
from lab_fake import options, quick, serving
from smallsetup import small_card
from typer.testing import CliRunner

from homestretch.cli import build as commands
from homestretch.lab import check, site
from homestretch.lab.errors import BrokenRun, WrongUse
from homestretch.lab.progress import Progress
from homestretch.lab.publish import Filter, preview, publish, repeat, repetition
from homestretch.lab.run import measure
from homestretch.lab.types import Card, Setup

WHAT = Filter(["sparkhost"])
SPEED, REFUSED = pagerun.SPEED_RUN, pagerun.REFUSED_RUN


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pagerun.make(tmp_path_factory.mktemp("runs")) / "runs"


def setup_of(site_folder: Path, slug: str = "") -> Setup:
    home = next((site_folder / "setups").iterdir()) if not slug else site_folder / "setups" / slug
    return msgspec.toml.decode((home / "setup.toml").read_bytes(), type=Setup)


def another(runs: Path, into: Path, name: str, **changes: str) -> Path:
    """The speed run again, under another name, with other contract fields."""
    copy = Path(shutil.copytree(runs / SPEED, into / name))
    for file in ("contract.json", "result.json"):
        value = json.loads((copy / file).read_text())
        value["run"] = name
        if file == "contract.json":
            version = changes.pop("engine", None)
            value |= changes
            if version:
                value["card"]["engine"]["version"] = version
        (copy / file).write_text(json.dumps(value))
    pagefiles.seal(copy)
    return copy


def test_a_refused_run_gives_way_to_a_better_one_and_stays_named(runs: Path, tmp_path: Path) -> None:
    publish([runs / REFUSED], tmp_path, what=WHAT)
    first = setup_of(tmp_path)
    assert first.runs == {"decode": f"runs/{REFUSED}"}, "it counts while there is no better one"
    done = publish([runs / SPEED], tmp_path, what=WHAT)
    assert sorted(done[0].counts) == ["conc", "ctx", "decode", "prefill"]
    second = setup_of(tmp_path)
    assert second.runs["decode"] == f"runs/{SPEED}"
    assert [(entry.run, entry.machine) for entry in second.unused] == [(f"runs/{REFUSED}", "first DGX Spark")]
    assert "a spread of 71.0 %" in second.unused[0].reason
    publish([runs / REFUSED], tmp_path, what=WHAT)
    assert setup_of(tmp_path).runs["decode"] == f"runs/{SPEED}", "a refused run does not take the place of a good one"
    assert len(setup_of(tmp_path).unused) == 1


def test_another_machine_and_a_newer_engine(runs: Path, tmp_path: Path) -> None:
    publish([runs / SPEED], tmp_path / "site", what=WHAT)
    elsewhere = another(runs, tmp_path, "third", machine_name="third DGX Spark")
    publish([elsewhere], tmp_path / "site", what=WHAT)
    found = setup_of(tmp_path / "site")
    assert {entry.reason for entry in found.unused} == {"repeated on the third DGX Spark"}
    newer = another(runs, tmp_path, "newer", machine_name="third DGX Spark", engine="1.2.6", created="2026-12-01T00:00:00Z")
    publish([newer], tmp_path / "site", what=WHAT)
    found = setup_of(tmp_path / "site")
    assert found.runs["decode"] == "runs/newer"
    assert {entry.run for entry in found.earlier} == {"runs/third"}
    history = (next((tmp_path / "site" / "public" / "history").iterdir()) / "index.html").read_text()
    assert "TensorFold 1.2.6" in history
    assert "TensorFold 1.2.5" in history


def test_publishing_the_same_run_twice_changes_nothing(runs: Path, tmp_path: Path) -> None:
    publish([runs / SPEED], tmp_path, what=WHAT)
    before = {path: path.read_bytes() for path in (tmp_path / "setups").rglob("*") if path.is_file()}
    publish([runs / SPEED], tmp_path, what=WHAT)
    assert {path: path.read_bytes() for path in (tmp_path / "setups").rglob("*") if path.is_file()} == before


def test_a_run_that_the_recount_contradicts_does_not_count(runs: Path, tmp_path: Path) -> None:
    spoiled = another(runs, tmp_path, "spoiled")
    result = json.loads((spoiled / "result.json").read_text())
    result["numbers"]["decode.tokens_per_s"]["value"] *= 2
    (spoiled / "result.json").write_text(json.dumps(result))
    pagefiles.seal(spoiled)
    done = publish([spoiled], tmp_path / "site", what=WHAT)
    assert done[0].counts == []
    assert "the independent check failed: decode.tokens_per_s" in done[0].unused["decode"]
    page = next((tmp_path / "site" / "public" / "setup").iterdir()) / "index.html"
    assert "283.8" not in page.read_text()


def test_a_run_can_be_published_as_unused_with_a_reason(runs: Path, tmp_path: Path) -> None:
    done = publish([runs / SPEED], tmp_path, what=WHAT, reason="a fan was broken")
    assert set(done[0].unused.values()) == {"a fan was broken"}
    assert setup_of(tmp_path).runs == {}


def test_what_cannot_be_published_is_refused_with_what_to_do(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(BrokenRun, match="measure or score it again"):
        publish([tmp_path], tmp_path / "site", what=WHAT)
    bare = another(runs, tmp_path, "bare")
    contract = json.loads((bare / "contract.json").read_text())
    contract["card"] = None
    (bare / "contract.json").write_text(json.dumps(contract))
    with pytest.raises(WrongUse, match="give one with --card FILE"):
        publish([bare], tmp_path / "site", what=WHAT)
    publish([runs / SPEED], tmp_path / "site", what=WHAT)
    clash = another(runs, tmp_path / "x", SPEED, created="2026-12-02T00:00:00Z")
    with pytest.raises(WrongUse, match="already has another run named"):
        publish([clash], tmp_path / "site", what=WHAT)


def test_the_card_is_filtered_too(runs: Path, tmp_path: Path) -> None:
    card = pagefiles.read_card()
    named = msgspec.structs.replace(card, summary="measured on sparkhost in /home/petra/x", notes={"speed": "ask petra@sparkhost"})
    (tmp_path / "card.toml").write_bytes(msgspec.toml.encode(named))
    publish([runs / SPEED], tmp_path / "site", what=WHAT, card=tmp_path / "card.toml")
    for path in (tmp_path / "site").rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert "sparkhost" not in text, path
            assert "petra" not in text, path


def test_the_dry_run_shows_a_diff_and_writes_nothing(runs: Path, tmp_path: Path) -> None:
    run = another(runs, tmp_path, "dry")
    (run / "log.txt").write_text("fine\nloaded /home/petra/x.gguf\n")
    (run / "server.log").write_text("Server wird gestartet\n")
    before = sorted(tmp_path.rglob("*"))
    found = {entry.name: (entry, changes) for entry, changes in preview(run, WHAT)}
    assert found["log.txt"][1] == [(2, "loaded /home/petra/x.gguf", "loaded $HOME/x.gguf")]
    assert found["server.log"][0].state == "held"
    assert sorted(tmp_path.rglob("*")) == before
    shown = CliRunner().invoke(commands(), ["publish", str(run), "--site", str(tmp_path / "site"), "--dry-run"])
    assert shown.exit_code == 0
    assert "- loaded /home/petra/x.gguf" in shown.output
    assert "held back: line 1: text in another language" in shown.output
    assert not (tmp_path / "site").exists()


def test_two_clones_merge_without_conflict(runs: Path, tmp_path: Path) -> None:
    def git(folder: Path, *words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@x.example", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)

    base = tmp_path / "base"
    publish([runs / SPEED], base, what=WHAT)
    git(base, "init")
    git(base, "add", "-A")
    git(base, "commit", "-m", "first")
    clones = [tmp_path / name for name in ("one", "two")]
    for index, clone in enumerate(clones, 1):
        git(tmp_path, "clone", str(base), clone.name)
        card = clone / "card.toml"
        card.write_bytes(msgspec.toml.encode(small_card(index, 128)))
        publish([runs / SPEED], clone, what=WHAT, card=card)
        card.unlink()
        git(clone, "add", "-A")
        git(clone, "commit", "-m", f"setup {index}")
    git(clones[0], "pull", "--no-rebase", "--no-edit", str(clones[1]), "main")
    assert not (clones[0] / "public" / ".git").exists()
    built = site.build(clones[0] / "setups", clones[0] / "public", what=WHAT)
    assert set(built.pages) == {pagefiles.read_card().slug, "small-001", "small-002"}


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_signed_manifest_closes_the_gap(runs: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tester", "-f", str(key)], check=True)
    publish([runs / SPEED], tmp_path / "site", what=WHAT, sign=key)
    run = next((tmp_path / "site" / "setups").iterdir()) / "runs" / SPEED
    signers = tmp_path / "allowed_signers"
    signers.write_text(f'tester namespaces="homestretch" {key.with_suffix(".pub").read_text()}')
    assert check.check_run(run, signers).signature == "manifest signed by tester"
    assert check.check_run(run).signature == "manifest signed by a key that this site does not list"
    page = next((tmp_path / "site" / "public" / "setup").iterdir()) / "index.html"
    assert "manifest signed by a key that this site does not list" in page.read_text()
    shutil.copyfile(signers, tmp_path / "site" / "allowed_signers")
    site.build(tmp_path / "site" / "setups", tmp_path / "site" / "public", what=WHAT)
    assert "manifest signed by tester" in page.read_text()
    lines = (run / "requests-decode.jsonl").read_text().replace("0.105", "0.106", 1)
    (run / "requests-decode.jsonl").write_text(lines)
    pagefiles.seal(run)
    report = check.check_run(run, signers)
    assert not report.passed
    assert "signature of the manifest" in {row.name for row in report.rows if row.outcome == "differs"}
    with pytest.raises(WrongUse, match="could not be signed"):
        check.sign(run, tmp_path / "nokey")


def test_a_page_is_repeated_number_by_number(tmp_path: Path) -> None:
    """Measured, published, and repeated from the page against a server of the same and of another speed."""
    card = msgspec.structs.replace(small_card(1, 8), model=msgspec.structs.replace(small_card(1, 8).model, id="fake"))
    (tmp_path / "card.toml").write_bytes(msgspec.toml.encode(card))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("homestretch.lab.run._check_instrument", lambda folder, say: None)
        with serving(fake=quick(decode_tokens_per_s=200.0)) as url:
            first = options(url, tmp_path / "first", "decode,conc", card=tmp_path / "card.toml")
            measure(first, progress=Progress(quiet=True))
            publish([tmp_path / "first"], tmp_path / "site", what=WHAT)
            page = tmp_path / "site" / "public" / "setup" / card.slug / "index.html"
            found = repeat.origin(str(page), tmp_path / "page")
            assert {row.name: row.state for row in repeat.hashes(found.contract, None, None, None)}["prompts"] == "same"
            repetition.measure(found.contract, tmp_path / "again", base_url=url, allow_load=True)
            rows, refusals = repeat.judge(found.folder, tmp_path / "again")
            assert not refusals
            states = {row.name: row.state for row in rows}
            assert states["decode.tokens_per_s"] == "repeats"
            assert states["conc.2.total_tokens_per_s"] == "repeats"
        with serving(fake=quick(decode_tokens_per_s=120.0)) as url:
            repetition.measure(found.contract, tmp_path / "slow", base_url=url, parts="decode", allow_load=True)
            rows, _ = repeat.judge(found.folder, tmp_path / "slow")
            assert {row.name: row.state for row in rows}["decode.tokens_per_s"] == "does not repeat"


def test_repeat_refuses_what_it_cannot_use(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="cannot be read"):
        repeat.origin(str(tmp_path / "nowhere.html"), tmp_path / "into")
    (tmp_path / "plain.html").write_text("<p>nothing</p>")
    with pytest.raises(WrongUse, match="names no contract"):
        repeat.origin(str(tmp_path / "plain.html"), tmp_path / "into")
    (tmp_path / "far.html").write_text('<link data-run="r" href="file:///etc/passwd">')
    with pytest.raises(WrongUse, match="not beside it"):
        repeat.origin(str(tmp_path / "far.html"), tmp_path / "into")
    found = repeat.origin(str(runs / SPEED), tmp_path / "into")
    wrong = tmp_path / "weights.bin"
    wrong.write_bytes(b"x")
    states = {row.name: row.state for row in repeat.hashes(found.contract, None, wrong, None)}
    assert states == {"engine": "not here", "prompts": "other"}
    shown = CliRunner().invoke(commands(), ["repeat", str(runs / SPEED), "--output", str(tmp_path / "out")])
    assert shown.exit_code == 1
    assert "are not those of the page, so nothing is measured" in shown.output


def test_the_published_card_reads_as_a_card(runs: Path, tmp_path: Path) -> None:
    publish([runs / SPEED], tmp_path, what=WHAT)
    card = msgspec.toml.decode((next((tmp_path / "setups").iterdir()) / "card.toml").read_bytes(), type=Card)
    assert card == pagefiles.read_card()
