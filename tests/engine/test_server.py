"""The HTTP API against a scripted model: shapes, refusals, streams, stop strings, reasoning, tool calls, disconnects, failures."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from serving import Talk, reading, talking

from homestretch.engine.server.openapi import document

USER = [{"role": "user", "content": "x"}]
OFF = {"enable_thinking": False}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}"
    "{% endfor %}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def talk() -> Iterator[Talk]:
    with talking() as made:
        yield made


@pytest.fixture(scope="module")
def tools() -> Iterator[Talk]:
    with talking(TOOL_TEMPLATE) as made:
        yield made


def join(chunks: list[Any], key: str = "content") -> str:
    return "".join(choice["delta"].get(key) or "" for chunk in chunks for choice in chunk["choices"])


def test_lookups(talk: Talk) -> None:
    status, raw = talk.get("/v1/models")
    assert status == 200
    assert json.loads(raw)["data"][0] | {"created": 0} == {
        "id": "tiny", "object": "model", "created": 0, "owned_by": "homestretch", "max_model_len": 2048
    }  # fmt: skip
    assert talk.get("/v1/models/tiny")[0] == 200
    assert talk.get("/v1/models/other")[0] == 404
    assert json.loads(talk.get("/health")[1])["status"] == "ok"
    assert json.loads(talk.get("/nothing")[1])["error"]["type"] == "invalid_request_error"
    assert talk.get("/v1/completions")[0] == 405


def test_the_openapi_document_in_the_seam_is_current(talk: Talk) -> None:
    served = json.loads(talk.get("/openapi.json")[1])
    kept = json.loads((Path(__file__).parents[2] / "seam" / "openapi.json").read_text(encoding="utf-8"))
    assert served == kept == json.loads(json.dumps(document())), "run tools/openapi.py"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": True}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": True, "seed": 1, "top_k": 1}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 2.5}, "top_k"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": -1}, "min_p"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "one"}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 65}, "n"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": "x"}, "frequency_penalty"),
    ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"4096": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "response_format"),
    ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),
    ({"tools": TOOLS}, "tools"),
    ({"functions": []}, "functions"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"draft": 0}, "draft"),
    ({"cache": "no"}, "cache"),
    ({"priority": 0.5}, "priority"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content"),
    ({"chat_template_kwargs": "no"}, "chat_template_kwargs"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "")
def test_bad_values_are_400_before_any_stream_opens(talk: Talk, fields: dict[str, Any], param: str) -> None:
    for extra in ({}, {"stream": True}) if "stream" not in fields else ({},):
        status, made, _ = talk.post("/v1/chat/completions", {"messages": USER, "max_tokens": 4, **extra, **fields})
        assert status == 400
        assert set(made["error"]) == {"message", "type", "param", "code"}
        assert made["error"]["type"] == "invalid_request_error"
        assert made["error"]["param"] == param
        assert made["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b"[1]", b"null", b'{"messages": NaN}', b"\xff\xfe", b'{"messages":' + b"[" * 50_000, b'{"a":1e999}'],
)
def test_what_is_no_json_object_is_400(talk: Talk, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        status, made, _ = talk.post(path, body)
        assert (status, made["error"]["type"]) == (400, "invalid_request_error")


def test_nesting_and_sizes_that_break_others(talk: Talk) -> None:
    for name in ("chat_template_kwargs", "metadata", "unheard_of"):
        for depth in (300, 900, 5000):
            nested = b'{"a":' * depth + b"1" + b"}" * depth
            status, _, _ = talk.post(
                "/v1/chat/completions",
                b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"%s":%s}' % (name.encode(), nested),
            )
            assert status in (200, 400)
    status, made, _ = talk.post("/v1/completions", {"prompt": ["x"] * 200, "max_tokens": 1})
    assert (status, made["error"]["param"]) == (400, "n")
    for content in ("", "a\x00b", "\ufffe\uffff", [], "\u202e" * 50):
        assert talk.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 1})[0] == 200
    assert talk.post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"\\ud800"}]}')[0] == 400
    for seed in (-1, 2**64, 10**60):
        assert talk.chat(seed=seed, max_tokens=1)[0] == 200
    for fields in ({"temperature": 1e-300}, {"top_p": 0}, {"min_p": 1}, {"top_k": 2**31}, {"temperature": 2, "top_k": -1}):
        assert talk.chat(max_tokens=2, **fields)[0] == 200


def test_bad_prompts_and_ids(talk: Talk) -> None:
    for prompt in ([], "", [""], [[]], [4096], [-1], [1, "a"], [[1], 2], [True], 5, None, [2**40], [1.5]):
        status, made, _ = talk.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
        assert (status, made["error"]["param"] or "prompt")[0] == 400, prompt
    for fields in ({"echo": True}, {"suffix": "x"}, {"best_of": 3}, {"logprobs": 21}):
        assert talk.post("/v1/completions", {"prompt": "x", "max_tokens": 2, **fields})[0] == 400, fields
    assert talk.post("/detokenize", {"tokens": [4096]})[0] == 400
    assert talk.post("/tokenize", {})[0] == 400
    assert talk.post("/v1/completions", {"prompt": "x", "model": "gpt-4", "max_tokens": 2})[1]["error"]["code"] == "model_not_found"


def test_overflow_is_refused_with_the_counts(talk: Talk) -> None:
    for body in (
        {"max_tokens": 2048},
        {"max_completion_tokens": 2040},
        {"max_tokens": 1, "messages": [{"role": "user", "content": "so " * 3000}]},
    ):
        for stream in (False, True):
            status, made, _ = talk.post("/v1/chat/completions", {"messages": USER, "stream": stream, **body})
            assert status == 400
            assert made["error"]["code"] == "context_length_exceeded"
            assert "2048" in made["error"]["message"]
    status, made, _ = talk.post("/v1/completions", {"prompt": [5] * 2047, "max_tokens": 1})
    assert (status, made["usage"]["total_tokens"]) == (200, 2048)


def test_bodies_in_chunks_and_too_large_bodies(talk: Talk) -> None:
    talk.says("fine", options=OFF)
    connection = HTTPConnection("127.0.0.1", talk.port, timeout=10)
    raw = json.dumps({"messages": USER, "max_tokens": 4}).encode()
    connection.request("POST", "/v1/chat/completions", iter([raw[:7], raw[7:20], raw[20:]]), encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    connection = HTTPConnection("127.0.0.1", talk.port, timeout=30)
    connection.request("POST", "/tokenize", (b" " * (1 << 20) for _ in range(33)), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    status, _, _ = talk.post("/tokenize", b" " * (60 << 20))
    assert status == 413, "a client that sends all before it reads sees the answer"
    connection = HTTPConnection("127.0.0.1", talk.port, timeout=10)
    connection.request("POST", "/tokenize", b"{", {"content-length": str(1 << 40)})
    assert connection.getresponse().status == 413, "what is announced need not be sent"
    connection.close()


def test_what_certainly_does_not_fit_is_refused_before_it_is_read_as_tokens(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: Any, **more: Any) -> Any:
        pytest.fail("it was read")

    monkeypatch.setattr(type(talk.read.tokenizer), "encode", never)
    text = "word " * 200_000
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("/v1/completions", {"prompt": text}),
        ("/v1/completions", {"prompt": ["a", text]}),
    ):
        status, made, _ = talk.post(path, body)
        assert (status, made["error"]["code"]) == (400, "context_length_exceeded")
        assert "at least" in made["error"]["message"]


def test_errors_do_not_send_back_megabytes(talk: Talk) -> None:
    for fields in ({"model": "m" * 1_000_000}, {"modalities": ["m" * 1_000_000]}, {"tool_choice": "m" * 1_000_000}):
        status, made = talk.chat(**fields)
        assert status in (400, 404)
        assert len(made["error"]["message"]) < 3000


def test_a_request_that_is_still_sent_when_the_server_stops_gets_503() -> None:
    with socket.socket() as half:
        with talking() as made:
            half.connect(("127.0.0.1", made.port))
            half.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
            made.get("/health")
        half.settimeout(10)
        assert half.recv(100).startswith(b"HTTP/1.1 503 ")


def test_usage_is_its_own_last_chunk_and_equal_to_the_plain_replys(talk: Talk) -> None:
    talk.says("one two three four five six", **OFF)
    body = {"messages": USER, "chat_template_kwargs": OFF}
    _, plain = talk.chat(chat_template_kwargs=OFF)
    bare = talk.stream("/v1/chat/completions", body)
    with_usage = talk.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    running = talk.stream(
        "/v1/chat/completions", {**body, "stream_options": {"continuous_usage_stats": True, "include_usage": True}}
    )
    assert (
        plain["choices"][0]["message"]["content"]
        == join(bare)
        == join(with_usage)
        == join(running)
        == "one two three four five six"
    )
    assert all("usage" not in chunk for chunk in bare)
    assert with_usage[-1]["choices"] == []
    assert with_usage[-1]["usage"] == {**plain["usage"], "prompt_tokens_details": {"cached_tokens": 0}}
    assert [chunk["usage"] for chunk in with_usage[:-1]] == [None] * (len(with_usage) - 1)
    counts = [chunk["usage"]["completion_tokens"] for chunk in running]
    assert counts == sorted(counts)
    assert counts[-1] == plain["usage"]["completion_tokens"]
    for last in (plain, bare[-1], with_usage[-1], running[-1]):
        assert set(last["timings"]) == {"prompt_s", "decode_s", "tokens_per_s", "cached_tokens"}
        assert set(last["speculative"]) == {"rounds", "drafted", "accepted", "accepted_copies", "accepted_mtp"}
        assert last["token_sha"] == plain["token_sha"]
    assert bare[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert bare[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", ["three", "ee f", "o th", ["zzz", "e four"], " ", "one two three four five", "x five", "é 🎉"])
@pytest.mark.parametrize("draft", [True, False])
def test_stop_strings_over_borders(talk: Talk, stop: str | list[str], draft: bool) -> None:
    text = "one two three four five é 🎉 six"
    talk.says(text, **OFF)
    body = {"messages": USER, "chat_template_kwargs": OFF, "stop": stop, "draft": draft}
    chunks = talk.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    _, plain = talk.chat(**{key: value for key, value in body.items() if key != "messages"})
    stops = [stop] if isinstance(stop, str) else stop
    found = [text.find(each) for each in stops if each in text]
    assert join(chunks) == plain["choices"][0]["message"]["content"] == text[: min(found, default=len(text))]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    ids = talk.read.tokenizer.encode(text)
    if found:
        needed = next(
            count for count in range(1, len(ids) + 1) if any(each in talk.read.tokenizer.decode(ids[:count]) for each in stops)
        )
        assert plain["usage"]["completion_tokens"] == needed, "usage ends at the token that completes the match"
    else:
        assert plain["usage"]["completion_tokens"] == len(ids) + 1


def test_characters_are_never_split(talk: Talk) -> None:
    text = "🎉👩‍👩‍👧 नमस्ते 日本語 مرحبا ﷽ \u0301é"
    talk.says(text, **OFF)
    for draft in (True, False):
        chunks = talk.stream("/v1/chat/completions", {"messages": USER, "chat_template_kwargs": OFF, "draft": draft})
        assert join(chunks) == text
        assert "\ufffd" not in json.dumps(chunks)


def test_reasoning_is_split_off(talk: Talk) -> None:
    talk.says("\nlet me think\n</think>\n\nThe answer <b>")
    chunks = talk.stream("/v1/chat/completions", {"messages": USER, "stream_options": {"include_usage": True}})
    _, plain = talk.chat()
    message = plain["choices"][0]["message"]
    assert join(chunks) == message["content"] == "The answer <b>"
    assert join(chunks, "reasoning_content") == message["reasoning_content"]
    assert message["reasoning_content"].strip() == "let me think"
    spent = plain["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < spent < plain["usage"]["completion_tokens"]
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == spent
    talk.says("never closed")
    _, cut = talk.chat(max_tokens=2)
    assert cut["choices"][0]["message"]["content"] is None
    assert cut["choices"][0]["finish_reason"] == "length"
    talk.says("no thoughts", **OFF)
    for fields in ({"chat_template_kwargs": OFF}, {"reasoning_effort": "none"}):
        _, off = talk.chat(**fields)
        assert off["choices"][0]["message"] == {"role": "assistant", "content": "no thoughts"}


HERMES = '<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo", "days": 2}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=weather>\n<parameter=place>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)


@pytest.mark.parametrize("form", [HERMES, XML])
def test_tool_calls_in_known_forms(tools: Talk, form: str) -> None:
    tools.says("Let me look." + form + form)
    _, plain = tools.chat(tools=TOOLS)
    choice = plain["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    calls = choice["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == 2
    for call in calls:
        assert call["type"] == "function"
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"place": "Oslo", "days": 2}
    chunks = tools.stream("/v1/chat/completions", {"messages": USER, "tools": TOOLS})
    streamed = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert [call["index"] for call in streamed] == [0, 1]
    assert [call["function"] for call in streamed] == [call["function"] for call in calls]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    history = [
        *USER,
        choice["message"],
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "rain"},
        {"role": "user", "content": "and?"},
    ]
    assert tools.post("/v1/chat/completions", {"messages": history, "tools": TOOLS, "max_tokens": 2})[0] == 200


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": 5}</tool_call> after',
        "<tool_call>" + "[" * 2000,
        "<tool_call>",
        "<tool_call>{}</tool_call><tool_call>[]</tool_call>",
        "a <tool_ca",
    ],
)
def test_what_is_no_tool_call_is_text(tools: Talk, text: str) -> None:
    tools.says(text)
    status, plain = tools.chat(tools=TOOLS, max_tokens=1500)
    assert status == 200
    assert plain["choices"][0]["message"]["content"] == text
    assert plain["choices"][0]["finish_reason"] in ("stop", "length")
    assert "tool_calls" not in plain["choices"][0]["message"]
    assert join(tools.stream("/v1/chat/completions", {"messages": USER, "tools": TOOLS, "max_tokens": 1500})) == text


def test_without_tools_a_call_is_text_and_choice_none_leaves_them_out(tools: Talk) -> None:
    tools.says("plain")
    _, plain = tools.chat(tools=TOOLS, tool_choice="none")
    assert plain["choices"][0]["message"]["content"] == "plain"
    _, with_tools = tools.chat(tools=TOOLS)
    assert plain["usage"]["prompt_tokens"] < with_tools["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "calls",
    [
        [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "not json"}}],
        [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1, 2]"}}],
        [{"function": {"name": "f", "arguments": None}}],
        [{"function": None}],
        [{}],
        [],
    ],
)
def test_malformed_tool_history_is_rendered_or_refused_but_never_a_500(tools: Talk, talk: Talk, calls: list[Any]) -> None:
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "content": None}, *USER]
    assert talk.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2})[0] == 200
    status, made, _ = tools.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
    assert status == 200 or (status, made["error"]["param"]) == (400, "messages")


def test_log_probabilities(talk: Talk) -> None:
    talk.says("one two three", **OFF)
    _, plain = talk.chat(chat_template_kwargs=OFF, logprobs=True, top_logprobs=2)
    chunks = talk.stream(
        "/v1/chat/completions", {"messages": USER, "chat_template_kwargs": OFF, "logprobs": True, "top_logprobs": 2}
    )
    rows = plain["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(row["bytes"]) for row in rows).decode() == "one two three"
    assert all(len(row["top_logprobs"]) == 2 and row["top_logprobs"][0]["token"] == row["token"] for row in rows)
    assert all(row["logprob"] <= 0 for row in rows)
    assert [
        row for chunk in chunks for choice in chunk["choices"] for row in (choice["logprobs"] or {"content": []})["content"]
    ] == rows
    _, bare = talk.chat(chat_template_kwargs=OFF, logprobs=True)
    assert all(row["top_logprobs"] == [] for row in bare["choices"][0]["logprobs"]["content"])
    _, legacy, _ = talk.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "logprobs": 1})
    made = legacy["choices"][0]["logprobs"]
    assert [len(made[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [3] * 4


def test_choices_prompts_and_seeds(talk: Talk) -> None:
    talk.speaker.line = ()
    ask = {"prompt": "abc", "max_tokens": 8, "temperature": 1.0}
    _, one, _ = talk.post("/v1/completions", ask)
    _, again, _ = talk.post("/v1/completions", ask)
    _, three, _ = talk.post("/v1/completions", {**ask, "n": 3})
    _, seeded, _ = talk.post("/v1/completions", {**ask, "seed": 7})
    _, seeded_again, _ = talk.post("/v1/completions", {**ask, "seed": 7, "draft": False, "cache": False})
    _, two, _ = talk.post("/v1/completions", {**ask, "prompt": ["abc", "def"], "n": 2})
    texts = [choice["text"] for choice in three["choices"]]
    assert one["choices"][0]["text"] == again["choices"][0]["text"] == texts[0]
    assert one["token_sha"] == again["token_sha"]
    assert len(set(texts)) == 3
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert three["usage"] | {"prompt_tokens_details": 0} == {
        "prompt_tokens": one["usage"]["prompt_tokens"],
        "completion_tokens": 24,
        "total_tokens": one["usage"]["prompt_tokens"] + 24,
        "prompt_tokens_details": 0,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert seeded["choices"][0]["text"] == seeded_again["choices"][0]["text"] != texts[0]
    assert [choice["text"] for choice in two["choices"]][:2] == texts[:2]
    chunks = talk.stream("/v1/completions", {**ask, "n": 3, "stream_options": {"include_usage": True}})
    assert ["".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == i) for i in range(3)] == texts


def test_bias_penalties_top_k_and_ends(talk: Talk) -> None:
    talk.speaker.line = ()
    ask = {"prompt": "abc", "max_tokens": 12}
    _, biased, _ = talk.post("/v1/completions", {**ask, "logit_bias": {"65": 100}})
    word = talk.read.tokenizer.decode([65])
    assert biased["choices"][0]["text"] == word * 12
    _, spread, _ = talk.post("/v1/completions", {**ask, "logit_bias": {"65": 50}, "presence_penalty": 2, "frequency_penalty": 2})
    assert spread["choices"][0]["text"].count(word) < 12 or 50 - 2 - 2 * 12 > 20
    _, cold, _ = talk.post("/v1/completions", {**ask, "top_k": 1})
    _, greedy, _ = talk.post("/v1/completions", {**ask, "temperature": 0})
    assert cold["choices"][0]["text"] == greedy["choices"][0]["text"]
    talk.says("one", **OFF)
    _, ended = talk.chat(chat_template_kwargs=OFF, max_tokens=9)
    _, on = talk.chat(chat_template_kwargs=OFF, max_tokens=9, ignore_eos=True)
    _, stopped = talk.chat(chat_template_kwargs=OFF, max_tokens=9, stop_token_ids=[talk.read.tokenizer.encode("one")[0]])
    assert (ended["choices"][0]["finish_reason"], on["choices"][0]["finish_reason"]) == ("stop", "length")
    assert on["usage"]["completion_tokens"] == 9
    assert stopped["usage"]["completion_tokens"] == 1


def test_unknown_fields_are_named_or_refused_under_strict(talk: Talk) -> None:
    status, _, response = talk.post("/v1/chat/completions", {"messages": USER, "max_tokens": 2, "wizardry": 1, "añb": 2})
    assert status == 200
    assert response.headers["x-homestretch-warning"] == "ignored unknown fields: a?b, wizardry"
    with talking(strict=True) as strict:
        status, made = strict.chat(wizardry=1)
        assert (status, made["error"]["param"]) == (400, "wizardry")
        assert strict.chat(max_tokens=2)[0] == 200


def test_a_key_file_closes_the_server(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\ufefffirst-key\n# more\n\nsecond-key\nключ\n", encoding="utf-8")
    with talking(api_key_file=str(file)) as made:
        body = {"messages": USER, "max_tokens": 2}
        for key in ("", "Bearer wrong", "Basic first-key", "Bearer ", "Bearer é"):
            status, answer, _ = made.post("/v1/chat/completions", body, authorization=key.encode("latin-1").decode("latin-1"))
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        for key in ("first-key", "second-key", "ключ".encode().decode("latin-1")):
            assert made.post("/v1/chat/completions", body, authorization=f"Bearer {key}")[0] == 200
        assert made.get("/v1/models")[0] == 401
        assert made.get("/health")[0] == 200


def cancelled(talk: Talk) -> int:
    return talk.core.counters.finished.get("cancelled", 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(talk: Talk, stream: bool) -> None:
    talk.speaker.line = ()
    before = cancelled(talk)
    body = json.dumps({"prompt": "abc", "max_tokens": 2000, "stream": stream, "ignore_eos": True}).encode()
    with socket.create_connection(("127.0.0.1", talk.port), timeout=10) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        if stream:
            assert raw.recv(4096).startswith(b"HTTP/1.1 200")
        else:
            while not talk.core.counters.running:
                time.sleep(0.001)
    deadline = time.monotonic() + 5
    while cancelled(talk) == before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert cancelled(talk) == before + 1
    assert talk.core.counters.running == 0
    assert talk.chat(max_tokens=3)[0] == 200, "the next request works at once"


def test_engine_failures_are_500s_or_an_error_event_and_the_server_lives_on() -> None:
    with talking() as made:
        made.backend.spoiled = range(100, 110)
        body = {"prompt": [5] * 50, "max_tokens": 200, "ignore_eos": True}
        status, answer, _ = made.post("/v1/completions", body)
        assert (status, answer["error"]["type"]) == (500, "server_error")
        assert "spoiled" in answer["error"]["message"]
        chunks = made.stream("/v1/completions", body)
        assert chunks[-1]["error"]["type"] == "server_error"
        assert len(chunks) > 1
        status, answer, _ = made.post("/v1/completions", {"prompt": [5] * 105, "stream": True})
        assert status == 500
        assert made.post("/v1/completions", {"prompt": [5] * 20, "max_tokens": 5})[0] == 200


def test_a_long_prompt_keeps_its_stream_alive_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homestretch.engine.server.app.QUIET_S", 0.05)
    with talking() as made:
        made.backend.gate.clear()
        threading.Timer(0.5, made.backend.gate.set).start()
        status, data, _ = made.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "stream": True})
        events = data.decode().split("\n\n")
        assert status == 200
        assert events[:2] == [": the prompt is being read"] * 2
        assert events[-2:] == ["data: [DONE]", ""]
        made.backend.gate.clear()
        made.backend.spoiled = range(10_000)
        threading.Timer(0.3, made.backend.gate.set).start()
        _, data, _ = made.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "stream": True})
        assert "spoiled" in json.loads(data.decode().split("data: ")[1])["error"]["message"]


def test_metrics_are_prometheus_text(talk: Talk) -> None:
    status, raw = talk.get("/metrics")
    assert status == 200
    names = set()
    for row in raw.decode().splitlines():
        if row.startswith("#"):
            assert row.split()[1] in ("HELP", "TYPE")
        else:
            name, value = row.rsplit(" ", 1)
            float(value)
            names.add(name.split("{")[0])
    assert {"homestretch_reply_tokens_total", "homestretch_accepted_tokens_total", "homestretch_requests_running"} <= names


def test_tokenize_and_detokenize(talk: Talk) -> None:
    _, made, _ = talk.post("/tokenize", {"prompt": "héllo <think>", "return_token_strs": True, "model": "tiny"})
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
    assert made["max_model_len"] == 2048
    _, back, _ = talk.post("/detokenize", {"tokens": made["tokens"]})
    assert back == {"prompt": "héllo <think>"}
    _, rendered, _ = talk.post("/tokenize", {"messages": USER, "chat_template_kwargs": OFF})
    _, reply = talk.chat(max_tokens=1, chat_template_kwargs=OFF)
    assert rendered["count"] == reply["usage"]["prompt_tokens"]


def test_the_next_turn_of_a_chat_reads_only_what_is_new(talk: Talk) -> None:
    """Also when the template strips the reasoning from the turn before."""
    system = {"role": "system", "content": "Answer in one line. " * 60}
    first = [system, {"role": "user", "content": "What is a list? " * 20}]
    talk.says("hm</think>It is a list.", first)
    _, one = talk.chat_of(first)
    said = one["choices"][0]["message"]
    assert said["reasoning_content"] == "hm"
    second = [*first, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "And a set?"}]
    _, two = talk.chat_of(second)
    _, other = talk.chat_of([system, {"role": "user", "content": "Something else"}])
    _, off = talk.chat_of(second, cache=False)

    def cached(made: Any) -> int:
        found: int = made["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert cached(one) == cached(off) == 0
    assert one["usage"]["prompt_tokens"] - cached(two) < 2 * 128
    length = len(talk.read.tokenizer.encode(system["content"]))
    assert length - 128 < cached(other) <= length + 10
    assert off["token_sha"] == two["token_sha"]
    assert two["timings"]["cached_tokens"] == cached(two)


def shape(value: Any) -> Any:
    """The keys and kinds of a JSON value."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def test_streams_have_the_shape_that_the_seam_records(talk: Talk) -> None:
    rows = (Path(__file__).parents[2] / "seam" / "exchanges" / "ours.jsonl").read_text(encoding="utf-8").splitlines()
    recorded = [json.loads(row) for row in rows]
    assert recorded
    talk.says("one two three", **OFF)
    checked = 0
    for exchange in recorded:
        events = [json.loads(event[6:]) for event in exchange["stream"] if event.startswith("data: {")]
        options = {"include_usage": events[-1].get("choices") == [], "continuous_usage_stats": bool(events[0].get("usage"))}
        live = talk.stream("/v1/chat/completions", {"messages": USER, "chat_template_kwargs": OFF, "stream_options": options})
        assert shape(live[0]) == shape(events[0])
        assert shape(live[-1]) == shape(events[-1])
        checked += 1
    assert checked == len(recorded)


def test_what_a_silent_request_gets() -> None:
    """The option of serve, else the model's generation_config.json (temperature 1, top-p 0.95), else nothing is cut."""
    plain = reading().options.defaults
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p) == (1.0, 0.95, 0, 0.0)
    with talking(temperature=0.0, top_p=0.5, max_tokens=7, thinking=False, seed=5) as made:
        defaults = made.read.options.defaults
        assert (defaults.temperature, defaults.top_p, defaults.max_tokens) == (0.0, 0.5, 7)
        made.speaker.line = ()
        _, silent = made.chat()
        _, spoken = made.chat(temperature=0, seed=9, max_tokens=7, chat_template_kwargs=OFF)
        assert silent["usage"]["completion_tokens"] <= 7
        assert silent["token_sha"] == spoken["token_sha"]
        made.says("no thoughts", **OFF)
        assert made.chat()[1]["choices"][0]["message"] == {"role": "assistant", "content": "no thoughts"}
        _, on = made.chat(chat_template_kwargs={"enable_thinking": True}, max_tokens=3)
        assert "reasoning_content" in on["choices"][0]["message"]
