"""Recounts decode, prefill, requests at once, long prompts and drafts from the stamps of every request."""

from __future__ import annotations

from homestretch.lab.check.arithmetic import average, middle, variation_pct
from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.raw import Raw, Request, counting

FIRST_WINDOW = 256
SPREAD_LIMIT = 15.0


def rate(request: Request) -> float | None:
    """Tokens after the first over the time after the first."""
    if request.tokens is None or request.first is None or request.last is None or request.last <= request.first:
        return None
    return (request.tokens - 1) / (request.last - request.first)


def truer_rate(request: Request) -> float | None:
    """The same with all tokens of the first event taken off."""
    k1 = request.get("k1")
    if request.tokens is None or request.first is None or request.last is None or request.last <= request.first or not k1:
        return None
    return float(request.tokens - k1) / (request.last - request.first)


def window(request: Request) -> float | None:
    """Decode over the first 256 tokens."""
    seen = 0
    for at, tokens in request.spoken:
        if tokens is None:
            return None
        seen += tokens
        if seen >= FIRST_WINDOW:
            first = request.first or 0.0
            return (seen - 1) / (at - first) if at > first else None
    return None


def reading(request: Request) -> float | None:
    """Prompt tokens that were read over the time to the first token."""
    tokens = request.get("prompt_tokens")
    if not tokens or not request.first or request.first <= 0:
        return None
    return float(tokens - (request.cached or 0)) / request.first


def known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def recount(raw: Raw, ledger: Ledger, part: str, settings: dict[str, object]) -> None:
    """Every number of one speed part."""
    found = raw.requests(part)
    place = f"requests-{part}.jsonl"
    if found is None:
        heads = ("decode", "drafts") if part == "decode" else (part,)
        ledger.rest(heads, f"{place} is {'held back' if place in raw.held else 'not there'}")
        return
    kept = counting(found)
    {"decode": decode, "prefill": prefill, "conc": at_once, "ctx": long_prompts}[part](raw, ledger, kept, place)
    for name, number in ledger.numbers.items():
        if name.startswith(f"{part}.") and name.endswith(".tokens_per_s") and isinstance(number, dict):
            spread = number.get("spread_pct")
            wide = isinstance(spread, int | float) and spread > SPREAD_LIMIT and part in ("decode", "ctx") and name.count(".") > 1
            if wide and "spread_over_limit" not in (number.get("doubts") or []) and ".prefill." not in name and ".k1_" not in name:
                note = f"a spread of {spread:.1f} % carries no doubt; over {SPREAD_LIMIT:.0f} % no median may be a headline"
                ledger.add(f"{name} (doubt)", "differs", place="result.json", note=note)


def decode(raw: Raw, ledger: Ledger, kept: list[Request], place: str) -> None:
    names = list(dict.fromkeys(str(request.get("prompt_id")) for request in kept))
    replies = raw.lines("replies-decode.jsonl")
    texts = {row.get("id"): f"{row.get('reasoning', '')}{row.get('text', '')}" for _, row in replies or []}
    medians: list[float | None] = []
    spreads: list[float] = []
    words: list[float | None] = []
    letters: list[float | None] = []
    windows: list[float | None] = []
    for name in names:
        mine = [request for request in kept if str(request.get("prompt_id")) == name]
        values = known([rate(request) for request in mine])
        spread = variation_pct(values)
        spreads += [spread] if spread is not None else []
        medians.append(middle(values))
        where = f"{place}: lines {', '.join(str(request.line) for request in mine)}"
        ledger.number(f"decode.{name}.tokens_per_s", medians[-1], where, n=len(values), spread_pct=spread)
        ledger.number(f"decode.{name}.spread_pct", spread, where)
        if f"decode.{name}.k1_tokens_per_s" in ledger.numbers:
            sure = all(request.get("k1_source") not in (None, "", "assumed") for request in mine)
            truer = middle(known([truer_rate(request) for request in mine])) if sure else None
            ledger.number(f"decode.{name}.k1_tokens_per_s", truer, where)
        timed = [
            (request, (request.last or 0) - (request.first or 0))
            for request in mine
            if rate(request) and request.get("id") in texts
        ]
        words.append(middle(len(texts[request.get("id")].split()) / span for request, span in timed))
        letters.append(middle(len(texts[request.get("id")]) / span for request, span in timed))
        windows.append(middle(known([window(request) for request in mine])))
    whole = average(known(medians)) if medians and None not in medians else None
    ledger.number("decode.tokens_per_s", whole, place)
    ledger.number("decode.spread_pct", max(spreads) if spreads else None, place)
    if replies is None:
        for name in ("decode.words_per_s", "decode.characters_per_s", "decode.words_500_s"):
            ledger.skip(name, f"replies-decode.jsonl is {'held back' if 'replies-decode.jsonl' in raw.held else 'not there'}")
    else:
        pace = average(known(words)) if words and None not in words else None
        ledger.number("decode.words_per_s", pace, "replies-decode.jsonl")
        ledger.number(
            "decode.characters_per_s", average(known(letters)) if letters and None not in letters else None, "replies-decode.jsonl"
        )
        ledger.number("decode.words_500_s", 500 / pace if pace else None, "replies-decode.jsonl")
    if "decode.window1.tokens_per_s" in ledger.numbers:
        ledger.number("decode.window1.tokens_per_s", average(known(windows)) if windows and None not in windows else None, place)
    drafts(ledger, kept, place)


