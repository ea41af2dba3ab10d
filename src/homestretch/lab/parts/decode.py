"""Decode: how fast a reply is written, for a code and a prose prompt; also words, characters, spreads and drafts."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from homestretch.lab import prompts, rates, seen
from homestretch.lab.context import Step
from homestretch.lab.doubts import SPREAD_LIMIT_PCT
from homestretch.lab.errors import WrongUse
from homestretch.lab.exchange import Ask, Body
from homestretch.lab.parts import Example, NumberSpec, Part, Scored
from homestretch.lab.stats import acceptance_pct, mean_accepted_length, median, spread_pct
from homestretch.lab.types import Contract, Number, PartResult, ReplyRecord, RequestRecord, Sourced

if TYPE_CHECKING:
    from homestretch.lab.context import Context
    from homestretch.lab.options import Options
    from homestretch.lab.records import RunFolder

SOURCE = "requests-decode.jsonl"


def runs_of(prompt: str, runs: int) -> tuple[str, ...]:
    return tuple(f"{prompt}-{run}" for run in range(1, runs + 1))


class Decode(Part):
    name = "decode"
    group = "speed"
    asks = "How fast does one reply come, once it has begun?"
    numbers = (
        NumberSpec(name="decode.tokens_per_s", unit="tok/s", digits=1, meaning="mean of the prompts' medians: the headline"),
        NumberSpec(
            name="decode.PROMPT.tokens_per_s", unit="tok/s", digits=1, meaning="median over runs of (N - 1)/(t_last - t_first)"
        ),
        NumberSpec(
            name="decode.PROMPT.k1_tokens_per_s",
            unit="tok/s",
            digits=1,
            meaning="the same with N - k1, k1 being the tokens of the first event, where the server lets it be known",
        ),
        NumberSpec(name="decode.words_per_s", unit="words/s", digits=1, meaning="words of a reply over its decode time"),
        NumberSpec(name="decode.characters_per_s", unit="chars/s", digits=1, meaning="characters of a reply over its decode time"),
        NumberSpec(name="decode.words_500_s", unit="s", digits=1, meaning="time for 500 words"),
        NumberSpec(name="decode.PROMPT.spread_pct", unit="%", digits=1, meaning="coefficient of variation of a prompt's runs"),
        NumberSpec(name="decode.spread_pct", unit="%", digits=1, meaning="the largest of the prompts' spreads"),
        NumberSpec(name="decode.window1.tokens_per_s", unit="tok/s", digits=1, meaning="decode over the first 256 tokens"),
        NumberSpec(name="drafts.acceptance_pct", unit="%", digits=1, meaning="accepted of drafted tokens over the part's runs"),
        NumberSpec(name="drafts.mean_accepted_length", unit="tokens", digits=1, meaning="N/(N - accepted) over the same runs"),
    )

    def settings(self, options: Options) -> dict[str, Sourced]:
        known, _ = prompts.read(options.prompts)
        missing = [name for name in options.prompt_ids if name not in known]
        if missing:
            raise WrongUse(f"--prompt-ids {','.join(missing)}: not in the prompts file; it holds: {', '.join(known)}")
        return {
            "prompt_ids": Sourced(value=list(options.prompt_ids), source=options.source("prompt_ids")),
            "runs": Sourced(value=options.runs, source=options.source("runs")),
            "max_tokens": Sourced(value=options.max_tokens, source=options.source("max_tokens")),
            "warmups": Sourced(value=options.warmups, source=options.source("warmups")),
        }

    def plan(self, contract: Contract) -> tuple[str, ...]:
        runs, ids = contract.settings["decode.runs"].value, contract.settings["decode.prompt_ids"].value
        return tuple(step for prompt in ids for step in runs_of(prompt, runs))

    def run(self, context: Context) -> None:
        limit = int(context.setting("max_tokens"))

        def ask(prompt: str, run: int) -> Ask:
            def body() -> Body:
                return context.body(messages=context.chat(context.prompts[prompt]), max_tokens=limit)

            return Ask(body=body, prompt_id=prompt, detail={"run": run})

        ids = context.setting("prompt_ids")
        for warmup in range(1, context.setting("warmups") + 1):
            context.step(Step(id=f"warmup-{warmup}", asks=(ask(ids[0], 0),), guarded=False))
        for prompt in ids:
            for run, step in enumerate(runs_of(prompt, context.setting("runs")), 1):
                context.step(Step(id=step, asks=(ask(prompt, run),)))

    def score(self, run: RunFolder) -> Scored:
        contract = run.contract()
        kept = [record for record in run.kept("decode") if not record.step.startswith("warmup")]
        replies = run.replies("decode")
        ids = contract.settings["decode.prompt_ids"].value
        found = seen.of_requests(run, "decode", kept)
        numbers: dict[str, Number] = {}
        notes: list[str] = []
        common = {name for name in found if name not in ("template_prefix", "tokenizer_guessed", "cached_tokens", "cache_unknown")}
        few = [record.id for record in kept if (t := rates.timing(record)) is not None and t.few()]
        if few:
            found.setdefault("few_tokens", []).append(f"decode: {len(few)} of {len(kept)} replies had under 64 tokens or 8 events")
            common.add("few_tokens")
        if seen.short(contract.settings["decode.runs"].value, contract.settings["decode.max_tokens"].value):
            found.setdefault("short_run", []).append("decode: replies under 256 tokens, or a single run")
            common.add("short_run")
        medians, spreads, wide = [], [], False
        for prompt in ids:
            records = [record for record in kept if record.prompt_id == prompt]
            doubts = set(common) - {"first_event_unknown"}
            values = [t.decode() for record in records if (t := rates.timing(record)) is not None]
            spread = spread_pct([value for value in values if value is not None])
            if spread is not None and spread > SPREAD_LIMIT_PCT:
                wide = True
                doubts.add("spread_over_limit")
                cause = draft_cause(prompt, records)
                found.setdefault("spread_over_limit", []).append(spread_text(prompt, values, spread) + cause)
                notes += [cause.strip()] if cause else []
            numbers |= prompt_numbers(prompt, records, values, doubts, found)
            if values and (value := numbers[f"decode.{prompt}.tokens_per_s"].value) is not None:
                medians.append(float(value))
            if spread is not None:
                spreads.append(spread)
        common |= {"spread_over_limit"} if wide else set()
        common -= {"first_event_unknown"}
        whole = len(medians) == len(ids)
        headline = statistics.fmean(medians) if medians and whole else None
        widest = max(spreads, default=None)
        numbers["decode.tokens_per_s"] = Number(
            value=headline, unit="tok/s", n=len(kept), spread_pct=widest, doubts=sorted(common), source=SOURCE
        )
        numbers["decode.spread_pct"] = Number(value=widest, unit="%", n=len(kept), doubts=[], source=SOURCE)
        numbers |= text_numbers(ids, kept, replies, common)
        numbers |= draft_numbers(kept)
        measured = seen.date(kept)
        part = seen.state(run, "decode", self.plan(contract), measured)
        return Scored(part=_noted(part, notes), numbers=numbers, doubts=found)

    def example(self) -> Example:
        return Example(
            options={"runs": 2, "max_tokens": 96, "parts": ("decode",)},
            numbers={"decode.tokens_per_s": None, "decode.code.tokens_per_s": None, "decode.spread_pct": None},
        )


def _noted(part: PartResult, notes: list[str]) -> PartResult:
    return msgspec.structs.replace(part, notes=[*part.notes, *notes])


def spread_text(prompt: str, values: list[float | None], spread: float) -> str:
    shown = " and ".join(f"{value:.1f}" for value in values if value is not None)
    return (
        f"decode, {prompt} prompt: runs at {shown} tok/s, a spread of {spread:.1f} % against the limit of {SPREAD_LIMIT_PCT:.0f} %"
    )


def draft_cause(prompt: str, records: list[RequestRecord]) -> str:
    """Names the run whose acceptance stands out, with every run's figures; "" where drafts do not explain a spread."""
    counts = [record.extras.get("drafts") for record in records]
    told = [
        (record, drafts)
        for record, drafts in zip(records, counts, strict=True)
        if isinstance(drafts, dict) and drafts.get("drafted")
    ]
    if len(told) < 2 or len(told) < len(records):
        return ""
    shares = [100.0 * drafts["accepted"] / drafts["drafted"] for _, drafts in told]
    if max(shares) - min(shares) < 10.0:
        return ""
    fastest = max(told, key=lambda pair: (t.decode() or 0.0) if (t := rates.timing(pair[0])) is not None else 0.0)
    if shares[told.index(fastest)] != max(shares):
        return ""
    listed = " and ".join(
        f"{drafts['accepted']} of {drafts['drafted']} ({share:.1f} %)" for (_, drafts), share in zip(told, shares, strict=True)
    )
    which = fastest[0].detail.get("run")
    return f"; draft tokens accepted: {listed}; in run {which} nearly all stood, as when a reply copies its prompt"


