"""The Quality section: the table with margins, and notes counted from answers and settings."""

from __future__ import annotations

from dataclasses import dataclass

from homestretch.lab.setups import LoadedSetup, Run
from homestretch.lab.site import facts
from homestretch.lab.site.figures import Figure, depth, figure, keys, printed
from homestretch.lab.site.words import listed, none_or, several
from homestretch.lab.types import Result

TITLES = {
    "mmlupro": ("MMLU-Pro", "{asked} fixed questions, letter only"),
    "gpqa": ("GPQA Diamond", "{asked} questions, letter only"),
    "ifeval": ("IFEval", "{asked} fixed prompts, strict"),
    "lcb": ("LiveCodeBench", "{asked} newest tasks, the code runs"),
    "think": ("GPQA {asked}, thinking on", "{asked} questions, limit {limit} tokens"),
}
RULER_TASKS = {
    "multikey": "multi-key retrieval",
    "niah_multikey": "multi-key retrieval",
    "common_words": "common-word extraction",
    "cwe": "common-word extraction",
    "multihop": "multi-hop question answering",
    "multihop_qa": "multi-hop question answering",
    "qa": "multi-hop question answering",
    "variables": "variable tracking",
    "variable_tracking": "variable tracking",
    "vt": "variable tracking",
}
ORDER = ("mmlupro", "gpqa", "ifeval", "lcb", "ruler", "think")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One test of the table. prefix: the head of its number names ("mmlupro", "ruler.8192")."""

    part: str
    prefix: str
    run: Run
    title: str
    about: str
    result: Figure
    margin: Figure
    right: str
    asked: str
    cut: str
    extra: str = ""
    house: bool = False


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Everything the Quality section shows."""

    rows: list[Row]
    settings: str
    sentences: list[str]
    invalid: list[str]


def quality(setup: LoadedSetup) -> Quality | None:
    """The section's data, None when no quality part counts."""
    rows: list[Row] = []
    invalid: list[str] = []
    for part in ORDER:
        run = setup.counting.get(part)
        if run is None or run.result is None:
            continue
        state = run.result.parts[part]
        if state.state != "done":
            invalid.append(f"{title(part, run, part)[0]}: {state.state}{', ' + state.reason if state.reason else ''}.")
        if part == "ruler":
            rows += [row(part, f"ruler.{tokens}", run) for tokens in keys(run.result, "ruler")]
        elif f"{part}.right_pct" in run.result.numbers:
            rows.append(row(part, part, run))
    if not rows and not invalid:
        return None
    return Quality(rows=rows, settings=settings(setup, rows), sentences=sentences(setup, rows), invalid=invalid)


def count(result: Result | None, name: str) -> int | None:
    """A whole number of a result, None when absent."""
    number = result.numbers.get(name) if result else None
    return round(number.value) if number is not None and number.value is not None else None


def shown(value: int | None) -> str:
    return "—" if value is None else f"{value:,}"


def is_house(run: Run, part: str) -> bool:
    """Whether a part asked a house set, which is never mixed up with the public one."""
    return "house" in str(facts.setting(run, f"{part}.set", f"{part}.data", f"{part}.dataset") or "").lower()


def title(part: str, run: Run, prefix: str) -> tuple[str, str]:
    """Name of the test and what it asked."""
    asked = count(run.result, f"{prefix}.asked") or 0
    if part == "ruler":
        tokens = int(prefix.split(".")[1])
        tasks = sorted(
            name for name in (run.result.numbers if run.result else ()) if name.startswith(prefix + ".") and name.count(".") == 3
        )
        each = asked // len(tasks) if tasks else asked
        return f"Long text {depth(tokens)}", f"{len(tasks)} tasks x {each} at {tokens} tokens"
    limit = facts.setting(run, f"{part}.max_tokens", f"{part}.limit")
    name, about = TITLES.get(part, (part, "{asked} questions"))
    text = about.format(asked=asked, limit=f"{limit:,}" if isinstance(limit, int) else "?")
    if is_house(run, part):
        return f"{name.format(asked=asked)}, house set", f"{several(asked, 'question')} of our own, not the public set"
    return name.format(asked=asked), text


