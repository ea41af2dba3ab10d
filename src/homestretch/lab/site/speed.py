"""The Speed section: tiles, the full table, long prompts, charts, the method sentence and sentences counted from the raw files."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from homestretch.lab.doubts import DOUBTS
from homestretch.lab.setups import SPEED, LoadedSetup, Run
from homestretch.lab.site import charts, facts
from homestretch.lab.site.figures import Figure, depth, figure, headline, keys, printed, prompt_label, prompts, refused
from homestretch.lab.site.words import listed, several
from homestretch.lab.types import Number, PartResult, Result


@dataclass(frozen=True, kw_only=True)
class LongRow:
    """A row of the long-prompt table."""

    label: str
    cells: list[Figure]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Everything the Speed section shows."""

    run: Run
    tiles: list[Figure]
    rows: list[Figure]
    long_columns: list[str]
    long_rows: list[LongRow]
    charts: list[charts.Chart]
    method: str
    sentences: list[str]
    doubts: dict[str, list[str]] = field(default_factory=dict)


def speed(setup: LoadedSetup) -> Speed | None:
    """The section's data, None when no speed part counts."""
    present = [part for part in SPEED if part in setup.counting]
    if not present:
        return None
    run = setup.counting[present[0]]
    result = uncluttered(merged(setup))
    return Speed(
        run=run,
        tiles=tiles(result),
        rows=rows(result, setup, run),
        long_columns=[
            "Prompt length",
            "Prefill",
            "Time to first token",
            *(f"Decode, {prompt_label(name)}" for name in prompts(result)),
        ],
        long_rows=long_rows(result),
        charts=[chart for chart in draw(result) if chart is not None],
        method=method(setup, result),
        sentences=sentences(setup, result, run),
        doubts=result.doubts,
    )


def merged(setup: LoadedSetup) -> Result:
    """One result over the speed parts, each part's numbers from the run that counts for it."""
    numbers: dict[str, Number] = {}
    parts: dict[str, PartResult] = {}
    doubts: dict[str, list[str]] = {}
    heads = {"decode": ("decode", "drafts"), "prefill": ("prefill",), "conc": ("conc",), "ctx": ("ctx",)}
    for part in SPEED:
        run = setup.counting.get(part)
        if run is None or run.result is None:
            continue
        parts[part] = run.result.parts[part]
        numbers |= {name: number for name, number in run.result.numbers.items() if name.split(".")[0] in heads[part]}
        for doubt, texts in run.result.doubts.items():
            doubts.setdefault(doubt, [])
            doubts[doubt] += [text for text in texts if text not in doubts[doubt]]
    first = next((run for run in setup.counting.values() if run.result is not None), None)
    scored = first.result.scored_by if first is not None and first.result is not None else ""
    return Result(run=first.name if first is not None else "", scored_by=scored, parts=parts, numbers=numbers, doubts=doubts)


def uncluttered(result: Result) -> Result:
    """Without the telling doubts that most numbers share: they stand once above the table, not in every row."""
    count = {name: sum(name in number.doubts for number in result.numbers.values()) for name in result.doubts}
    common = {
        name for name, hits in count.items() if hits * 2 > len(result.numbers) and name in DOUBTS and not DOUBTS[name].refuses
    }
    numbers = {
        name: msgspec.structs.replace(number, doubts=[doubt for doubt in number.doubts if doubt not in common])
        for name, number in result.numbers.items()
    }
    return msgspec.structs.replace(result, numbers=numbers)


def tiles(result: Result) -> list[Figure]:
    """The headline figures; one that a refusing doubt keeps out is left away (the table says why)."""
    depths = keys(result, "prefill")
    wanted = [("decode.tokens_per_s", "Decode")]
    wanted += [(f"decode.{name}.tokens_per_s", f"Decode, {name}") for name in prompts(result)]
    wanted += [("decode.words_500_s", "500 words")]
    if depths:
        fill = 8192 if 8192 in depths else depths[-1]
        wanted += [(f"prefill.{fill}.tokens_per_s", f"Prefill at {depth(fill)}")]
        wanted += [(f"prefill.{depths[0]}.ttft_s", f"First token at {depth(depths[0])}")]
    shown = [figure(result, name, label) for name, label in wanted if headline(result, name) is not None]
    return [msg if msg.label != "500 words" else approximate(msg) for msg in shown]


