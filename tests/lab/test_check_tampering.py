"""Forty seeded tamperings of a run and its page: the recount finds each and names the place; and what it says it cannot find."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pagefiles
import pagerest
import pagerun
import pytest
from typer.testing import CliRunner

from homestretch.cli import build
from homestretch.lab import check, site
from homestretch.lab.publish import Filter

SEED = 2026


@pytest.fixture(scope="module")
def setup_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pagerun.make(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def built(setup_folder: Path) -> Path:
    out = setup_folder.parent.parent / "out"
    site.build(setup_folder.parent, out, what=Filter(["sparkhost"]))
    return out


@pytest.fixture
def copied(setup_folder: Path, tmp_path: Path) -> Callable[[str], Path]:
    def copy(run: str) -> Path:
        return Path(shutil.copytree(setup_folder / "runs" / run, tmp_path / run))

    return copy


Change = Callable[[Path, random.Random], str]  # changes the run, returns the file in which the difference must be named


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def put(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit(name: str, change: Callable[[list[dict[str, Any]], random.Random], None]) -> Change:
    def apply(run: Path, rng: random.Random) -> str:
        lines = rows(run / name)
        change(lines, rng)
        put(run / name, lines)
        return name

    return apply


def edit_json(name: str, change: Callable[[dict[str, Any], random.Random], None]) -> Change:
    def apply(run: Path, rng: random.Random) -> str:
        value = json.loads((run / name).read_text())
        change(value, rng)
        (run / name).write_text(json.dumps(value, indent=1))
        return name

    return apply


def number(name: str, factor: float = 1.0, step: float = 0.0, key: str = "value") -> Change:
    def change(result: dict[str, Any], _: random.Random) -> None:
        result["numbers"][name][key] = result["numbers"][name][key] * factor + step

    return edit_json("result.json", change)


def setting(name: str, value: Any) -> Change:
    return edit_json("contract.json", lambda contract, _: contract["settings"][name].update(value=value))


def stretch(part: str, factor: float) -> Change:
    """One request's stamps, all of them, by a factor."""

    def change(lines: list[dict[str, Any]], rng: random.Random) -> None:
        row = rng.choice([line for line in lines if not line["step"].startswith("warmup")])
        row["events"] = [[at * factor, kind, tokens] for at, kind, tokens in row["events"]]
        row["end_s"] *= factor

    return edit(f"requests-{part}.jsonl", change)


def one_stamp(lines: list[dict[str, Any]], rng: random.Random) -> None:
    row = rng.choice(lines[1:])
    index = rng.randrange(2, len(row["events"]) - 4)
    row["events"][index][0] += 0.0005


def drop(lines: list[dict[str, Any]], rng: random.Random) -> None:
    del lines[rng.randrange(len(lines))]


def flip(to: str) -> Callable[[list[dict[str, Any]], random.Random], None]:
    def change(lines: list[dict[str, Any]], rng: random.Random) -> None:
        row = rng.choice([line for line in lines if line["verdict"] not in (to, "cut")])
        row["verdict"] = to

    return change


def token_share(lines: list[dict[str, Any]], rng: random.Random) -> None:
    row = rng.choice(lines[1:])
    row["events"][5][2] += 1


def swap(run: Path, rng: random.Random) -> str:
    names = ["requests-decode.jsonl", "requests-prefill.jsonl"]
    texts = [(run / name).read_bytes() for name in names]
    for name, text in zip(names, reversed(texts), strict=True):
        (run / name).write_bytes(text)
    return names[0]


def digit(name: str) -> Change:
    """One digit of a file becomes another."""

    def apply(run: Path, rng: random.Random) -> str:
        text = (run / name).read_text()
        at = rng.choice([match.start() for match in re.finditer(r"\d", text)])
        (run / name).write_text(text[:at] + str((int(text[at]) + 1 + rng.randrange(8)) % 10) + text[at + 1 :])
        return name

    return apply


def remove(name: str) -> Change:
    def apply(run: Path, _: random.Random) -> str:
        (run / name).unlink()
        return name

    return apply


def add_file(run: Path, _: random.Random) -> str:
    (run / "requests-decode2.jsonl").write_text("{}\n")
    return "requests-decode2.jsonl"


def link(run: Path, _: random.Random) -> str:
    (run / "log.txt").unlink()
    (run / "log.txt").symlink_to("/etc/hostname")
    return "log.txt"


def think_aloud(lines: list[dict[str, Any]], rng: random.Random) -> None:
    rng.choice(lines)["settings"]["chat_template_kwargs"]["enable_thinking"] = True


