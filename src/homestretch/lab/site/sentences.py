"""Sentences about a run, each made from its data; "" where the data do not carry it."""

from __future__ import annotations

from homestretch.lab.doubts import SPREAD_LIMIT_PCT
from homestretch.lab.setups import PARTS, QUALITY, SPEED, LoadedSetup, Run
from homestretch.lab.site import facts
from homestretch.lab.site.figures import doubts, keys, printed, prompt_label, prompts, refused
from homestretch.lab.site.words import listed, none_or, several, word
from homestretch.lab.stats import spread_pct
from homestretch.lab.types import Result, UnusedRun

RATE = "decode.tokens_per_s"
NAMES = {
    "decode": "decode",
    "prefill": "prefill",
    "conc": "requests at once",
    "ctx": "long prompts",
    "mmlupro": "MMLU-Pro",
    "gpqa": "GPQA Diamond",
    "ifeval": "IFEval",
    "lcb": "LiveCodeBench",
    "ruler": "long text",
    "think": "GPQA 30 with thinking on",
    "fit": "the memory test",
    "gauntlet": "the game test",
    "speed": "the speed test",
    "quality": "the quality tests",
}


def slots(setup: LoadedSetup, run: Run) -> str:
    """Slots with their source."""
    value, source = facts.slots(run, setup.card)
    return f"Requests at once: the server has {several(value, 'slot')} ({source})." if isinstance(value, int) else ""


def headline(result: Result, run: Run) -> str:
    """What the headline is the mean of."""
    each = [(name, result.numbers[f"decode.{name}.tokens_per_s"]) for name in prompts(result)]
    total = result.numbers.get(RATE)
    if total is None or total.value is None or not each:
        return ""
    medians = listed([f"the {prompt_label(name)} ({printed(RATE, number.value)})" for name, number in each])
    counts = {number.n for _, number in each}
    runs = f", medians of {word(counts.pop())} runs each" if len(counts) == 1 and 0 not in counts else ", medians of their runs"
    value = printed(RATE, total.value)
    end = f". It is no headline: {doubts(total)}." if refused(total) else "."
    what = "figure" if refused(total) else "headline"
    if len(each) == 1:
        return f"The {what} {value} tok/s is that of {medians}{runs.replace(' each', '')}{end}"
    return f"The {what} {value} tok/s is the mean of {medians}{runs}{end}"


def thinking_and_cache(setup: LoadedSetup, run: Run, parts: tuple[str, ...]) -> str:
    """The thinking switch as sent, and cached prompt tokens."""
    out = []
    field = setup.card.thinking.field
    if field:
        sent = set[object]().union(*(facts.thinking_sent(run, part, field) for part in parts)) if parts else set()
        if sent == {False}:
            out.append("Thinking was off in every request.")
        elif sent == {True}:
            out.append("Thinking was on in every request.")
        elif sent == {None}:
            out.append("No request set the thinking switch.")
        elif sent:
            out.append("Thinking was not the same in every request.")
    examined, told, hit = facts.cached(run, parts)
    if hit:
        out.append(f"The cache check found cached prompt tokens in {hit} of the {several(examined, 'request')} it examined.")
    elif examined and told == examined:
        out.append(f"The cache check found no cached prompt tokens in any of the {several(examined, 'request')} it examined.")
    elif examined and told:
        out.append(
            f"The server reported a count of cached prompt tokens in {told} of {several(examined, 'request')}; it was 0 in each."
        )
    elif examined:
        out.append(f"The server reported no count of cached prompt tokens in any of {several(examined, 'request')}.")
    return " ".join(out)


def drafts(run: Run) -> str:
    """Accepted of drafted tokens over the decode runs."""
    rows = facts.decode_runs(run)
    drafted = sum(row.drafted or 0 for row in rows)
    accepted = sum(row.accepted or 0 for row in rows)
    if not drafted:
        return ""
    number = run.result.numbers.get("drafts.mean_accepted_length") if run.result else None
    length = (
        f", {printed('drafts.mean_accepted_length', number.value)} tokens per step on average" if number and number.value else ""
    )
    share = printed("drafts.acceptance_pct", 100 * accepted / drafted)
    return f"The drafts were accepted at a rate of {share} % of the drafted tokens ({accepted:,} of {drafted:,}){length}."


def at_once(result: Result) -> str:
    """How total and per-request speed move from the lowest to the highest level."""
    levels = keys(result, "conc")
    if len(levels) < 2:
        return ""
    low, high = levels[0], levels[-1]
    ends = [result.numbers.get(f"conc.{level}.{kind}_tokens_per_s") for kind in ("total", "request") for level in (low, high)]
    values = [number.value for number in ends if number is not None and number.value is not None]
    if len(values) < 4:
        return ""
    texts = [printed(RATE, value) for value in values]
    total = moved("The total", values[0], values[1], texts[0], texts[1], f"with {several(low, 'request')}", f"with {high}")
    single = moved("the speed of one request", values[2], values[3], texts[2], texts[3], "", "")
    return (
        f"Requests at once: {listed([str(level) for level in levels])} requests ran together. {total}; "
        f"{single}. A request's speed here is "
        "measured over the whole request, first token included, so it is below the decode speed."
    )


