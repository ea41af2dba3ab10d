"""The grammar of JSON objects: what it lets through parses, what parses it lets through, and no draft changes a reply under it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import reading, talking

from homestretch.engine.chat.grammar import DEEPEST, DONE, START, JsonGrammar, JsonVocabulary, step

READ = reading()
TOKENIZER = READ.tokenizer
WORDS = JsonVocabulary(TOKENIZER, READ.vocab)
END = 4
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


def accepts(text: bytes) -> bool:
    state = START
    for byte in text:
        after = step(state, byte)
        if after is None:
            return False
        state = after
    return state == DONE


@settings(max_examples=300, deadline=None)
@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_every_json_object_is_let_through(value: Any, ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    assert accepts(text.encode("utf-8", "replace"))
    grammar = JsonGrammar(WORDS, ends=frozenset({END}))
    path: tuple[int, ...] = ()
    for token in TOKENIZER.encode(text):
        assert grammar.allows(path, token)
        assert grammar.mask(path)[token // 8] >> (token % 8) & 1
        path = (*path, token)
    assert grammar.allows(path, END)
    assert not grammar.allows(path, path[0])


@settings(max_examples=300, deadline=None)
@given(OBJECTS, st.integers(0, 200), st.sampled_from(list('{}[]",:\\0-.eE+ntf \n')))
def test_what_is_let_through_parses(value: Any, place: int, letter: str) -> None:
    text = json.dumps(value)
    place %= len(text) + 1
    for changed in (
        text[:place] + letter + text[place:],
        text[:place] + text[place + 1 :],
        text[:place] + letter + text[place + 1 :],
    ):
        try:
            parsed = isinstance(json.loads(changed), dict) and changed == changed.strip()
        except ValueError:
            parsed = False
        assert accepts(changed.encode()) == parsed, changed


def test_random_walks_end_in_json() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        grammar = JsonGrammar(WORDS, ends=frozenset({END}))
        path: tuple[int, ...] = ()
        while len(path) < 400:
            allowed = np.flatnonzero(np.unpackbits(np.frombuffer(grammar.mask(path), dtype=np.uint8), bitorder="little"))
            assert allowed.size, "something may always follow"
            closing = [token for token in allowed if token == END or set(TOKENIZER.bytes_of(int(token))) <= set(b'}]"')]
            token = int(rng.choice(closing)) if closing and len(path) > rng.randrange(60) else int(rng.choice(allowed))
            if token == END:
                break
            path = (*path, token)
        text = TOKENIZER.decode(path)
        if token == END:
            assert isinstance(json.loads(text, strict=False), dict)


def test_depth_is_bounded_and_states_are_forgotten_when_the_path_changes() -> None:
    assert not accepts(b'{"a":' + b"[" * DEEPEST)
    grammar = JsonGrammar(WORDS, ends=frozenset({END}))
    one, two = TOKENIZER.encode('{"a": 1}'), TOKENIZER.encode('{"b": []}')
    assert grammar.allows(one, END)
    assert grammar.allows(two, END)
    assert not grammar.allows(one[:-1], END)
    assert grammar.allows(one, END)


def parsed(made: Any) -> Any:
    return json.loads(made["choices"][0]["message"]["content"], strict=False)


@pytest.mark.parametrize("thinking", [False, True])
def test_replies_of_a_model_that_says_anything_are_json_objects(thinking: bool) -> None:
    close = {str(TOKENIZER.encode(text, special=True)[0]): 30 for text in ("</think>",) if thinking}
    fields = {"response_format": {"type": "json_object"}, "chat_template_kwargs": {"enable_thinking": thinking}, "max_tokens": 300}
    favour = {str(TOKENIZER.encode(text)[0]): 5 for text in ('"', "}", "]", ":")} | close
    with talking() as talk:
        done = 0
        for seed in range(6):
            _, drafted = talk.chat(**fields, seed=seed, logit_bias=favour)
            _, serial = talk.chat(**fields, seed=seed, logit_bias=favour, draft=False)
            assert drafted["token_sha"] == serial["token_sha"]
            if drafted["choices"][0]["finish_reason"] == "stop":
                assert isinstance(parsed(drafted), dict)
                done += 1
        assert done > 0
        talk.says('{"a": [1, 2, {"b": "}"}], "c": null}', **fields["chat_template_kwargs"])  # type: ignore[arg-type]
        if not thinking:
            assert parsed(talk.chat(**fields)[1]) == {"a": [1, 2, {"b": "}"}], "c": None}
        assert talk.chat(**fields, ignore_eos=True)[0] == 400
        assert talk.chat(response_format={"type": "json_schema", "json_schema": {}})[0] == 400
        assert talk.chat(response_format={"type": "text"}, max_tokens=1)[0] == 200
