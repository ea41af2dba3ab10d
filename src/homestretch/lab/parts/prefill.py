"""Prefill: how fast a prompt of exactly so many tokens is read, and how long until the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homestretch.lab import rates, seen
from homestretch.lab.context import Step
from homestretch.lab.doubts import FEWEST_PREFILL_TOKENS, INSTRUMENT_SHARE_PCT
from homestretch.lab.errors import WrongUse
from homestretch.lab.exchange import Ask, Body
from homestretch.lab.parts import Example, NumberSpec, Part, Scored
from homestretch.lab.types import Contract, Number, Sourced

if TYPE_CHECKING:
    from homestretch.lab.context import Context
    from homestretch.lab.options import Options
    from homestretch.lab.records import RunFolder

SOURCE = "requests-prefill.jsonl"
REPLY_TOKENS = 8


class Prefill(Part):
    name = "prefill"
    group = "speed"
    asks = "How fast is a prompt read, and how long until the first token?"
    numbers = (
        NumberSpec(name="prefill.DEPTH.tokens_per_s", unit="tok/s", digits=1, meaning="prompt tokens / time to first token"),
        NumberSpec(name="prefill.DEPTH.ttft_s", unit="s", digits=1, meaning="time to the first token, median over runs"),
    )

    def settings(self, options: Options) -> dict[str, Sourced]:
        return {
            "depths": Sourced(value=list(options.prefill_depths), source=options.source("prefill_depths")),
            "runs": Sourced(value=options.prefill_runs, source=options.source("prefill_runs")),
            "prompt": Sourced(value=options.conc_prompt, source=options.source("conc_prompt")),
            "max_tokens": Sourced(value=REPLY_TOKENS, source="the part: the first token ends what is measured"),
        }

    def plan(self, contract: Contract) -> tuple[str, ...]:
        depths, runs = contract.settings["prefill.depths"].value, contract.settings["prefill.runs"].value
        return tuple(f"{depth}-{run}" for depth in depths for run in range(1, runs + 1))

    def run(self, context: Context) -> None:
        prompt = context.setting("prompt")
        for depth in context.setting("depths"):
            if all(f"{depth}-{run}" in context.folder.steps_done("prefill") for run in range(1, context.setting("runs") + 1)):
                for run in range(1, context.setting("runs") + 1):
                    context.progress.advance("prefill", f"{depth}-{run}", resumed=True)
                continue
            made = context.exact(context.prompts[prompt], depth)

            def body(user: str = made.user) -> Body:
                messages = context.chat(user)
                return context.body(messages=messages, max_tokens=int(context.setting("max_tokens")))

            for run in range(1, context.setting("runs") + 1):
                ask = Ask(
                    body=body,
                    prompt_id=prompt,
                    prompt_tokens=made.tokens,
                    prompt_tokens_source=made.source,
                    detail={"depth": depth, "run": run},
                )
                context.step(Step(id=f"{depth}-{run}", asks=(ask,)))

    def score(self, run: RunFolder) -> Scored:
        contract = run.contract()
        kept = run.kept("prefill")
        found = seen.of_requests(run, "prefill", kept)
        error_s = instrument_error_s(run)
        numbers: dict[str, Number] = {}
        if contract.settings["prefill.runs"].value < 2:
            found.setdefault("short_run", []).append("prefill: a single run")
        for depth in contract.settings["prefill.depths"].value:
            records = [record for record in kept if record.detail.get("depth") == depth]
            doubts = {name for name in found if name not in ("first_event_unknown", "few_tokens")}
            times = [rates.ttft_s(record) for record in records]
            if depth < FEWEST_PREFILL_TOKENS:
                doubts.add("few_tokens")
                found.setdefault("few_tokens", []).append(f"prefill at {depth}: a prompt under {FEWEST_PREFILL_TOKENS} tokens")
            shortest = min((time for time in times if time is not None), default=None)
            if shortest is not None and error_s is not None and 100.0 * error_s > INSTRUMENT_SHARE_PCT * shortest:
                doubts.add("few_tokens")
                found.setdefault("few_tokens", []).append(
                    f"prefill at {depth}: the instrument's error of {1000 * error_s:.1f} ms is over 1 % of {1000 * shortest:.1f} ms"
                )
            rate = rates.number([rates.prefill(record) for record in records], "tok/s", SOURCE, doubts=doubts)
            numbers[f"prefill.{depth}.tokens_per_s"] = rate
            numbers[f"prefill.{depth}.ttft_s"] = rates.number(times, "s", SOURCE, doubts=doubts)
        seen.refuse_spreads(numbers, found)
        part = seen.state(run, "prefill", self.plan(contract), seen.date(kept))
        return Scored(part=part, numbers=numbers, doubts=found)

    def example(self) -> Example:
        return Example(
            options={"prefill_depths": (512, 1024), "prefill_runs": 2, "parts": ("prefill",)},
            numbers={"prefill.512.tokens_per_s": None, "prefill.1024.ttft_s": None},
        )


def instrument_error_s(run: RunFolder) -> float | None:
    """The largest error of a lone request's time to first token in the check before the run; None where none was made."""
    from homestretch.lab.instrument import read

    checked = read(run.path / "instrument.json")
    return None if checked is None else max(abs(one.ttft_error_s) for one in checked.checks if one.streams == 1)


def depths_that_fit(wanted: tuple[int, ...], window: int | None, reply: int) -> tuple[int, ...]:
    """Depths whose prompt and reply fit the window. When none does: halves of the window down to an eighth, as far as they fit."""
    if window is None:
        return wanted
    fit = tuple(depth for depth in wanted if depth + reply <= window)
    if fit:
        return fit
    ladder = tuple(size for size in (window // 8, window // 4, window // 2, (window - reply) // 1024 * 1024) if size >= 512)
    found = tuple(sorted({size for size in ladder if size + reply <= window}))
    if not found:
        raise WrongUse(f"a window of {window} tokens holds no prompt that could be measured with a reply of {reply}")
    return found


PART = Prefill()
