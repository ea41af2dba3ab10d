"""Long prompts: prefill, first token and decode behind prompts of exactly 16K to 128K tokens, filler first, task last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homestretch.lab import rates, seen
from homestretch.lab.context import Step
from homestretch.lab.exchange import Ask, Body
from homestretch.lab.parts import Example, NumberSpec, Part, Scored
from homestretch.lab.types import Contract, Number, Sourced

if TYPE_CHECKING:
    from homestretch.lab.context import Context
    from homestretch.lab.options import Options
    from homestretch.lab.records import RunFolder

SOURCE = "requests-ctx.jsonl"


class Ctx(Part):
    name = "ctx"
    group = "speed"
    asks = "How fast is it with a long prompt before it?"
    numbers = (
        NumberSpec(name="ctx.DEPTH.prefill.tokens_per_s", unit="tok/s", digits=1, meaning="prompt tokens / time to first token"),
        NumberSpec(
            name="ctx.DEPTH.ttft_s", unit="s", digits=1, meaning="time to the first token, median over the depth's requests"
        ),
        NumberSpec(
            name="ctx.DEPTH.decode.PROMPT.tokens_per_s", unit="tok/s", digits=1, meaning="decode by the page's definition, median"
        ),
    )

    def settings(self, options: Options) -> dict[str, Sourced]:
        return {
            "depths": Sourced(value=list(options.ctx_depths), source=options.source("ctx_depths")),
            "runs": Sourced(value=options.ctx_runs, source=options.source("ctx_runs")),
            "max_tokens": Sourced(value=options.ctx_max_tokens, source=options.source("ctx_max_tokens")),
            "prompt_ids": Sourced(value=list(options.prompt_ids), source=options.source("prompt_ids")),
        }

    def plan(self, contract: Contract) -> tuple[str, ...]:
        settings = contract.settings
        return tuple(
            f"{depth}-{prompt}-{run}"
            for depth in settings["ctx.depths"].value
            for prompt in settings["ctx.prompt_ids"].value
            for run in range(1, settings["ctx.runs"].value + 1)
        )

    def run(self, context: Context) -> None:
        limit, runs = int(context.setting("max_tokens")), context.setting("runs")
        for depth in context.setting("depths"):
            for prompt in context.setting("prompt_ids"):
                steps = [f"{depth}-{prompt}-{run}" for run in range(1, runs + 1)]
                if set(steps) <= context.folder.steps_done("ctx"):
                    for step in steps:
                        context.progress.advance("ctx", step, resumed=True)
                    continue
                made = context.exact(context.prompts[prompt], depth)

                def body(user: str = made.user) -> Body:
                    return context.body(messages=context.chat(user), max_tokens=limit)

                for run, step in enumerate(steps, 1):
                    ask = Ask(
                        body=body,
                        prompt_id=prompt,
                        prompt_tokens=made.tokens,
                        prompt_tokens_source=made.source,
                        detail={"depth": depth, "run": run},
                    )
                    context.step(Step(id=step, asks=(ask,)))

    def score(self, run: RunFolder) -> Scored:
        contract = run.contract()
        kept = run.kept("ctx")
        found = seen.of_requests(run, "ctx", kept)
        if seen.short(contract.settings["ctx.runs"].value, contract.settings["ctx.max_tokens"].value):
            found.setdefault("short_run", []).append("ctx: replies under 256 tokens, or a single run")
        numbers: dict[str, Number] = {}
        for depth in contract.settings["ctx.depths"].value:
            mine = [record for record in kept if record.detail.get("depth") == depth]
            doubts = {name for name in found if name not in ("first_event_unknown", "few_tokens", "spread_over_limit")}
            numbers[f"ctx.{depth}.prefill.tokens_per_s"] = rates.number(
                [rates.prefill(record) for record in mine], "tok/s", SOURCE, doubts=doubts
            )
            numbers[f"ctx.{depth}.ttft_s"] = rates.number([rates.ttft_s(record) for record in mine], "s", SOURCE, doubts=doubts)
            for prompt in contract.settings["ctx.prompt_ids"].value:
                timings = [t for record in mine if record.prompt_id == prompt and (t := rates.timing(record)) is not None]
                values = [t.decode() for t in timings]
                extra = set()
                if any(t.few() for t in timings):
                    extra.add("few_tokens")
                    found.setdefault("few_tokens", []).append(f"ctx at {depth}, {prompt}: a reply under 64 tokens or 8 events")
                name = f"ctx.{depth}.decode.{prompt}.tokens_per_s"
                numbers[name] = rates.number(values, "tok/s", SOURCE, doubts=(doubts | extra) - {"cached_tokens", "cache_unknown"})
        seen.refuse_spreads(numbers, found)
        part = seen.state(run, "ctx", self.plan(contract), seen.date(kept))
        return Scored(part=part, numbers=numbers, doubts=found)

    def example(self) -> Example:
        return Example(
            options={"ctx_depths": (1024,), "ctx_runs": 1, "ctx_max_tokens": 96, "parts": ("ctx",)},
            numbers={"ctx.1024.prefill.tokens_per_s": None, "ctx.1024.decode.code.tokens_per_s": None},
        )


PART = Ctx()
