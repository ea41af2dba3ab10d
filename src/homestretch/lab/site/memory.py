"""The Memory section: which window sizes loaded and answered, at what peak."""

from __future__ import annotations

from dataclasses import dataclass

from homestretch.lab.setups import LoadedSetup, Run
from homestretch.lab.site import facts
from homestretch.lab.site.figures import Figure, depth, figure, keys, printed
from homestretch.lab.site.words import listed, several

OUTCOME = {"answered": "answered", "failed": "failed"}


@dataclass(frozen=True, kw_only=True)
class SizeRow:
    """A window size of the ladder."""

    label: str
    tokens: str
    cells: list[Figure]
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Everything the Memory section shows."""

    run: Run
    tiles: list[Figure]
    columns: list[tuple[str, str]]
    rows: list[SizeRow]
    method: str
    sentences: list[str]


def memory(setup: LoadedSetup) -> Memory | None:
    """The section's data, None when the fit part does not count."""
    run = setup.counting.get("fit")
    if run is None or run.result is None:
        return None
    result = run.result
    sizes = keys(result, "fit")
    largest = result.numbers.get("fit.largest_tokens")
    top = round(largest.value) if largest is not None and largest.value is not None else (sizes[-1] if sizes else 0)
    tiles = [figure(result, "fit.largest_tokens", "Largest size tested"), figure(result, f"fit.{top}.peak_gib", "Peak memory")]
    tiles.append(figure(result, f"fit.{top}.decode_tokens_per_s", "Decode at that size"))
    columns = [
        ("prompt_tokens", "Prompt, tokens"),
        ("filled_pct", "Filled"),
        ("ttft_s", "First token"),
        ("prefill_tokens_per_s", "Prefill, as the server reports it"),
        ("decode_tokens_per_s", "Decode"),
        ("peak_gib", "Peak memory"),
        ("tree_gib", "Server's own"),
        ("mapped_gib", "Mapped files"),
        ("gpu_gib", "GPU memory"),
    ]
    always = {"prompt_tokens", "filled_pct", "peak_gib", "ttft_s", "prefill_tokens_per_s", "decode_tokens_per_s"}
    kept = [(key, name) for key, name in columns if key in always or any(f"fit.{size}.{key}" in result.numbers for size in sizes)]
    rows = [
        SizeRow(
            label=depth(size),
            tokens=f"{size:,} tokens",
            cells=[figure(result, f"fit.{size}.{key}", name) for key, name in kept],
            outcome=outcome(run, size),
        )
        for size in sizes
    ]
    return Memory(
        run=run, tiles=tiles, columns=kept, rows=rows, method=method(setup, run), sentences=sentences(setup, run, sizes, top)
    )


def outcome(run: Run, size: int) -> str:
    """What became of a size: `answered (stop)`, or the reason the ladder ended."""
    part = run.result.parts.get("fit") if run.result else None
    entries = part.detail.get("sizes") if part else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("size") == size:
            said = str(entry.get("outcome", ""))
            finish = entry.get("finish_reason")
            return f"{said} ({finish})" if finish else said or "—"
    for record in facts.requests(run, "fit"):
        if record.detail.get("size") == size and record.finish_reason:
            return f"answered ({record.finish_reason})"
    return "—"


def method(setup: LoadedSetup, run: Run) -> str:
    """How memory was measured; the last clause from the card's machine."""
    kind = setup.card.machine.memory_kind
    shared = {
        "unified": " Unified memory, so GPU and CPU share it.",
        "discrete": " The card's own memory is a column of its own.",
        "system": "",
    }[kind]
    return (
        "Memory test. For each context size the server is started again with that context, one prompt that "
        "fills about 95 % of the context "
        "is sent, and the model must answer. The largest size that loaded and answered counts. Peak memory "
        "is the rise of used memory "
        f"(MemTotal - MemAvailable) over the idle value before the step.{shared} Measured {run.date}."
    )


def sentences(setup: LoadedSetup, run: Run, sizes: list[int], top: int) -> list[str]:
    """What the ladder showed, from its numbers."""
    result = run.result
    if result is None or not sizes:
        return []
    answered = [size for size in sizes if outcome(run, size).startswith("answered")]
    out = []
    if answered:
        every = "All" if len(answered) == len(sizes) else f"{len(answered)} of"
        tokens = figure(result, f"fit.{top}.prompt_tokens", "").value
        said = f"{every} {several(len(sizes), 'size')} ({listed([depth(size) for size in sizes])}) answered."
        out.append(f"{said} The largest size tested is {top:,} tokens{f' (a prompt of {tokens} tokens)' if tokens else ''}.")
    first, last = result.numbers.get(f"fit.{sizes[0]}.peak_gib"), result.numbers.get(f"fit.{top}.peak_gib")
    if first is not None and last is not None and first.value is not None and last.value is not None and sizes[0] != top:
        out.append(
            f"The rise of used memory was {printed('peak_gib', first.value)} GiB with the {depth(sizes[0])} window and "
            f"{printed('peak_gib', last.value)} GiB with the {depth(top)} window. It is the rise of the whole "
            f"machine, so other programs that "
            "used or released memory at the same time are inside the number."
        )
    part = result.parts.get("fit")
    if part is not None and part.reason:
        out.append(f"{part.reason[:1].upper()}{part.reason[1:].splitlines()[0].rstrip('.')}.")
    window = setup.card.window.value
    if isinstance(window, int) and window > top:
        out.append(
            f"The window of the speed and quality runs, {window:,} tokens, was not part of this test: no memory "
            f"figure stands for it."
        )
    return out
