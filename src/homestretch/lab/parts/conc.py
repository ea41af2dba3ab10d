"""Requests at once: what the server gives in all, and what each request gets, at 1, 2, 4, 8 together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from homestretch.lab import rates, seen, stats
from homestretch.lab.context import Step
from homestretch.lab.exchange import Ask, Body, Outcome
from homestretch.lab.parts import Example, NumberSpec, Part, Scored
from homestretch.lab.types import Contract, Number, RequestRecord, Sourced

if TYPE_CHECKING:
    from homestretch.lab.context import Context
    from homestretch.lab.options import Options
    from homestretch.lab.records import RunFolder

SOURCE = "requests-conc.jsonl"
EARLY = "a reply ended before its limit"


class Conc(Part):
    name = "conc"
    group = "speed"
    asks = "What does the server give when several ask at once, and what does each get?"
    numbers = (
        NumberSpec(name="conc.LEVEL.total_tokens_per_s", unit="tok/s", digits=1, meaning="all tokens / (last event - first send)"),
        NumberSpec(
            name="conc.LEVEL.request_tokens_per_s",
            unit="tok/s",
            digits=1,
            meaning="N/(t_last - t0), mean in a round, median of rounds",
        ),
    )

    def settings(self, options: Options) -> dict[str, Sourced]:
        return {
            "levels": Sourced(value=list(options.conc_levels), source=options.source("conc_levels")),
            "rounds": Sourced(value=options.conc_rounds, source=options.source("conc_rounds")),
            "max_tokens": Sourced(value=options.conc_max_tokens, source=options.source("conc_max_tokens")),
            "prompt": Sourced(value=options.conc_prompt, source=options.source("conc_prompt")),
        }

    def plan(self, contract: Contract) -> tuple[str, ...]:
        levels, rounds = contract.settings["conc.levels"].value, contract.settings["conc.rounds"].value
        return tuple(f"{level}-{turn}" for level in levels for turn in range(1, rounds + 1))

    def run(self, context: Context) -> None:
        limit, prompt = int(context.setting("max_tokens")), context.setting("prompt")
        extra: dict[str, Any] = {"ignore_eos": True} if context.setting("probe.ignore_eos") is True else {}

        def body() -> Body:
            messages = context.chat(context.prompts[prompt])
            return context.body(messages=messages, max_tokens=limit, **extra)

        def whole(outcomes: Sequence[Outcome]) -> str:
            short = [outcome for outcome in outcomes if ended_early(outcome.record, limit)]
            return f"{EARLY}: {len(short)} of {len(outcomes)}" if short else ""

        for level in context.setting("levels"):
            for turn in range(1, context.setting("rounds") + 1):
                asks = tuple(
                    Ask(body=body, prompt_id=prompt, detail={"level": level, "round": turn, "slot": slot}) for slot in range(level)
                )
                context.step(Step(id=f"{level}-{turn}", asks=asks, accept=whole, keep_last=True))

    def score(self, run: RunFolder) -> Scored:
        contract = run.contract()
        kept = run.kept("conc")
        limit, slots = contract.settings["conc.max_tokens"].value, seen.setting(contract, "server.slots")
        found = seen.of_requests(run, "conc", kept)
        if seen.short(contract.settings["conc.rounds"].value, limit):
            found.setdefault("short_run", []).append("conc: replies under 256 tokens, or a single round")
        numbers: dict[str, Number] = {}
        detail: dict[str, object] = {}
        for level in contract.settings["conc.levels"].value:
            mine = [record for record in kept if record.detail.get("level") == level]
            doubts = {
                name
                for name in found
                if name not in ("first_event_unknown", "queued", "ended_early", "few_tokens", "template_prefix")
            }
            early = [record for record in mine if ended_early(record, limit)]
            if early:
                doubts.add("ended_early")
                found.setdefault("ended_early", []).append(
                    f"conc at {level}: {len(early)} of {len(mine)} replies ended before {limit} tokens"
                )
            if isinstance(slots, int) and level > slots:
                doubts.add("queued")
                found.setdefault("queued", []).append(f"conc at {level}: the server has {slots} slots")
            rounds = sorted({record.step for record in mine})
            totals = [total([record for record in mine if record.step == step]) for step in rounds]
            each = [per_request([record for record in mine if record.step == step]) for step in rounds]
            numbers[f"conc.{level}.total_tokens_per_s"] = rates.number(totals, "tok/s", SOURCE, doubts=doubts)
            numbers[f"conc.{level}.request_tokens_per_s"] = rates.number(each, "tok/s", SOURCE, doubts=doubts)
            starts = [record.offset_s for record in mine]
            detail[f"{level}.start_spread_ms"] = round(1000 * (max(starts) - min(starts)), 2) if starts else None
        seen.refuse_spreads(numbers, found)
        part = seen.state(run, "conc", self.plan(contract), seen.date(kept))
        part = msgspec.structs.replace(part, detail=detail)
        return Scored(part=part, numbers=numbers, doubts=found)

    def example(self) -> Example:
        return Example(
            options={"conc_levels": (1, 2), "conc_rounds": 1, "conc_max_tokens": 96, "parts": ("conc",)},
            numbers={"conc.1.total_tokens_per_s": None, "conc.2.request_tokens_per_s": None},
        )


def ended_early(record: RequestRecord, limit: int) -> bool:
    tokens = record.usage.completion_tokens if record.usage else None
    return record.finish_reason not in (None, "length") and (tokens is None or tokens < limit)


def total(records: Sequence[RequestRecord]) -> float | None:
    """All tokens of a round over (last event - first send)."""
    timings = [rates.timing(record) for record in records]
    if not timings or any(t is None for t in timings):
        return None
    ends = [record.offset_s + t.t_last for record, t in zip(records, timings, strict=True) if t is not None]
    span = max(ends) - min(record.offset_s for record in records)
    return sum(t.tokens for t in timings if t is not None) / span if span > 0 else None


def per_request(records: Sequence[RequestRecord]) -> float | None:
    """Mean over a round of tokens / (t_last - t0)."""
    values = [t.tokens / t.t_last for record in records if (t := rates.timing(record)) is not None and t.t_last > 0]
    return stats.mean(values) if values and len(values) == len(records) else None


PART = Conc()