def row(part: str, prefix: str, run: Run) -> Row:
    result = run.result
    name, about = title(part, run, prefix)
    extra = ""
    if part == "think":
        tokens, seconds = figure(result, "think.median_tokens", ""), figure(result, "think.median_s", "")
        if tokens.value and seconds.value:
            extra = f"median {tokens.value} tokens, {seconds.value} s per question"
    return Row(
        part=part,
        prefix=prefix,
        run=run,
        title=name,
        about=about,
        result=figure(result, f"{prefix}.right_pct", name),
        margin=figure(result, f"{prefix}.margin_pts", "95 % margin"),
        right=shown(count(result, f"{prefix}.right")),
        asked=shown(count(result, f"{prefix}.asked")),
        cut=shown(count(result, f"{prefix}.cut_off")),
        extra=extra,
        house=is_house(run, part),
    )


def settings(setup: LoadedSetup, rows: list[Row]) -> str:
    """`Thinking off, except the last test. Seed 42. Sampling from the model card. ...`"""
    field = setup.card.thinking.field
    out = []
    sent = {item.part: facts.thinking_sent(item.run, item.part, field) for item in rows} if field else {}
    on = [part for part, values in sent.items() if values == {True}]
    off = [part for part, values in sent.items() if values == {False}]
    if off and on == ["think"] and len(off) == len(sent) - 1:
        out.append("Thinking off, except the last test.")
    elif off and len(off) == len(sent):
        out.append("Thinking off.")
    elif on and len(on) == len(sent):
        out.append("Thinking on.")
    seeds = sorted({str(seed) for item in rows if (seed := facts.setting(item.run, "request.seed", "sampling.seed")) is not None})
    if seeds:
        out.append(f"Seed {listed(seeds)}.")
    out.append("A cut-off answer counts as wrong.")
    dates = sorted({item.run.date for item in rows if item.run.date})
    out.append(f"Measured {listed(dates)}.")
    return " ".join(out)


def sentences(setup: LoadedSetup, rows: list[Row]) -> list[str]:
    """Notes made from counts and settings."""
    out = [
        sampling(setup, rows),
        limits(rows),
        unparsed(rows),
        cut_off(rows),
        errors(rows),
        by_task(rows),
        thinking(rows),
        load(rows),
    ]
    return [text for text in out if text]


def sampling(setup: LoadedSetup, rows: list[Row]) -> str:
    """The sampling as the contracts hold it, with its source, and how many requests ran at once."""
    run = rows[0].run if rows else None
    if run is None or run.contract is None:
        return ""
    values = {name.removeprefix("sampling."): item for name, item in run.contract.settings.items() if name.startswith("sampling.")}
    text = listed(
        [f"{name.replace('_', '-')} {item.value}" for name, item in values.items() if name != "seed" and item.value is not None]
    )
    sources = sorted({item.source for item in values.values() if item.source})
    out = f"Sampling: {text}{' (' + '; '.join(sources) + ')' if sources else ''}." if text else ""
    at_once = facts.setting(run, "measure.at_once")
    if isinstance(at_once, int):
        out += f" {several(at_once, 'request')} ran at once; each question is its own request with the same limits and seed."
    return out.strip()


def limits(rows: list[Row]) -> str:
    """Answer limits, tests with the same limit named together."""
    groups: dict[int, list[str]] = {}
    for item in rows:
        limit = facts.setting(item.run, f"{item.part}.max_tokens", f"{item.part}.limit")
        if isinstance(limit, int):
            groups.setdefault(limit, []).append(item.title)
    said = [f"{listed(names)} ran with an answer limit of {limit:,} tokens" for limit, names in groups.items()]
    return f"{'; '.join(said)}." if said else ""


