"""Servers that cache, leak thinking, send no usage, end early, drop, stall or refuse: the named doubt or error, no wrong number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_fake import quick, run, serving

from homestretch.lab.doubts import refuses
from homestretch.lab.errors import WrongUse
from homestretch.lab.records import RunFolder
from homestretch.lab.run import Measured
from homestretch.lab.types import Sourced

DRAFTS = ((281, 490), (281, 490), (475, 492), (213, 480), (213, 481))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    slow = {"prefill_tokens_per_s": 15_000.0}
    with serving(
        blind=quick(usage="never", tokenize=False),
        uncounted=quick(usage="never"),
        short=quick(ends_after=70, ignore_eos=False),
        stays=quick(ends_after=40),
        dropping=quick(fault="drop", faults=1),
        broken=quick(fault="drop", faults=1000),
        busy=quick(fault="429", faults=2),
        loading=quick(fault="503", faults=1000),
        stalling=quick(fault="stall", faults=1, stall_s=3.0),
        reported=quick(cache="reported", **slow),
        silent=quick(cache="silent", **slow),
        guessed=quick(tokens_per_event=(1, 2, 3, 4, 5), tokenize=False),
        refusing=quick(refuses=("continuous_usage_stats", "return_token_ids", "ignore_eos")),
        few=quick(slots=1),
        systemless=quick(refuses=("system",)),
        leaking=quick(thinks=16, obeys_thinking=False),
        thinking=quick(thinks=16),
        copied=quick(rates=(132.4, 132.4, 399.2, 142.0, 142.5), drafts=DRAFTS, draft_extras="speculative"),
    ) as address:
        yield address


@pytest.fixture(autouse=True)
def no_instrument_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds, and is tested by itself."""
    monkeypatch.setattr("homestretch.lab.run._check_instrument", lambda folder, say: None)


def state(done: Measured, part: str) -> str:
    return done.result.parts[part].state


