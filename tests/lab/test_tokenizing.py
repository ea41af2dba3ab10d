"""Nonces have one length under any tokenizer that splits some of the words, and never start alike while words last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from homestretch.lab import prompts
from homestretch.lab.errors import Undecided, WrongUse
from homestretch.lab.tokenizing import WORDS, TokenCounter, by_file, nothing

SPLIT_AT_START = {word for word in WORDS if len(word) % 7 == 0}
SPLIT_INSIDE = {word for word in WORDS if word.startswith("m")}


def odd(text: str) -> int:
    """A tokenizer to which some words are two tokens at the start of a line, and others after a space."""
    total = 0
    for piece in re.findall(r" ?\w+|\s|[^\w\s]", text):
        total += 2 if piece in SPLIT_AT_START or (piece[0] == " " and piece[1:] in SPLIT_INSIDE) else 1
    return total


def test_every_nonce_of_a_run_counts_the_same_and_starts_anew() -> None:
    counter = TokenCounter("/tokenize", odd)
    counter.begin("a run", 0)
    nonces = [counter.nonce() for _ in range(100)]
    assert {odd(nonce) for nonce in nonces} == {5}
    assert len({nonce.split()[0] for nonce in nonces}) == len(nonces)


def test_a_resumed_run_goes_on_behind_the_nonces_that_were_used() -> None:
    first, second = TokenCounter("none", lambda text: None), TokenCounter("none", lambda text: None)
    first.begin("a run", 0)
    used = {first.nonce().split()[0] for _ in range(40)}
    second.begin("a run", 40)
    assert not used & {second.nonce().split()[0] for _ in range(40)}


@pytest.mark.parametrize("depth", [600, 2048, 5000])
def test_prompts_are_exact_under_an_odd_tokenizer(depth: int) -> None:
    counter = TokenCounter("/tokenize", odd)
    counter.begin("a run", 0)

    def measure(user: str) -> int:
        return 9 + sum(odd(message["content"]) for message in prompts.messages(counter.nonce(), user))

    made = prompts.Builder(measure, "/tokenize").exact(prompts.read(None)[0]["code"], depth)
    assert {measure(made.user) for _ in range(20)} == {depth}
    assert made.user.endswith(prompts.read(None)[0]["code"])


def test_what_cannot_be_counted_or_held_is_undecided() -> None:
    with pytest.raises(Undecided, match="give --tokenizer-json"):
        prompts.Builder(lambda user: None, "none").exact("task", 1000)
    with pytest.raises(Undecided, match="cannot hold the task"):
        prompts.Builder(odd, "x").exact("word " * 500, 100)
    assert nothing().count("x") is None


def test_a_broken_tokenizer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(WrongUse, match="no readable tokenizer"):
        by_file(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"code": "a", "prose": "b"}',
        '[{"id": "code", "prompt": "a"}, {"id": "prose", "text": "b"}]',
        '{"prompts": [{"id": "code", "text": "a"}]}',
    ],
)
def test_prompt_files_of_several_forms(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(text)
    found, digest = prompts.read(path)
    assert found["code"] == "a"
    assert len(digest) == 64


@pytest.mark.parametrize("text", ["{", "[]", "17", '{"prompts": [{"text": "no id"}]}'])
def test_other_prompt_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(text)
    with pytest.raises(WrongUse, match="--prompts"):
        prompts.read(path)