SPEED, INST, THINK, LCB = pagerun.SPEED_RUN, pagerest.INST_RUN, pagerest.THINK_RUN, pagerest.LCB_RUN
FIT, RACE = pagerest.FIT_RUN, pagerest.RACE_RUN

WITHOUT_NEW_HASHES: dict[str, tuple[str, Change]] = {
    "a digit of a result": (SPEED, digit("result.json")),
    "a digit of a contract": (SPEED, digit("contract.json")),
    "a digit of the requests": (SPEED, digit("requests-decode.jsonl")),
    "a digit of the guard": (SPEED, digit("guard.jsonl")),
    "a digit of the quiet check": (SPEED, digit("quiet.jsonl")),
    "a digit of the log": (SPEED, digit("log.txt")),
    "a digit of the instrument": (SPEED, digit("instrument.json")),
    "a dropped answer": (INST, edit("answers-mmlupro.jsonl", drop)),
    "a dropped reply": (INST, edit("replies-gpqa.jsonl", drop)),
    "a dropped request": (SPEED, edit("requests-ctx.jsonl", drop)),
    "one stamp": (SPEED, edit("requests-decode.jsonl", one_stamp)),
    "two files swapped": (SPEED, swap),
    "an edited sampling": (SPEED, setting("sampling.temperature", 0.7)),
    "an edited seed": (INST, setting("request.seed", 7)),
    "a file removed": (SPEED, remove("requests-conc.jsonl")),
    "a file added": (SPEED, add_file),
    "a link in the place of a file": (SPEED, link),
    "a race's answer": (RACE, digit("gauntlet/io.jsonl")),
    "a race's result": (RACE, digit("gauntlet/result.json")),
}
WITH_NEW_HASHES: dict[str, tuple[str, Change]] = {
    "a headline raised": (SPEED, number("decode.tokens_per_s", 1.02)),
    "a prefill raised by a digit": (SPEED, number("prefill.8192.tokens_per_s", 1, 0.1)),
    "a spread lowered": (SPEED, number("decode.code.tokens_per_s", 0.5, key="spread_pct")),
    "a spread that hid a doubt": (
        pagerun.REFUSED_RUN,
        edit_json("result.json", lambda r, _: r["numbers"]["decode.code.tokens_per_s"].pop("doubts")),
    ),
    "stamps of a decode run": (SPEED, stretch("decode", 0.9)),
    "stamps of a round": (SPEED, stretch("conc", 0.8)),
    "stamps of a long prompt": (SPEED, stretch("ctx", 1.3)),
    "a token share against the total": (SPEED, edit("requests-decode.jsonl", token_share)),
    "usage against the events": (
        SPEED,
        edit("requests-prefill.jsonl", lambda lines, rng: rng.choice(lines)["usage"].update(completion_tokens=600)),
    ),
    "accepted drafts": (SPEED, edit("requests-decode.jsonl", lambda lines, _: lines[1]["extras"]["drafts"].update(accepted=486))),
    "words of a reply": (
        SPEED,
        edit("replies-decode.jsonl", lambda lines, _: lines[1].update(text=lines[1]["text"] + " and some more words")),
    ),
    "contract against requests: temperature": (SPEED, setting("sampling.temperature", 0.2)),
    "contract against requests: limit": (INST, setting("mmlupro.max_tokens", 48)),
    "requests against contract: thinking": (
        INST,
        edit("requests-gpqa.jsonl", think_aloud),
    ),
    "cached prompt tokens": (
        SPEED,
        edit("requests-prefill.jsonl", lambda lines, rng: rng.choice(lines)["usage"].update(cached_tokens=512)),
    ),
    "a verdict against its reply": (INST, edit("answers-mmlupro.jsonl", flip("right"))),
    "a cut answer called right": (
        LCB,
        edit(
            "answers-lcb.jsonl", lambda lines, _: next(line for line in lines if line["verdict"] == "cut").update(verdict="right")
        ),
    ),
    "margin against counts": (INST, number("ifeval.margin_pts", 1, -2.0)),
    "a peak of memory": (FIT, edit("memory-fit.jsonl", lambda lines, rng: rng.choice(lines).update(peak=10 * 2**30))),
    "a race against its exchanges": (
        RACE,
        edit("gauntlet/io.jsonl", lambda lines, _: lines[0].update(answer="```json\n{}\n```", thinking_ms=900)),
    ),
}


def test_there_are_forty() -> None:
    assert len(WITHOUT_NEW_HASHES) + 1 == 20  # the twentieth is the page's own number, below
    assert len(WITH_NEW_HASHES) == 20


def differences(run: Path) -> list[check.Row]:
    return [row for row in check.check_run(run).rows if row.outcome == "differs"]