def unparsed(rows: list[Row]) -> str:
    found = [
        (item, count(item.run.result, f"{item.prefix}.unparsed")) for item in rows if item.part in ("mmlupro", "gpqa", "think")
    ]
    said = [f"{several(number, f'{item.title} answer')}" for item, number in found if number]
    plural = sum(number or 0 for _, number in found) != 1
    return f"{listed(said)} had no letter that could be read ({'they count' if plural else 'it counts'} as wrong)." if said else ""


def cut_off(rows: list[Row]) -> str:
    found = [(item, count(item.run.result, f"{item.prefix}.cut_off")) for item in rows]
    said = [f"{several(number, f'{item.title} answer')}" for item, number in found if number]
    if not said:
        return "No answer was cut off at its limit." if any(number == 0 for _, number in found) else ""
    total = sum(number or 0 for _, number in found)
    verb = "was cut off at its limit and counts as wrong" if total == 1 else "were cut off at their limit and count as wrong"
    rest = "; the other tests had none cut off" if len(said) < len(found) else ""
    return f"{listed(said)} {verb}{rest}."


def errors(rows: list[Row]) -> str:
    said = [
        several(number, f"{item.title} request") for item in rows if (number := count(item.run.result, f"{item.prefix}.errors"))
    ]
    return f"{listed(said)} failed even after retries; an error is never counted as an answer." if said else ""


def by_task(rows: list[Row]) -> str:
    """The long-text tasks, depth by depth."""
    tables = [item for item in rows if item.part == "ruler"]
    if not tables or tables[0].run.result is None:
        return ""
    numbers = tables[0].run.result.numbers
    tasks = list(dict.fromkeys(name.split(".")[2] for name in numbers if name.startswith("ruler.") and name.count(".") == 3))
    said = []
    for task in tasks:
        found = [numbers.get(f"{item.prefix}.{task}.right") for item in tables]
        texts = [
            f"{printed('right', number.value)} of {number.n}" for number in found if number is not None and number.value is not None
        ]
        said.append(f"{RULER_TASKS.get(task, task.replace('_', ' '))} {listed(texts)}")
    lengths = listed([depth(int(item.prefix.split(".")[1])) for item in tables])
    return f"Long text by task at {lengths}: {'; '.join(said)}." if said else ""


def thinking(rows: list[Row]) -> str:
    """How long the model thought in the thinking test."""
    for item in rows:
        if item.part != "think" or not item.extra:
            continue
        limit = facts.setting(item.run, "think.max_tokens", "think.limit")
        cut = count(item.run.result, "think.cut_off") or 0
        bound = f" and a limit of {limit:,} tokens" if isinstance(limit, int) else ""
        return (
            f"{item.title}: with thinking on{bound}, {none_or(cut)} of the {item.asked} answers "
            f"{'was' if cut == 1 else 'were'} cut off at the "
            f"limit ({item.extra})."
        )
    return ""


def load(rows: list[Row]) -> str:
    """The busiest foreign process of each run's quiet check, and how often one was above 25 % of a core."""
    runs = {item.run.name: item.run for item in rows}
    said = []
    for name, run in runs.items():
        samples = facts.quiet_samples(run)
        parts = {item.part for item in rows if item.run.name == name}
        if any(sample.step for sample in samples):  # a run may hold speed parts too: their samples say nothing about these
            samples = [sample for sample in samples if sample.step.split("/")[0] in parts]
        if not samples:
            continue
        titles = listed(list(dict.fromkeys(item.title for item in rows if item.run.name == name)))
        busiest = max(
            (process for sample in samples for process in sample.foreign), key=lambda process: process.cpu_pct, default=None
        )
        above = sum(any(process.cpu_pct > 25 for process in sample.foreign) for sample in samples)
        worst = f"at most {busiest.cpu_pct:.1f} % of one core, from {busiest.name}" if busiest else "no foreign process at work"
        over = f"; {several(above, 'sample')} above 25 %" if above else ""
        said.append(f"during {titles} ({several(len(samples), 'sample')}) {worst}{over}")
    return f"Other processes, looked at every 10 seconds: {'; '.join(said)}." if said else ""
