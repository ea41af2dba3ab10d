"""Checks the instrument before a run: the client against `fake`, whose send stamps are known, on this machine, now."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from homestretch.lab.client import Raw, Target, call_json
from homestretch.lab.errors import ServerFailed
from homestretch.lab.exchange import Ask, Body, make_record, read_reply, send_together
from homestretch.lab.exchange import count as count_tokens
from homestretch.lab.fake.behaviour import Behaviour
from homestretch.lab.rates import Timing, timing
from homestretch.lab.records import read_whole, write_whole
from homestretch.lab.tokenizing import TokenCounter, by_route, nothing
from homestretch.lab.types import Record

LIMIT_PCT = 0.5
LIMIT_TTFT_S = 0.005
ATTEMPTS = 3

BEHAVIOURS = {
    "single": Behaviour(decode_tokens_per_s=200.0, prefill_tokens_per_s=10_000.0),
    "drafts": Behaviour(
        decode_tokens_per_s=200.0, tokens_per_event=(1, 2, 3, 4, 5), usage="every event", prefill_tokens_per_s=10_000.0
    ),
    "fast": Behaviour(decode_tokens_per_s=2000.0, prefill_tokens_per_s=100_000.0),
    "streams": Behaviour(decode_tokens_per_s=250.0, prefill_tokens_per_s=10_000.0),
}
REPLIES = {"single": (1, 128), "drafts": (1, 128), "fast": (1, 256), "streams": (8, 128)}


class Check(Record, frozen=True, kw_only=True):
    """One behaviour: what was true by the server's stamps, what the client measured, errors in percent and seconds."""

    behaviour: str
    streams: int
    tokens: int
    true_decode: float
    measured_decode: float
    decode_error_pct: float
    page_decode_error_pct: float
    ttft_error_s: float
    total_error_pct: float
    attempt: int


class Instrument(Record, frozen=True, kw_only=True):
    """`instrument.json`. The errors are the largest of the checks; ok: all within the limits. Earlier attempts are kept."""

    at: str
    ok: bool
    decode_error_pct: float
    ttft_error_s: float
    total_error_pct: float
    limit_pct: float
    limit_ttft_s: float
    checks: list[Check]
    earlier: tuple[Check, ...] = ()


def read(path: Path) -> Instrument | None:
    return read_whole(path, Instrument) if path.exists() else None


def check(say: Callable[[str], None] = lambda text: None) -> Instrument:
    """Measure every behaviour, a disturbed one again; takes about 4 s."""
    from homestretch.lab.records import now

    say("checking the instrument against a server of known speed")
    kept: list[Check] = []
    earlier: list[Check] = []
    with Known(BEHAVIOURS) as known:
        for name, (streams, tokens) in REPLIES.items():
            for attempt in range(1, ATTEMPTS + 1):
                found = known.check(name, streams, tokens, attempt)
                if good(found) or attempt == ATTEMPTS:
                    kept.append(found)
                    break
                earlier.append(found)
    worst = Instrument(
        at=now(),
        ok=all(good(one) for one in kept),
        decode_error_pct=max(abs(one.decode_error_pct) for one in kept),
        ttft_error_s=max(abs(one.ttft_error_s) for one in kept),
        total_error_pct=max(abs(one.total_error_pct) for one in kept),
        limit_pct=LIMIT_PCT,
        limit_ttft_s=LIMIT_TTFT_S,
        checks=kept,
        earlier=tuple(earlier),
    )
    verdict = "fit" if worst.ok else "NOT within its limits on this machine now"
    say(f"instrument {verdict}: decode ±{worst.decode_error_pct:.3f} %, first token ±{1000 * worst.ttft_error_s:.2f} ms")
    return worst


def write(path: Path, instrument: Instrument) -> None:
    write_whole(path, instrument)


def good(found: Check) -> bool:
    worst = max(abs(found.decode_error_pct), abs(found.page_decode_error_pct), abs(found.total_error_pct))
    return worst < LIMIT_PCT and abs(found.ttft_error_s) < LIMIT_TTFT_S