@pytest.mark.parametrize("run", [SPEED, pagerun.REFUSED_RUN, INST, THINK, LCB, FIT, RACE])
def test_an_honest_run_passes(setup_folder: Path, run: str) -> None:
    report = check.check_run(setup_folder / "runs" / run)
    assert not [row for row in report.rows if row.outcome == "differs"]
    assert report.passed
    assert report.counts()["recounted"] > 15


@pytest.mark.parametrize("name", WITHOUT_NEW_HASHES)
def test_found_without_new_hashes(copied: Callable[[str], Path], name: str) -> None:
    run, change = WITHOUT_NEW_HASHES[name]
    folder = copied(run)
    place = change(folder, random.Random(f"{SEED} {name}"))
    found = differences(folder)
    assert any(place in row.place or place in row.name for row in found), found


@pytest.mark.parametrize("name", WITH_NEW_HASHES)
def test_found_with_all_hashes_renewed(copied: Callable[[str], Path], name: str) -> None:
    run, change = WITH_NEW_HASHES[name]
    folder = copied(run)
    place = change(folder, random.Random(f"{SEED} {name}"))
    pagefiles.seal(folder)
    found = differences(folder)
    assert found
    assert not any(row.name.startswith("file ") for row in found), "the hashes fit; what is found is found by counting"
    related = {"result.json", "contract.json"} | {place, place.replace("replies", "requests"), place.replace("answers", "requests")}
    if place == "contract.json":
        related |= {f"requests-{part}.jsonl" for part in ("decode", "mmlupro")}
    if place == "result.json":
        related |= {f"requests-{part}.jsonl" for part in ("decode", "prefill")} | {"answers-ifeval.jsonl"}
    assert any(key in row.place or key in row.note for row in found for key in related), found


def test_a_page_number_is_found_and_its_line_named(built: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(built, tmp_path / "out"))
    assert all(report.passed for report in check.check_site(out))
    page = next((out / "setup").iterdir()) / "index.html"
    text = page.read_text()
    assert 'data-number="gpqa.right_pct">40.9<' in text
    page.write_text(text.replace('data-number="gpqa.right_pct">40.9<', 'data-number="gpqa.right_pct">41.9<'))
    wrong = [row for report in check.check_site(out) for row in report.rows if row.outcome == "differs"]
    assert [(row.name, row.page, row.recount) for row in wrong] == [("gpqa.right_pct", "41.9", "40.9")]
    assert re.search(r"index\.html: line \d+", wrong[0].place)


def test_what_it_cannot_find_without_a_signature(copied: Callable[[str], Path]) -> None:
    """A stamp inside a reply, moved by half a millisecond, with every hash made anew: no figure depends on it."""
    folder = copied(SPEED)
    edit("requests-decode.jsonl", one_stamp)(folder, random.Random(SEED))
    pagefiles.seal(folder)
    assert check.check_run(folder).passed


def test_a_held_back_file_is_said_not_failed(setup_folder: Path, tmp_path: Path) -> None:
    from homestretch.lab.publish.tree import write_run

    run = Path(shutil.copytree(setup_folder / "runs" / SPEED, tmp_path / "run"))
    replies = rows(run / "replies-decode.jsonl")
    replies[0]["text"] = "it drew 61.3 W"
    put(run / "replies-decode.jsonl", replies)
    pagefiles.seal(run)
    write_run(run, tmp_path / "out", Filter(["sparkhost"]))
    report = check.check_run(tmp_path / "out")
    assert report.passed
    unseen = {row.name for row in report.rows if row.outcome == "cannot be recounted"}
    assert {"decode.words_per_s", "decode.characters_per_s", "decode.words_500_s", "file replies-decode.jsonl"} <= unseen
    assert "decode.tokens_per_s" not in unseen


def test_the_command_prints_a_table_and_a_report(setup_folder: Path, tmp_path: Path) -> None:
    run = setup_folder / "runs" / SPEED
    shown = CliRunner().invoke(build(), ["check", str(run), "--json", "--report", str(tmp_path / "report.json")])
    assert shown.exit_code == 0
    assert "decode.tokens_per_s" in shown.output
    assert json.loads(shown.output.splitlines()[-1])["passed"] is True
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"] is True
    assert {"name": "decode.tokens_per_s", "page": "141.9", "recount": "141.9"}.items() <= next(
        row for row in report["rows"] if row["name"] == "decode.tokens_per_s"
    ).items()
    refused = CliRunner().invoke(build(), ["check", str(tmp_path)])
    assert refused.exit_code == 2
    assert "is neither a run folder" in refused.output