def prompt_numbers(
    prompt: str, records: list[RequestRecord], values: list[float | None], doubts: set[str], found: seen.Doubts
) -> dict[str, Number]:
    timings = [t for record in records if (t := rates.timing(record)) is not None]
    assumed = [t for t in timings if not t.k1_known]
    low = high = None
    if assumed:
        bounds = [
            (low_of, high_of) for t in timings if (low_of := t.decode_low()) is not None and (high_of := t.decode()) is not None
        ]
        low, high = (median([b[0] for b in bounds]), median([b[1] for b in bounds])) if bounds else (None, None)
    truer = doubts | ({"first_event_unknown"} if assumed else set())
    return {
        f"decode.{prompt}.tokens_per_s": rates.number(values, "tok/s", SOURCE, doubts=doubts),
        f"decode.{prompt}.k1_tokens_per_s": rates.number(
            [] if assumed else [t.decode_k1() for t in timings], "tok/s", SOURCE, doubts=truer, low=low, high=high
        ),
        f"decode.{prompt}.spread_pct": Number(
            value=spread_pct([value for value in values if value is not None]), unit="%", n=len(values), source=SOURCE
        ),
    }


def text_numbers(ids: list[str], kept: list[RequestRecord], replies: dict[str, ReplyRecord], doubts: set[str]) -> dict[str, Number]:
    """Words, characters and the first window: median a prompt, mean of the prompts."""

    def mean_of_medians(rows: dict[str, list[float]]) -> float | None:
        return statistics.fmean(median(row) for row in rows.values()) if rows and all(rows.values()) else None

    words: dict[str, list[float]] = {prompt: [] for prompt in ids}
    characters: dict[str, list[float]] = {prompt: [] for prompt in ids}
    first: dict[str, list[float]] = {prompt: [] for prompt in ids}
    for record in kept:
        t, reply = rates.timing(record), replies.get(record.id)
        if t is None or reply is None or t.decode_s <= 0 or record.prompt_id not in words:
            continue
        text = reply.reasoning + reply.text
        words[record.prompt_id].append(len(text.split()) / t.decode_s)
        characters[record.prompt_id].append(len(text) / t.decode_s)
        if (window := rates.window1(record)) is not None:
            first[record.prompt_id].append(window)
    rate = mean_of_medians(words)
    source = "requests-decode.jsonl, replies-decode.jsonl"
    listed, count = sorted(doubts), sum(len(row) for row in words.values())
    return {
        "decode.words_per_s": Number(value=rate, unit="words/s", n=count, doubts=listed, source=source),
        "decode.characters_per_s": Number(value=mean_of_medians(characters), unit="chars/s", n=count, doubts=listed, source=source),
        "decode.words_500_s": Number(value=500.0 / rate if rate else None, unit="s", n=count, doubts=listed, source=source),
        "decode.window1.tokens_per_s": Number(
            value=mean_of_medians(first), unit="tok/s", n=sum(len(row) for row in first.values()), doubts=listed, source=SOURCE
        ),
    }


def draft_numbers(kept: list[RequestRecord]) -> dict[str, Number]:
    """Acceptance and mean accepted length over the runs, when every run tells; {} otherwise."""
    told = [record for record in kept if isinstance(record.extras.get("drafts"), dict)]
    if not told or len(told) < len(kept):
        return {}
    accepted = sum(int(record.extras["drafts"]["accepted"]) for record in told)
    drafted = sum(int(record.extras["drafts"]["drafted"]) for record in told)
    if not drafted:
        return {}
    tokens = sum(record.usage.completion_tokens or 0 for record in told if record.usage)
    source = f"{SOURCE} ({told[0].extras['drafts'].get('source', '')})"
    return {
        "drafts.acceptance_pct": Number(value=acceptance_pct(accepted, drafted), unit="%", n=drafted, source=source),
        "drafts.mean_accepted_length": Number(value=mean_accepted_length(tokens, accepted), unit="tokens", n=tokens, source=source),
    }


PART = Decode()
