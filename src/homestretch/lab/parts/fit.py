"""Fit: how much context the machine's memory holds; the server starts anew for each window, reads 95 % of it and must answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homestretch.lab import fitting, rates, seen
from homestretch.lab.errors import WrongUse
from homestretch.lab.fitting import Try, windows
from homestretch.lab.ladder import ATTEMPTS, REPLY_TOKENS, Ladder, disturbed, spared
from homestretch.lab.memory import GIB, MIB
from homestretch.lab.parts import Example, NumberSpec, Part, Scored
from homestretch.lab.seen import setting
from homestretch.lab.types import Contract, Number, PartResult, Sourced

if TYPE_CHECKING:
    from homestretch.lab.context import Context
    from homestretch.lab.options import Options
    from homestretch.lab.records import RunFolder


class Fit(Part):
    name = "fit"
    group = "other"
    asks = "How much context fits, and what does it take?"
    numbers = (
        NumberSpec(name="fit.largest_tokens", unit="tokens", digits=0, meaning="largest window that loaded and answered"),
        NumberSpec(name="fit.SIZE.peak_gib", unit="GiB", digits=2, meaning="rise of MemTotal - MemAvailable over the idle value"),
        NumberSpec(name="fit.SIZE.tree_gib", unit="GiB", digits=2, meaning="the server's own memory (PSS of its processes)"),
        NumberSpec(name="fit.SIZE.mapped_gib", unit="GiB", digits=2, meaning="mapped files in the server's own memory"),
        NumberSpec(name="fit.SIZE.gpu_gib", unit="GiB", digits=2, meaning="memory of the GPUs that the server held"),
        NumberSpec(name="fit.SIZE.prompt_tokens", unit="tokens", digits=0, meaning="tokens of the prompt"),
        NumberSpec(name="fit.SIZE.filled_pct", unit="%", digits=1, meaning="the prompt's share of the window"),
        NumberSpec(name="fit.SIZE.ttft_s", unit="s", digits=1, meaning="time to the first token"),
        NumberSpec(name="fit.SIZE.prefill_tokens_per_s", unit="tok/s", digits=1, meaning="prefill as the server reports it"),
        NumberSpec(name="fit.SIZE.decode_tokens_per_s", unit="tok/s", digits=1, meaning="decode as the server reports it"),
    )

    def settings(self, options: Options) -> dict[str, Sourced]:
        if options.base_url or (options.card is None and not options.resume):
            raise WrongUse("part fit starts the server anew for each window: measure a card, without --base-url")
        if not 256 <= options.fit_smallest <= options.fit_largest:
            raise WrongUse(
                f"--fit-smallest {options.fit_smallest} --fit-largest {options.fit_largest}: "
                "windows start at 256 tokens or more and grow to the largest"
            )
        if options.limit_gib is not None and options.limit_gib <= 0:
            raise WrongUse(f"--limit-gib {options.limit_gib}: give a number of GiB above 0")
        sizes = windows(options.fit_smallest, options.fit_largest)
        source = options.source("fit_largest") if "fit_largest" in options.given else options.source("fit_smallest")
        return {
            "sizes": Sourced(value=list(sizes), source=source),
            "fill_pct": Sourced(value=fitting.FILL_PCT, source="the part"),
            "max_tokens": Sourced(value=options.limits.get("fit", REPLY_TOKENS), source="the part"),
            "limit_gib": Sourced(value=options.limit_gib, source=options.source("limit_gib")),
            "spare_gib": Sourced(value=round(spared() / GIB, 3), source="3 % of the machine's memory, at least 0.5 GiB"),
            "attempts": Sourced(value=ATTEMPTS, source="the part"),
        }

    def plan(self, contract: Contract) -> tuple[str, ...]:
        return tuple(str(size) for size in contract.settings["fit.sizes"].value)

    def run(self, context: Context) -> None:
        if context.server is None:
            raise WrongUse("part fit starts the server anew for each window: measure a card, without --base-url")
        rung = Ladder(context=context, server=context.server)
        try:
            rung.climb()
        finally:
            context.server.stop()

    def score(self, run: RunFolder) -> Scored:
        every = fitting.tries(run.path)
        counts = fitting.counting(every)
        if not counts:
            return Scored(part=PartResult(state="missing", reason="no window was tried"), numbers={})
        contract = run.contract()
        found: seen.Doubts = {}
        numbers: dict[str, Number] = {}
        answered = [size for size, one in sorted(counts.items()) if one.outcome == "answered"]
        records = {int(str(record.detail.get("size"))): record for record in run.kept("fit") if "size" in record.detail}
        for size, one in sorted(counts.items()):
            why = disturbed(one) if one.outcome == "answered" else ""
            doubts = ["memory_intruder"] if why else []
            if why:
                names = "; ".join(f"{who.name} {who.bytes / MIB:+.0f} MiB" for who in one.intruders[:5])
                said = names or why.removeprefix("memory_intruder: ")
                found.setdefault("memory_intruder", []).append(f"fit at {size}: {said}")
            for name, value in figures(one).items():
                mine = doubts if name == "peak_gib" else []
                numbers[f"fit.{size}.{name}"] = Number(value=value, unit=UNITS[name], n=1, doubts=mine, source=fitting.FILE)
            if (record := records.get(size)) is not None and one.outcome == "answered":
                usage = record.usage
                cached = (usage.cached_tokens or 0) if usage else 0
                prefill, decode = fitting.as_told(record.extras, record.prompt_tokens, cached)
                told = {"ttft_s": rates.ttft_s(record), "prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode}
                for name, figure in told.items():
                    if figure is not None:
                        source = "requests-fit.jsonl"
                        numbers[f"fit.{size}.{name}"] = Number(value=figure, unit=UNITS[name], n=1, source=source)
        numbers["fit.largest_tokens"] = Number(
            value=max(answered, default=None),
            unit="tokens",
            n=len(counts),
            source=fitting.FILE,
        )
        sizes = [row(one, records[size].finish_reason if size in records else None) for size, one in sorted(counts.items())]
        wanted = set(setting(contract, "fit.sizes", []))  # type: ignore[call-overload]
        failed = next((one for one in counts.values() if one.outcome == "failed"), None)
        state = "done" if failed is not None or wanted <= set(counts) else "missing"
        reason = "" if failed is None else f"the ladder ended at {failed.size} tokens: {failed.reason}"
        if state == "missing":
            reason = f"windows not tried yet: {', '.join(str(size) for size in sorted(wanted - set(counts)))}; go on with --resume"
        notes = [f"{size:,} tokens: {note}" for size, one in sorted(counts.items()) for note in one.notes]
        part = PartResult(
            state=state,  # type: ignore[arg-type]
            measured=max(one.at for one in every)[:10],
            reason=reason,
            notes=notes,
            detail={"sizes": sizes},
        )
        return Scored(part=part, numbers=numbers, doubts=found)

    def example(self) -> Example:
        return Example(options={"parts": ("fit",), "fit_smallest": 512, "fit_largest": 1024}, numbers={"fit.largest_tokens": 1024})


UNITS = {spec.name.rsplit(".", 1)[1]: spec.unit for spec in Fit.numbers}


def figures(one: Try) -> dict[str, float | int]:
    """Numbers of a try that counts."""
    if one.outcome == "failed":
        return {"peak_gib": one.rise / GIB} if one.samples else {}
    found: dict[str, float | int] = {
        "peak_gib": one.rise / GIB,
        "tree_gib": one.tree / GIB,
        "prompt_tokens": one.prompt_tokens,
        "filled_pct": 100.0 * one.prompt_tokens / one.size,
    }
    if one.mapped:
        found["mapped_gib"] = one.tree_file / GIB
    if one.gpu:
        found["gpu_gib"] = one.gpu / GIB
    return found


def row(one: Try, finish_reason: str | None) -> dict[str, object]:
    """A size for the page's table."""
    outcome = one.outcome if one.outcome == "answered" else f"failed: {one.reason.splitlines()[0]}"
    finish = {"finish_reason": finish_reason} if one.outcome == "answered" and finish_reason else {}
    return {"size": one.size, "outcome": outcome, **finish}


PART = Fit()