def approximate(item: Figure) -> Figure:
    """The estimate of 500 words, marked as one."""
    return Figure(name=item.name, label=item.label, value=f"≈ {item.value}", unit=item.unit, note=item.note)


def names(result: Result) -> list[tuple[str, str]]:
    """Number name and label of each row of the table, in the page's order."""
    each = prompts(result)
    depths, levels = keys(result, "prefill"), keys(result, "conc")
    out = [
        ("decode.tokens_per_s", "Decode"),
        ("decode.words_per_s", "Words per second"),
        ("decode.characters_per_s", "Characters per second"),
    ]
    out += [(f"decode.{name}.tokens_per_s", f"Decode, {prompt_label(name)}") for name in each]
    out += [(f"decode.{name}.k1_tokens_per_s", f"Decode, {prompt_label(name)}, first event’s tokens left out") for name in each]
    out += [("decode.spread_pct", "Spread of the decode runs (CV)")]
    out += [(f"decode.{name}.spread_pct", f"Spread of the {name} runs (CV)") for name in each]
    out += [("decode.window1.tokens_per_s", "Decode, window 1")]
    out += [(f"prefill.{tokens}.tokens_per_s", f"Prefill at {depth(tokens)}") for tokens in depths]
    out += [(f"prefill.{tokens}.ttft_s", f"Time to first token at {depth(tokens)}") for tokens in depths]
    out += [("drafts.acceptance_pct", "Draft acceptance rate"), ("drafts.mean_accepted_length", "Mean accepted length")]
    for kind, text in (("total", "total"), ("request", "per request")):
        out += [
            (f"conc.{level}.{kind}_tokens_per_s", f"{several(level, 'request') if level == 1 else level} at once ({text})")
            for level in levels
        ]
    return out


def rows(result: Result, setup: LoadedSetup, run: Run) -> list[Figure]:
    """Every measured row; rows the run has no number for are left out."""
    out = [figure(result, name, label) for name, label in names(result) if name in result.numbers]
    slots, origin = facts.slots(setup.counting.get("conc", run), setup.card)
    if slots is not None:
        out.append(Figure(name="", label=f"Server slots ({origin})", value=str(slots), unit="slots"))
    return out


def long_rows(result: Result) -> list[LongRow]:
    """The long-prompt table."""
    out = []
    for tokens in keys(result, "ctx"):
        wanted = [f"ctx.{tokens}.prefill.tokens_per_s", f"ctx.{tokens}.ttft_s"]
        wanted += [f"ctx.{tokens}.decode.{name}.tokens_per_s" for name in prompts(result)]
        out.append(LongRow(label=f"{depth(tokens)} tokens", cells=[figure(result, name, "") for name in wanted]))
    return out


def line(result: Result, name: str, pattern: str, at: list[int]) -> charts.Series:
    """A series over the positions that have a value; doubted ones too, the caption says so."""
    found = [(x, result.numbers[pattern.format(x)]) for x in at if pattern.format(x) in result.numbers]
    kept = [(x, number) for x, number in found if number.value is not None]
    return charts.Series(
        name=name,
        doubted=any(refused(number) for _, number in kept),
        points=[(float(x), float(number.value or 0)) for x, number in kept],
        printed=[printed(pattern, number.value) for _, number in kept],
    )