def test_no_usage_is_counted_by_the_tokenizer_and_said(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode", model="uncounted")
    assert "no_usage" in done.result.doubts
    assert [record.usage.completion_tokens for record in RunFolder.open(done.folder).kept("decode") if record.usage] == [96] * 5


def test_no_usage_and_no_tokenizer_gives_no_number(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode,prefill", model="blind")
    assert done.result.numbers["decode.tokens_per_s"].value is None
    assert "no_usage" in done.result.doubts
    assert "prompt tokens cannot be counted" in done.failures["prefill"]
    assert done.exit_code != 0


def test_replies_that_end_early_refuse_the_round(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "conc", model="short")
    folder = RunFolder.open(done.folder)
    assert folder.contract().settings["probe.ignore_eos"].value != True  # noqa: E712 - a text is not True
    assert "ended_early" in done.result.doubts
    assert refuses(done.result.numbers["conc.2.total_tokens_per_s"].doubts)
    assert {record.discarded.split(":")[0] for record in folder.requests("conc")} == {"a reply ended before its limit", ""}


def test_ignore_eos_is_sent_where_a_probe_shows_it_works(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "conc", model="stays")
    folder = RunFolder.open(done.folder)
    assert folder.contract().settings["probe.ignore_eos"] == Sourced(value=True, source="probe (requests-probe.jsonl)")
    assert {record.settings.get("ignore_eos") for record in folder.kept("conc")} == {True}
    assert "ended_early" not in done.result.doubts


def test_a_dropped_connection_is_kept_and_the_step_repeated(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode", model="dropping")
    records = RunFolder.open(done.folder).requests("decode")
    assert state(done, "decode") == "done"
    assert [record.discarded[:14] for record in records if record.discarded] == ["error: dropped"]
    assert len(records) == 6


@pytest.mark.parametrize(("model", "says"), [("broken", "dropped"), ("loading", "status 503")])
def test_a_server_that_never_answers_whole_makes_the_part_invalid(url: str, tmp_path: Path, model: str, says: str) -> None:
    done = run(url, tmp_path / "run", "decode", model=model)
    assert state(done, "decode") == "invalid"
    assert says in done.failures["decode"]
    assert done.result.numbers["decode.tokens_per_s"].value is None
    assert done.exit_code == 1
    assert (done.folder / "manifest.json").exists()


@pytest.mark.parametrize(("model", "says"), [("busy", "status 429"), ("stalling", "stalled")])
def test_a_server_that_recovers_is_waited_for(url: str, tmp_path: Path, model: str, says: str) -> None:
    done = run(url, tmp_path / "run", "decode", model=model)
    assert state(done, "decode") == "done"
    assert any(says in record.discarded for record in RunFolder.open(done.folder).requests("decode"))


def test_reported_cache_counts_are_believed(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode", model="reported")
    settings = RunFolder.open(done.folder).contract().settings
    assert str(settings["cache.check"].value).startswith("reported")
    assert settings["cache.template_prefix_tokens"].value == 2
    assert "template_prefix" in done.result.doubts
    assert "cached_tokens" not in done.result.doubts


def test_a_silent_cache_is_found_by_timing_and_kept_out_by_nonces(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode", model="silent")
    check = str(RunFolder.open(done.folder).contract().settings["cache.check"].value)
    assert check.startswith("timed"), check
    assert "a repeated one less" in check


def test_unknown_first_event_is_bounded_and_said(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode", model="guessed", max_tokens=32, warmups=0)
    number = done.result.numbers["decode.code.k1_tokens_per_s"]
    assert number.value is None
    assert number.low is not None
    assert number.high is not None
    assert number.low <= 1000.0 * 1.1
    assert number.high >= 1000.0 * 0.9
    assert {"first_event_unknown", "few_tokens"} <= set(done.result.doubts)
    assert refuses(done.result.numbers["decode.tokens_per_s"].doubts)


def test_thinking_that_is_switched_off_and_comes_back_refuses(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "leaks", "decode", model="leaking", runs=1)
    assert refuses(done.result.numbers["decode.tokens_per_s"].doubts)
    assert "thinking_leaked" in done.result.numbers["decode.tokens_per_s"].doubts
    obeying = run(url, tmp_path / "obeys", "decode", model="thinking", runs=1)
    assert "thinking_leaked" not in obeying.result.doubts
    for record in RunFolder.open(obeying.folder).kept("decode"):
        assert record.settings["chat_template_kwargs"] == {"enable_thinking": False}


def test_extension_fields_that_are_refused_are_not_sent_again(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode,conc", model="refusing")
    assert done.exit_code == 0
    for record in RunFolder.open(done.folder).kept("conc"):
        assert not {"return_token_ids", "ignore_eos"} & set(record.settings)
        assert record.settings["stream_options"] == {"include_usage": True}


def test_a_template_without_a_system_role_gets_the_nonce_in_the_users_message(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "prefill", model="systemless", prefill_depths=(512,))
    folder = RunFolder.open(done.folder)
    assert folder.contract().settings["prompt.system_role"].value is False
    assert [record.prompt_tokens for record in folder.kept("prefill")] == [512, 512]


def test_a_server_on_another_machine_is_unguarded(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homestretch.lab.client.Target.local", lambda self: False)
    done = run(url, tmp_path / "run", "decode", model="few", runs=1)
    assert "server_unguarded" in done.result.numbers["decode.tokens_per_s"].doubts


def test_a_server_whose_process_is_hidden_is_measured_without_a_guard(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homestretch.lab.machine.listener", lambda port: None)
    done = run(url, tmp_path / "run", "decode", model="few", runs=1, allow_load=False)
    assert state(done, "decode") == "done"
    assert "cannot be seen from this account" in done.result.doubts["server_unguarded"][0]


def test_a_second_lab_may_not_write_to_the_same_run(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode", model="few", runs=1)
    with RunFolder.open(done.folder).held(), pytest.raises(WrongUse, match="another lab"):
        run(url, done.folder, "decode", model="few", resume=True)


def test_the_server_is_asked_to_keep_no_prompt(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode", model="few", runs=1, no_cache_prompt=True)
    folder = RunFolder.open(done.folder)
    assert {record.settings["cache_prompt"] for record in folder.kept("decode")} == {False}
    assert folder.contract().settings["request.cache_prompt"].source.startswith("--no-cache-prompt")
    assert "--no-cache-prompt" in folder.contract().command


def test_a_level_above_the_slots_is_queued(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "conc", model="few", server_slots=1, server_slots_source="the test")
    assert "queued" in done.result.numbers["conc.2.total_tokens_per_s"].doubts
    assert "queued" not in done.result.numbers["conc.1.total_tokens_per_s"].doubts
    assert done.result.numbers["conc.2.request_tokens_per_s"].value is not None


def test_a_spread_is_refused_and_its_cause_named(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path / "run", "decode", model="copied")
    numbers = done.result.numbers
    assert refuses(numbers["decode.tokens_per_s"].doubts)
    assert refuses(numbers["decode.code.tokens_per_s"].doubts)
    assert "spread_over_limit" not in numbers["decode.prose.tokens_per_s"].doubts
    assert (numbers["decode.code.spread_pct"].value or 0.0) > 40.0
    assert numbers["drafts.acceptance_pct"].value == pytest.approx(100 * 1182 / 1943)
    (said,) = done.result.doubts["spread_over_limit"]
    assert "281 of 490 (57.3 %) and 475 of 492 (96.5 %)" in said
    assert "in run 2 nearly all stood" in said