def drafts(ledger: Ledger, kept: list[Request], place: str) -> None:
    """Accepted of drafted, and tokens a step, over the counting decode runs."""
    told = [request.get("extras", {}).get("drafts") for request in kept]
    counts = [item for item in told if isinstance(item, dict)]
    if not counts or len(counts) < len(kept):
        ledger.rest(("drafts",), "not every run tells its drafts")
        return
    drafted, accepted = sum(item["drafted"] for item in counts), sum(item["accepted"] for item in counts)
    tokens = sum(request.tokens or 0 for request in kept)
    ledger.number("drafts.acceptance_pct", 100 * accepted / drafted if drafted else None, place)
    ledger.number("drafts.mean_accepted_length", tokens / (tokens - accepted) if drafted and tokens > accepted else None, place)


def grouped(kept: list[Request], key: str) -> dict[int, list[Request]]:
    out: dict[int, list[Request]] = {}
    for request in kept:
        if isinstance(value := request.detail.get(key), int):
            out.setdefault(value, []).append(request)
    return out


def prefill(raw: Raw, ledger: Ledger, kept: list[Request], place: str) -> None:
    for depth, mine in grouped(kept, "depth").items():
        where = f"{place}: lines {', '.join(str(request.line) for request in mine)}"
        values = known([reading(request) for request in mine])
        ledger.number(f"prefill.{depth}.tokens_per_s", middle(values), where, n=len(values), spread_pct=variation_pct(values))
        ledger.number(f"prefill.{depth}.ttft_s", middle(known([request.first for request in mine])), where)


def at_once(raw: Raw, ledger: Ledger, kept: list[Request], place: str) -> None:
    for level, mine in grouped(kept, "level").items():
        totals: list[float] = []
        singles: list[float] = []
        for step in dict.fromkeys(request.get("step") for request in mine):
            group = [request for request in mine if request.get("step") == step]
            if any(request.tokens is None or not request.last for request in group):
                continue
            starts = [float(request.get("offset_s", 0.0)) for request in group]
            ends = [start + (request.last or 0.0) for start, request in zip(starts, group, strict=True)]
            span = max(ends) - min(starts)
            totals += [sum(request.tokens or 0 for request in group) / span] if span > 0 else []
            singles += known([average((request.tokens or 0) / (request.last or 1.0) for request in group)])
        where = f"{place}: lines {mine[0].line} to {mine[-1].line}"
        ledger.number(f"conc.{level}.total_tokens_per_s", middle(totals), where)
        ledger.number(f"conc.{level}.request_tokens_per_s", middle(singles), where)


def long_prompts(raw: Raw, ledger: Ledger, kept: list[Request], place: str) -> None:
    for depth, mine in grouped(kept, "depth").items():
        where = f"{place}: lines {mine[0].line} to {mine[-1].line}"
        ledger.number(f"ctx.{depth}.prefill.tokens_per_s", middle(known([reading(request) for request in mine])), where)
        ledger.number(f"ctx.{depth}.ttft_s", middle(known([request.first for request in mine])), where)
        for name in dict.fromkeys(str(request.get("prompt_id")) for request in mine):
            values = known([rate(request) for request in mine if str(request.get("prompt_id")) == name])
            ledger.number(f"ctx.{depth}.decode.{name}.tokens_per_s", middle(values), where, spread_pct=variation_pct(values))