def moved(subject: str, low: float, high: float, low_text: str, high_text: str, at_low: str, at_high: str) -> str:
    """`The total rises from A tok/s with 1 request to B tok/s with 8`."""
    verb = "stays at" if low_text == high_text else "rises from" if high > low else "falls from"
    if verb == "stays at":
        return f"{subject} stays at {low_text} tok/s"
    return " ".join(f"{subject} {verb} {low_text} tok/s {at_low} to {high_text} tok/s {at_high}".split())


def load(run: Run, parts: tuple[str, ...]) -> str:
    """Guard and quiet check."""
    seen = facts.load(run, parts)
    out = []
    if seen.samples or seen.steps:
        out.append(
            f"Load on the machine: the load guard (a sample every half second, {several(seen.samples, 'sample')}) "
            f"discarded and repeated "
            f"{none_or(seen.discarded)} of its {several(seen.steps, 'step')}."
        )
    if seen.quiet and seen.busiest_name:
        out.append(
            f"The quiet check (one sample every 10 seconds, {several(seen.quiet, 'sample')}) saw at most "
            f"{seen.busiest_pct:.1f} % of one "
            f"core, from {seen.busiest_name}."
        )
    elif seen.quiet:
        out.append(
            f"The quiet check (one sample every 10 seconds, {several(seen.quiet, 'sample')}) saw no foreign process at work."
        )
    return " ".join(out)


def instrument(run: Run) -> str:
    """The instrument's own error, measured before the run."""
    found = facts.instrument(run)
    decode, first = found.get("decode_error_pct"), found.get("ttft_error_s")
    if not isinstance(decode, int | float) or not isinstance(first, int | float):
        return ""
    return (
        f"The instrument, checked before the run against a server of known speed on the same machine, was off "
        f"by {abs(decode):.2f} % in "
        f"decode and {abs(first) * 1000:.1f} ms in the first token."
    )


def recipe(setup: LoadedSetup) -> str:
    """Whose recipe the server was started by, and how many differences from it the card names."""
    found = setup.card.recipe
    if found is None:
        return ""
    whose = f"{found.author}’s recipe" if found.author else "the recipe"
    where = f" ({found.path})" if found.path else ""
    count = len(setup.card.differences)
    told = f"; the card names {several(count, 'difference')} from it" if count else "; the card names no difference from it"
    return f"The server was started by {whose}{where}{told}."


def machines(setup: LoadedSetup) -> str:
    """Which machine ran what, when the runs name their machines."""
    groups: dict[str, list[str]] = {}
    for part in PARTS:
        if part in setup.counting and setup.machine_name(setup.counting[part]):
            groups.setdefault(setup.machine_name(setup.counting[part]), []).append(part)
    if not groups:
        return ""
    said = [f"{listed(collected(parts, setup))} ran on the {name}" for name, parts in groups.items()]
    return f"Which machine ran what: {'; '.join(said)}."


def collected(parts: list[str], setup: LoadedSetup) -> list[str]:
    """Part names with whole groups named as such."""
    out = []
    for group, members in (("speed", SPEED), ("quality", QUALITY)):
        here = [part for part in members if part in parts]
        present = [part for part in members if part in setup.counting]
        out += [NAMES[group]] if here and here == present else [NAMES[part] for part in here]
    return out + [NAMES[part] for part in ("fit", "gauntlet") if part in parts]


def unused(setup: LoadedSetup, entries: list[UnusedRun], run: Run) -> str:
    """Why the parts of a run do not count, with the rates and drafts that show it."""
    name = entries[0].machine or setup.machine_name(run)
    day = f", {run.date}" if run.date else ""
    place = f" on the {name}" if name else ""
    counts = any(item.name == run.name for item in setup.counting.values())
    parts = [entry.part for entry in entries]
    what = listed([NAMES.get(part, part) for part in parts])
    whole = "is not used for any number on this page" if not counts else "gives this page no number of that part"
    out = [f"The run {run.name}{place}{day}, of {what}, {whole}."]
    rows = facts.decode_runs(run)
    for prompt in dict.fromkeys(row.prompt for row in rows):
        mine = [row for row in rows if row.prompt == prompt and row.rate is not None]
        rates = [row.rate for row in mine if row.rate is not None]
        if len(rates) < 2:
            continue
        spread = spread_pct(rates)
        if spread is None or spread <= SPREAD_LIMIT_PCT:
            continue
        out.append(
            f"Its {word(len(rates))} runs of the {prompt_label(prompt)} decoded at "
            f"{listed([printed(RATE, rate) for rate in rates])} tok/s, "
            f"a spread of {spread:.1f} % against the limit of {SPREAD_LIMIT_PCT:.0f} %, so no median could stand as a headline."
        )
        shares = [
            f"{row.accepted:,} of {row.drafted:,}, {100 * row.accepted / row.drafted:.1f} %"
            for row in mine
            if row.drafted and row.accepted
        ]
        if len(shares) == len(mine):
            out.append(f"Draft tokens accepted, run by run: {'; '.join(shares)}.")
    reasons = list(dict.fromkeys(entry.reason.rstrip(".") for entry in entries if entry.reason))
    if reasons:
        out.append(f"Reason given: {'; '.join(reasons)}.")
    return " ".join(out)
