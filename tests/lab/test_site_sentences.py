"""Sentences follow their data: other counts make other sentences, and a missing fact makes none."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pagerun
import pytest
from pagefiles import read_card, seal, write_json, write_lines

from homestretch.lab.setups import LoadedSetup, read_run, read_setup
from homestretch.lab.site import facts, memory, quality, sentences, speed, start
from homestretch.lab.site.figures import depth, printed, size
from homestretch.lab.site.words import listed, several, word
from homestretch.lab.types import Number, Result, UnusedRun


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pagerun.make(tmp_path_factory.mktemp("sentences"))


@pytest.fixture
def setup(whole: Path, tmp_path: Path) -> LoadedSetup:
    return read_setup(Path(shutil.copytree(whole, tmp_path / "setup")))


def result(**values: float) -> Result:
    numbers = {name.replace("__", "."): Number(value=value, unit="tok/s", n=2) for name, value in values.items()}
    return Result(run="r", scored_by="", parts={}, numbers=numbers)


def test_printed_digits() -> None:
    assert [printed("decode.tokens_per_s", value) for value in (141.94999, 0.25, 1234.5)] == ["141.9", "0.2", "1234.5"]
    assert printed("fit.4096.peak_gib", 23.444) == "23.44"
    assert printed("fit.largest_tokens", 131072) == "131,072"
    assert printed("mmlupro.right", 0) == "0"
    assert printed("decode.tokens_per_s", None) == ""
    assert [depth(tokens) for tokens in (512, 2048, 131072, 1000)] == ["512", "2K", "128K", "1,000"]
    assert [size(count) for count in (0, 999, 1400, 17_800_000_000)] == ["0 B", "999 B", "1.4 kB", "17.8 GB"]


def test_small_grammar() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert several(1, "request") == "1 request"
    assert several(1234, "request") == "1,234 requests"
    assert [word(count) for count in (0, 2, 11)] == ["no", "two", "11"]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            (10.0, 40.0, 10.0, 5.0),
            "The total rises from 10.0 tok/s with 1 request to 40.0 tok/s with 4; the speed of one request falls",
        ),
        (
            (40.0, 10.0, 10.0, 10.04),
            "The total falls from 40.0 tok/s with 1 request to 10.0 tok/s with 4; the speed of one request stays",
        ),
    ],
)
def test_requests_at_once_rise_fall_or_stay(ends: tuple[float, ...], said: str) -> None:
    names = ("conc__1__total_tokens_per_s", "conc__4__total_tokens_per_s")
    names += ("conc__1__request_tokens_per_s", "conc__4__request_tokens_per_s")
    assert said in sentences.at_once(result(**dict(zip(names, ends, strict=True))))
    assert sentences.at_once(result(conc__1__total_tokens_per_s=1.0)) == ""


def test_the_headline_names_its_prompts_and_what_keeps_it_out(setup: LoadedSetup) -> None:
    run = setup.counting["decode"]
    assert sentences.headline(result(), run) == ""
    one = sentences.headline(result(decode__tokens_per_s=50.0, decode__code__tokens_per_s=50.0), run)
    assert one == "The headline 50.0 tok/s is that of the code prompt (50.0), medians of two runs."
    doubted = result(decode__tokens_per_s=50.0, decode__code__tokens_per_s=50.0)
    doubted.numbers["decode.tokens_per_s"] = Number(value=50.0, unit="tok/s", doubts=["spread_over_limit"])
    assert sentences.headline(doubted, run).endswith("It is no headline: spread over limit.")


def test_cached_tokens_and_thinking_as_sent(setup: LoadedSetup) -> None:
    run = setup.counting["decode"]
    path = run.folder / "requests-prefill.jsonl"
    rows = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    rows[0]["usage"]["cached_tokens"] = 300
    rows[1]["settings"]["chat_template_kwargs"]["enable_thinking"] = True
    write_lines(path, rows)
    text = sentences.thinking_and_cache(setup, run, ("prefill",))
    assert (
        text == "Thinking was not the same in every request. "
        "The cache check found cached prompt tokens in 1 of the 9 requests it examined."
    )
    for row in rows:
        row["usage"].pop("cached_tokens")
    write_lines(path, rows)
    assert "The server reported no count of cached prompt tokens in any of 9 requests." in sentences.thinking_and_cache(
        setup, run, ("prefill",)
    )


def test_no_drafts_no_sentence(setup: LoadedSetup) -> None:
    run = setup.counting["decode"]
    path = run.folder / "requests-decode.jsonl"
    rows = [{**msgspec.json.decode(line), "extras": {}} for line in path.read_bytes().splitlines()]
    write_lines(path, rows)
    assert sentences.drafts(run) == ""


def test_discarded_steps_and_a_busy_process_are_said(setup: LoadedSetup) -> None:
    run = setup.counting["decode"]
    assert run.result is not None
    state = run.result.parts["decode"]
    assert state.guard is not None
    state = msgspec.structs.replace(state, guard=msgspec.structs.replace(state.guard, discarded=2))
    write_json(run.folder / "result.json", msgspec.structs.replace(run.result, parts={**run.result.parts, "decode": state}))
    load = {"at": "x", "mono": 0.0, "foreign": [{"name": "backup", "pid": 1, "cpu_pct": 61.2}]}
    write_lines(run.folder / "quiet.jsonl", [load])
    text = sentences.load(read_run(run.folder), ("decode",))
    assert "discarded and repeated 2 of its 4 steps" in text
    assert "(one sample every 10 seconds, 1 sample) saw at most 61.2 % of one core, from backup" in text


def test_quality_notes_follow_the_counts(setup: LoadedSetup) -> None:
    found = quality.quality(setup)
    assert found is not None
    none = [row for row in found.rows if row.part == "mmlupro"]
    assert quality.cut_off(none) == "No answer was cut off at its limit."
    assert quality.cut_off([row for row in found.rows if row.part == "ifeval"]).startswith(
        "1 IFEval answer was cut off at its limit and counts"
    )
    assert quality.unparsed([row for row in found.rows if row.part == "ifeval"]) == ""
    assert quality.errors(found.rows) == ""


def test_a_machine_is_named_only_where_runs_name_it(setup: LoadedSetup) -> None:
    bare = msgspec.structs.replace(setup.setup, machines={})
    unnamed = {
        part: type(run)(
            name=run.name,
            folder=run.folder,
            contract=msgspec.structs.replace(run.contract, machine_name="") if run.contract else None,
            result=run.result,
        )
        for part, run in setup.counting.items()
    }
    other = LoadedSetup(slug="x", folder=setup.folder, card=setup.card, setup=bare, counting=unnamed)
    assert sentences.machines(other) == ""


def test_an_unused_run_within_the_limit_gets_no_spread_sentence(setup: LoadedSetup) -> None:
    run = setup.counting["decode"]
    entry = UnusedRun(part="decode", run="x", reason="a second try.")
    text = sentences.unused(setup, [entry], run)
    assert "gives this page no number of that part" in text
    assert "spread" not in text
    assert text.endswith("Reason given: a second try.")


def test_memory_says_how_many_answered(setup: LoadedSetup) -> None:
    found = memory.memory(setup)
    assert found is not None
    assert found.sentences[0].startswith("All 6 sizes (4K, 8K, 16K, 32K, 64K and 128K) answered.")
    run = setup.counting["fit"]
    assert run.result is not None
    part = run.result.parts["fit"]
    sizes = [dict(item) for item in part.detail["sizes"]]
    sizes[-1] = {"size": 131072, "outcome": "failed: out of memory"}
    part = msgspec.structs.replace(part, detail={"sizes": sizes})
    numbers = {**run.result.numbers, "fit.largest_tokens": Number(value=65536, unit="tokens", n=6)}
    write_json(run.folder / "result.json", msgspec.structs.replace(run.result, parts={"fit": part}, numbers=numbers))
    seal(run.folder)
    again = memory.memory(read_setup(setup.folder))
    assert again is not None
    assert again.sentences[0].startswith("5 of 6 sizes")
    assert again.rows[-1].outcome == "failed: out of memory"


def test_the_start_command_is_one_a_shell_reads(setup: LoadedSetup) -> None:
    card = read_card()
    command = msgspec.structs.replace(card.start, command=["serve", "{location}", "--name", "a b", "--seed", "7"])
    other = LoadedSetup(
        slug="x", folder=setup.folder, card=msgspec.structs.replace(card, start=command), setup=setup.setup, counting={}
    )
    assert start.start(other).command == "serve nemotron-lightning \\\n  --name 'a b' \\\n  --seed 7"


def test_the_method_sentence_leaves_out_what_the_contract_does_not_hold(setup: LoadedSetup) -> None:
    counting = {part: run for part, run in setup.counting.items() if part == "decode"}
    only = LoadedSetup(slug="x", folder=setup.folder, card=setup.card, setup=setup.setup, counting=counting)
    text = speed.method(only, speed.merged(only))
    assert "context steps" not in text
    assert "requests at once" not in text
    assert text.startswith("Method: code+prose; 2 run(s) each; 512 tokens; 1 warm-up(s); median; decode = ")


def test_hostile_raw_files_give_no_sentence_and_no_crash(setup: LoadedSetup) -> None:
    run = setup.counting["decode"]
    (run.folder / "requests-decode.jsonl").write_text("[" * 100_000)
    (run.folder / "quiet.jsonl").write_text('{"at": 1}\n')
    (run.folder / "instrument.json").write_text("[]")
    assert facts.decode_runs(run) == []
    assert sentences.drafts(run) == ""
    assert sentences.instrument(run) == ""