def draw(result: Result) -> list[charts.Chart | None]:
    """First token, prefill and decode over prompt length; total and per-request over requests at once."""
    part = "ctx" if keys(result, "ctx") else "prefill"
    depths = keys(result, part)
    prefill_name = f"{part}.{{}}.prefill.tokens_per_s" if part == "ctx" else "prefill.{}.tokens_per_s"
    shown = [tokens for tokens in depths if prefill_name.format(tokens) in result.numbers]
    labels = [depth(tokens) for tokens in shown]
    length = "prompt length, tokens"
    first = line(result, "Time to first token", f"{part}.{{}}.ttft_s", shown)
    fill = line(result, "Prefill", prefill_name, shown)
    levels = keys(result, "conc")
    ways = [
        line(result, label, f"conc.{{}}.{kind}_tokens_per_s", levels)
        for kind, label in (("total", "total"), ("request", "per request"))
    ]
    decode = [line(result, prompt_label(name), f"ctx.{{}}.decode.{name}.tokens_per_s", shown) for name in prompts(result)]
    out = [
        complete("Time to first token over prompt length", [first], labels, "s", "Prompt length", "c-first", length),
        complete("Prefill over prompt length", [fill], labels, "tok/s", "Prompt length", "c-prefill", length),
        complete("Decode over prompt length", decode, labels, "tok/s", "Prompt length", "c-decode", length),
        complete(
            "Speed over requests at once",
            ways,
            [str(level) for level in levels],
            "tok/s",
            "Requests at once",
            "c-conc",
            "requests at once",
        ),
    ]
    return out


def complete(
    title: str, series: list[charts.Series], labels: list[str], unit: str, axis: str, ident: str, axis_title: str
) -> charts.Chart | None:
    """The chart of the series that have a value at every position (a line with a hole is not drawn), None when none has."""
    whole = [item for item in series if len(item.points) == len(labels) and labels]
    title += " (doubted, see above)" if any(item.doubted for item in whole) else ""
    return charts.lines(title, whole, labels, unit, axis, ident=ident, axis_title=axis_title) if whole else None


def method(setup: LoadedSetup, result: Result) -> str:
    """How the speed figures were measured, from the contract's settings."""
    pieces = []
    decode = setup.counting.get("decode")
    if decode:
        ids = facts.setting(decode, "decode.prompt_ids", "decode.prompts") or prompts(result)
        pieces.append("+".join(str(name) for name in ids))
        for name, text in (
            ("decode.runs", "{} run(s) each"),
            ("decode.max_tokens", "{} tokens"),
            ("decode.warmups", "{} warm-up(s)"),
        ):
            value = facts.setting(decode, name)
            if value is not None:
                pieces.append(text.format(value))
        pieces.append("median")
    ctx = setup.counting.get("ctx")
    if ctx and keys(result, "ctx"):
        lengths = listed([depth(tokens) for tokens in keys(result, "ctx")])
        text = f"context steps: prompts of exactly {lengths} tokens (a filler log first, the task prompt last)"
        text += suffix(ctx, "ctx.runs", ", {} runs per step") + suffix(ctx, "ctx.max_tokens", ", {} output tokens")
        pieces.append(text)
    if decode:
        pieces.append("decode = tokens after the first / time after the first token")
    if "prefill" in setup.counting:
        pieces.append("prefill = prompt tokens / time to first token of the same request, median over its requests")
    conc = setup.counting.get("conc")
    if conc:
        levels = ",".join(f"C{level}" for level in keys(result, "conc"))
        text = f"requests at once: {levels} at once" + suffix(conc, "conc.rounds", "; {} round(s) each")
        text += suffix(conc, "conc.max_tokens", "; {} tokens per request") + suffix(conc, "conc.prompt", "; {} prompt")
        pieces.append(text + "; total = all tokens / wall time, per request = tokens / end-to-end time; median over the rounds")
    dates = sorted({setup.counting[part].date for part in SPEED if part in setup.counting})
    return f"Method: {'; '.join(pieces)}. Measured {listed(dates)}."


def suffix(run: Run, name: str, text: str) -> str:
    """`text` with the setting's value, "" when the contract does not hold it."""
    value = facts.setting(run, name)
    return text.format(value) if value is not None else ""


def sentences(setup: LoadedSetup, result: Result, run: Run) -> list[str]:
    """Paragraphs about this run, each counted from its raw files; one that would need a missing fact is left out."""
    from homestretch.lab.site import sentences as say

    parts = tuple(part for part in SPEED if part in setup.counting and setup.counting[part].name == run.name)
    return [
        text
        for text in (
            say.slots(setup, run),
            say.headline(result, run),
            say.thinking_and_cache(setup, run, parts),
            say.drafts(run),
            say.at_once(result),
            say.load(run, parts),
            say.instrument(run),
        )
        if text
    ]
