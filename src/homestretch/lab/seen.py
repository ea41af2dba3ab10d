"""What the raw files of a speed part make doubtful, found the same way for each part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from homestretch.lab import doubts as doubt
from homestretch.lab.guard import LIMIT_PCT
from homestretch.lab.rates import timing
from homestretch.lab.types import Contract, Number, PartResult, ReplyRecord, RequestRecord, Sourced

if TYPE_CHECKING:
    from homestretch.lab.records import RunFolder

Doubts = dict[str, list[str]]


def setting(contract: Contract, name: str, default: object = None) -> object:
    return contract.settings.get(name, Sourced(value=default, source="")).value


def of_requests(run: RunFolder, part: str, records: Sequence[RequestRecord]) -> Doubts:
    """Doubts that the counting requests of a part raise: counts, caches, thinking, load, and what the contract does not know."""
    contract = run.contract()
    found: Doubts = {}

    def add(name: str, text: str) -> None:
        found.setdefault(name, []).append(text)

    if any(record.usage_where == "tokenizer" for record in records):
        add("no_usage", f"{part}: the server sent no usage; tokens were counted by {setting(contract, 'prompt.tokenizer')}")
    if any(record.usage is None or record.usage.completion_tokens is None for record in records):
        add("no_usage", f"{part}: nothing counted the tokens of some replies; they give no figure")
    if any(record.k1_source == "assumed" for record in records):
        widest = max((t.most_k1 for record in records if (t := timing(record)) is not None and not t.k1_known), default=1)
        add("first_event_unknown", f"{part}: the first event is taken as one token; it can have carried up to {widest}")
    prefix = int(str(setting(contract, "cache.template_prefix_tokens", 0) or 0))
    cached = [record.usage.cached_tokens or 0 for record in records if record.usage]
    over = [count for count in cached if count > prefix]
    if over:
        add("cached_tokens", f"{part}: {len(over)} of {len(records)} requests had up to {max(over)} cached prompt tokens")
    elif any(cached):
        add("template_prefix", f"{part}: {prefix} tokens of the chat template came from the cache in each request")
    outcome = str(setting(contract, "cache.check", ""))
    if outcome.startswith("cached"):
        add("cached_tokens", f"cache check: {outcome}")
    elif outcome.startswith("unknown"):
        add("cache_unknown", f"cache check: {outcome}")
    replies = run.replies(part)
    leaked = [record for record in records if thought(record, replies.get(record.id))]
    if leaked and setting(contract, "thinking.field"):
        add("thinking_leaked", f"{part}: reasoning came back in {len(leaked)} of {len(records)} requests that switch it off")
    if setting(contract, "prompt.tokenizer") == "usage" and part in ("prefill", "ctx"):
        add("tokenizer_guessed", f"{part}: prompt lengths were found through usage")
    if setting(contract, "server.guarded") is False:
        add("server_unguarded", f"foreign load beside the server was not judged; {contract.settings['server.guarded'].source}")
    unknown = [name for name in ("server.window", "server.slots", "server.version") if setting(contract, name) in (None, "")]
    if not any(name.startswith("sampling.") for name in contract.settings):
        unknown.append("sampling")
    if unknown:
        add("settings_unknown", f"not known: {', '.join(unknown)}")
    if setting(contract, "guard.allow_load"):
        busiest = _load_over_limit(run, part, records)
        if busiest:
            add("disturbed", f"{part}: {busiest}")
    return found


def thought(record: RequestRecord, reply: ReplyRecord | None) -> bool:
    """Whether reasoning came back, as its own field or inside the text."""
    return any(event[1] == "reasoning" for event in record.events) or (reply is not None and "<think>" in reply.text)


def _load_over_limit(run: RunFolder, part: str, records: Sequence[RequestRecord]) -> str:
    """The heaviest foreign load over the limit in any sample of the part's steps, in words; "" when none was."""
    samples = [sample for sample in run.guard_samples() if sample.step.split("/")[0] == part]
    worst = max((load for sample in samples for load in sample.foreign), key=lambda load: load.cpu_pct, default=None)
    if worst is None or worst.cpu_pct <= LIMIT_PCT:
        return ""
    return f"{worst.name} used up to {worst.cpu_pct:.0f} % of one core while steps ran"


def state(run: RunFolder, part: str, plan: Sequence[str], measured: str) -> PartResult:
    """Done, or why not: from the last discarded attempt of the first step that is missing."""
    done = run.steps_done(part)
    missing = [step for step in plan if step not in done]
    summary = run.step_summary(part)
    if not missing:
        return PartResult(state="done", measured=measured, guard=summary)
    records = run.requests(part)
    tried = records[-1].step if records and records[-1].discarded else missing[0]
    reasons = [record.discarded for record in records if record.step == tried and record.discarded]
    if not reasons:
        text = (
            f"step {missing[0]} and {len(missing) - 1} more were not run" if len(missing) > 1 else f"step {missing[0]} was not run"
        )
        return PartResult(state="missing", measured=measured, reason=text, guard=summary)
    failed = reasons[-1].startswith("error")
    return PartResult(
        state="invalid" if failed else "undecided", measured=measured, reason=f"step {tried}: {reasons[-1]}", guard=summary
    )


def merge(*many: Doubts) -> Doubts:
    found: Doubts = {}
    for doubts in many:
        for name, texts in doubts.items():
            found.setdefault(name, [])
            found[name] += [text for text in texts if text not in found[name]]
    return found


def refuse_spreads(numbers: dict[str, Number], found: Doubts) -> None:
    """Puts `spread_over_limit` on each rate whose runs differ by more than the limit, and says which."""
    for name, number in numbers.items():
        if (
            number.spread_pct is not None
            and number.spread_pct > doubt.SPREAD_LIMIT_PCT
            and "spread_over_limit" not in number.doubts
        ):
            numbers[name] = msgspec.structs.replace(number, doubts=sorted([*number.doubts, "spread_over_limit"]))
            text = (
                f"{name}: {number.n} values spread by {number.spread_pct:.1f} % against the limit of {doubt.SPREAD_LIMIT_PCT:.0f} %"
            )
            found.setdefault("spread_over_limit", []).append(text)


def short(runs: int, tokens: int) -> bool:
    return runs < 2 or tokens < doubt.SHORT_RUN_TOKENS


def date(records: Sequence[RequestRecord]) -> str:
    """The day the part was measured."""
    return records[0].at[:10] if records else ""