class Known:
    """`fake` in a process of its own; it ends when we do."""

    def __init__(self, behaviours: dict[str, Behaviour]) -> None:
        self._behaviours = behaviours

    def __enter__(self) -> Known:
        command = [sys.executable, "-m", "homestretch.lab.fake", msgspec.json.encode(self._behaviours).decode()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        port = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not port.isdigit():
            raise ServerFailed("the server of known speed did not start; the instrument cannot be checked")
        self.target = Target(url=f"http://127.0.0.1:{port}/v1")
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def __exit__(self, *exc: object) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def check(self, name: str, streams: int, tokens: int, attempt: int = 1, body: Body | None = None, count: bool = False) -> Check:
        """One round of `streams` equal requests, each joined with the server's own stamps; count: by its /tokenize too."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        prompts = [f"{number} of {streams}, attempt {attempt}: say something " + "quiet " * 200 for number in range(streams)]
        bodies: list[Body] = [
            {
                "model": name,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": tokens,
                "stream": True,
                "stream_options": options,
            }
            | (body or {})
            for text in prompts
        ]
        began, raws = send_together(self.target, bodies, [""] * streams, 30.0, 120.0)
        truths = call_json(self.target, "//fake/truth")[-streams:]
        return compare(name, bodies, raws, truths, attempt, began, by_route(self.target, name) if count else None)


def compare(
    name: str,
    bodies: Sequence[Body],
    raws: Sequence[Raw],
    truths: Sequence[dict[str, Any]],
    attempt: int,
    began: tuple[float, str],
    tokens_of: TokenCounter | None = None,
) -> Check:
    """The client's figures beside those from the server's stamps; several streams by the worst of each and the round's total."""
    seen, true, first_errors, ends, true_ends, starts, true_starts = [], [], [], [], [], [], []
    for number, (body, raw) in enumerate(zip(bodies, raws, strict=True)):
        reply = read_reply(raw, streamed=True)
        count_tokens(reply, tokens_of or nothing())
        record = make_record(raw, reply, body, Ask(body=body), f"check-{number}", began)
        mine = timing(record)
        truth = next((one for one in truths if one["prompt_sha256"] == record.prompt_sha256), None)
        if mine is None or truth is None or record.error:
            raise ServerFailed(f"the instrument check got no usable reply from {name}: {record.error or 'no counts'}")
        known = true_timing(truth)
        seen.append(mine)
        true.append(known)
        first_errors.append(mine.t_first - (known.t_first - truth["received"]))
        ends.append(raw.t0 + mine.t_last)
        starts.append(raw.t0)
        true_ends.append(known.t_last)
        true_starts.append(truth["received"])
    tokens = sum(one.tokens for one in seen)
    total, true_total = tokens / (max(ends) - min(starts)), sum(one.tokens for one in true) / (max(true_ends) - min(true_starts))
    truer = [
        _pct((one.tokens - one.k1) / one.decode_s, (known.tokens - known.k1) / known.decode_s)
        for one, known in zip(seen, true, strict=True)
    ]
    page = [
        _pct((one.tokens - 1) / one.decode_s, (known.tokens - 1) / known.decode_s) for one, known in zip(seen, true, strict=True)
    ]
    return Check(
        behaviour=name,
        streams=len(seen),
        tokens=tokens,
        true_decode=(true[0].tokens - true[0].k1) / true[0].decode_s,
        measured_decode=(seen[0].tokens - seen[0].k1) / seen[0].decode_s,
        decode_error_pct=max(truer, key=abs),
        page_decode_error_pct=max(page, key=abs),
        ttft_error_s=max(first_errors, key=abs),
        total_error_pct=_pct(total, true_total),
        attempt=attempt,
    )


def true_timing(truth: dict[str, Any]) -> Timing:
    """Timing by the server's stamps, on its own clock (the same monotonic clock on one machine)."""
    carrying = [event for event in truth["events"] if event[2]]
    counting = [event for event in carrying if event[1] != "finish"]
    return Timing(
        tokens=truth["completion_tokens"],
        k1=counting[0][2],
        k1_known=True,
        t_first=counting[0][0],
        t_last=carrying[-1][0],
        events=len(counting),
    )


def _pct(measured: float, true: float) -> float:
    return 100.0 * (measured / true - 1.0)
