"""Parsing of streams: events cut anywhere, what counts, where tokens come from, and recorded forms of other servers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homestretch.lab.stream import Reply, parse_stream, settle, split_events


def chunk(delta: dict[str, object], **more: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more}).encode() + b"\n\n"


def finish(reason: str = "length", **more: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def at(*pieces: bytes) -> list[tuple[float, bytes]]:
    return [(float(number), piece) for number, piece in enumerate(pieces, 1)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_cuts_anywhere_and_any_line_end_give_the_same_events(cuts: list[int], end: bytes) -> None:
    whole = b"".join(
        [chunk({"content": "grüße"}), b": keep-alive\n\n", chunk({"content": " 🙂"}), b"event: x\ndata: a\ndata: b\n\n", DONE]
    )
    whole = whole.replace(b"\n", end)
    pieces, rest = [], whole
    for size in cuts:
        pieces.append(rest[:size])
        rest = rest[size:]
    pieces.append(rest)
    found = [data for _, data in split_events(at(*pieces))]
    assert found == [data for _, data in split_events(at(whole))]
    assert found[1] is None
    assert found[3] == "a\nb"


def test_an_event_has_the_stamp_of_the_piece_that_completed_it() -> None:
    data = chunk({"content": "a"})
    events = split_events(at(data[:-1], data[-1:] + data, b""))
    assert [stamp for stamp, _ in events] == [2.0, 2.0]


def test_role_usage_comments_and_empty_content_never_count() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    reply = parse_stream(
        at(
            chunk({"role": "assistant", "content": ""}),
            b": ping\n\n",
            chunk({"content": "a"}),
            chunk({"content": "b"}),
            finish("stop"),
            b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n",
            DONE,
        )
    )
    assert [event.kind for event in reply.events] == ["role", "comment", "content", "content", "finish", "usage", "done"]
    assert [event.at for event in reply.counting()] == [3.0, 4.0]
    assert (reply.k1, reply.k1_source, reply.usage_where) == (1, "one token an event", "own chunk")


def test_reasoning_text_and_tool_arguments_count() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"x": 1}'}}
    reply = parse_stream(
        at(
            chunk({"reasoning": "hm"}),
            chunk({"reasoning_content": "so"}),
            chunk({"tool_calls": [call]}),
            chunk({"tool_calls": [more]}),
            DONE,
        )
    )
    assert [event.kind for event in reply.events] == ["reasoning", "reasoning", "other", "tool", "done"]
    assert reply.reasoning == "hmso"
    assert reply.tool_calls == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]


def usage_so_far(count: int) -> dict[str, object]:
    return {"usage": {"prompt_tokens": 9, "completion_tokens": count}}


def test_usage_on_every_event_gives_k1_shares_and_the_textless_end() -> None:
    reply = parse_stream(
        at(
            chunk({"role": "assistant"}, **usage_so_far(0)),
            chunk({"content": "abc"}, **usage_so_far(3)),
            chunk({"content": "de"}, **usage_so_far(5)),
            finish("stop", **usage_so_far(6)),
            DONE,
        )
    )
    assert [event.tokens for event in reply.events] == [None, 3, 2, 1, None]
    assert (reply.k1, reply.k1_source, reply.usage_where) == (3, "usage", "every event")


def test_token_ids_and_timings_give_shares() -> None:
    ids = parse_stream(
        at(
            b"data: " + json.dumps({"choices": [{"delta": {"content": "ab"}, "token_ids": [4, 5]}]}).encode() + b"\n\n",
            b"data: " + json.dumps({"choices": [{"delta": {"content": "c"}, "token_ids": [6]}]}).encode() + b"\n\n",
            finish("stop", usage={"completion_tokens": 4}),
            DONE,
        )
    )
    assert (ids.k1, ids.k1_source, [event.tokens for event in ids.events]) == (2, "ids", [2, 1, 1, None])
    timings = parse_stream(
        at(
            chunk({"content": "ab"}, timings={"predicted_n": 2}),
            chunk({"content": "c"}, timings={"predicted_n": 3}),
            finish(),
            DONE,
        )
    )
    assert (timings.k1, timings.k1_source, [event.tokens for event in timings.events]) == (2, "timings", [2, 1, None, None])


def reply_of(*texts: str, tokens: int, reason: str = "stop") -> Reply:
    return parse_stream(
        at(*[chunk({"content": text}) for text in texts], finish(reason, usage={"completion_tokens": tokens}), DONE)
    )


def test_a_tokenizer_tells_k1_and_the_textless_end() -> None:
    reply = reply_of("a b", " c", " d e", tokens=6)
    settle(reply, text_tokens=5, first_tokens=2)
    assert (reply.k1, reply.k1_source) == (2, "tokenizer")
    assert next(event for event in reply.events if event.kind == "finish").tokens == 1


def test_without_any_count_k1_is_assumed_and_says_so() -> None:
    reply = reply_of("a b", " c", tokens=9, reason="length")
    settle(reply, None, None)
    assert (reply.k1, reply.k1_source) == (1, "assumed")


@pytest.mark.parametrize("noise", [b"data: {broken\n\n", b"data: 17\n\n", b"data: []\n\n", b"retry: 5\n\n", b"\n\n"])
def test_noise_is_kept_apart(noise: bytes) -> None:
    reply = parse_stream(
        at(chunk({"content": "a"}), noise, chunk({"content": "b"}), finish("stop", usage={"completion_tokens": 2}), DONE)
    )
    assert reply.text == "ab"
    assert len(reply.counting()) == 2


def test_an_error_in_mid_stream_is_an_error() -> None:
    reply = parse_stream(at(chunk({"content": "a"}), b'data: {"error": {"message": "out of memory"}}\n\n'))
    assert "out of memory" in reply.error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "message",
                    "content",
                    "text",
                    "role",
                    "reasoning",
                    "tool_calls",
                    "function",
                    "arguments",
                    "name",
                    "index",
                    "id",
                    "usage",
                    "prompt_tokens",
                    "completion_tokens",
                    "prompt_tokens_details",
                    "cached_tokens",
                    "finish_reason",
                    "timings",
                    "predicted_n",
                    "token_ids",
                    "error",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.lists(JSON, max_size=6))
def test_no_server_can_make_the_parser_fail(chunks: list[object]) -> None:
    reply = parse_stream(at(*[b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]))
    assert len(reply.events) == len(chunks)
    settle(reply, None, None)
