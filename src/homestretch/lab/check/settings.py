"""The contract against the requests as sent: model, sampling, seed, limits, thinking, prompt lengths, cached tokens, steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.raw import Raw, Request, Unreadable, counting

SPEED = ("decode", "prefill", "conc", "ctx")
SHARE_OFF, SECONDS_OFF = 0.25, 0.25


def reached(body: dict[str, Any], path: str) -> Any:
    """The value at a dotted path of a request body, None where it was not sent."""
    value: Any = body
    for piece in path.split("."):
        value = value.get(piece) if isinstance(value, dict) else None
    return value


def compare(raw: Raw, ledger: Ledger, part: str, contract: dict[str, Any]) -> None:
    """All points for one part; each names the first request that differs."""
    name = f"requests-{part}.jsonl"
    found = raw.requests(part)
    if found is None:
        if name in raw.held:
            ledger.skip(f"{part}: contract against requests", f"{name} is held back")
        else:
            ledger.add(f"{part}: contract against requests", "differs", place=name, note=f"{name} is missing")
        return
    settings = {key: item.get("value") for key, item in contract.get("settings", {}).items() if isinstance(item, dict)}
    sent_well(ledger, part, name, found, contract, settings)
    stamps(ledger, part, name, found)
    if part in SPEED:
        cached(ledger, part, name, found, settings)
        steps(ledger, part, name, found, settings)
    replies(raw, ledger, part, found)


def sent_well(
    ledger: Ledger, part: str, name: str, found: list[Request], contract: dict[str, Any], settings: dict[str, Any]
) -> None:
    wanted: dict[str, Any] = {"model": contract.get("model")}
    wanted |= {key.removeprefix("sampling."): value for key, value in settings.items() if key.startswith("sampling.")}
    if settings.get("request.seed") is not None:
        wanted["seed"] = settings["request.seed"]
    limit = settings.get(f"{part}.max_tokens", settings.get(f"{part}.limit"))
    if isinstance(limit, int):
        wanted["max_tokens"] = limit
    for key, value in wanted.items():
        if value is None:
            continue
        wrong = [request for request in found if not equal(reached(request.get("settings", {}), key), due(request, key, value))]
        where = f"{name}: line {wrong[0].line}" if wrong else name
        note = f"the contract says {value!r}, {len(wrong)} of {len(found)} requests sent otherwise" if wrong else ""
        ledger.holds(f"{part}: {key} as sent", not wrong, page=str(value), place=where, note=note)
    field = settings.get("thinking.field") or (contract.get("card") or {}).get("thinking", {}).get("field")
    if field:
        asked = settings.get(f"{part}.thinking", True if part == "think" else None if part == "gauntlet" else False)
        values = {reached(request.get("settings", {}), str(field)) for request in found}
        if asked is not None:
            wrong = [request for request in found if reached(request.get("settings", {}), str(field)) is not asked]
            where = f"{name}: line {wrong[0].line}" if wrong else name
            note = f"thinking should be {'on' if asked else 'off'}, the requests sent {sorted(map(str, values))}"
            ledger.holds(f"{part}: thinking as sent", not wrong, page="on" if asked else "off", place=where, note=note)


def due(request: Request, key: str, value: Any) -> Any:
    """What a request must have sent: the contract's value, or a limit cut to what its window leaves.

    A question's record says so itself; in the memory test a small window leaves size − prompt tokens.
    """
    cut = request.detail.get("limit_cut_to_window")
    size, prompt = request.detail.get("size"), request.get("prompt_tokens")
    if request.get("part") == "fit" and isinstance(size, int) and isinstance(prompt, int) and size > prompt:
        cut = min(size - prompt, value) if isinstance(value, int) else None
    return cut if key == "max_tokens" and isinstance(cut, int) and isinstance(value, int) and cut < value else value


def equal(sent: Any, value: Any) -> bool:
    if isinstance(sent, bool) or isinstance(value, bool):
        return sent is value
    return bool(sent == value)


def cached(ledger: Ledger, part: str, name: str, found: list[Request], settings: dict[str, Any]) -> None:
    """No cached prompt tokens beyond the template's own, or a doubt that says so."""
    prefix = settings.get("cache.template_prefix_tokens")
    allowed = prefix if isinstance(prefix, int) else 0
    over = [request for request in found if (request.cached or 0) > allowed]
    doubted = any(
        "cached_tokens" in (number.get("doubts") or [])
        for key, number in ledger.numbers.items()
        if key.startswith(f"{part}.") and isinstance(number, dict)
    )
    where = f"{name}: line {over[0].line}" if over else name
    ledger.holds(
        f"{part}: no cached prompt tokens",
        not over or doubted,
        place=where,
        note=f"{len(over)} requests had cached prompt tokens, and no doubt says so",
    )


def stamps(ledger: Ledger, part: str, name: str, found: list[Request]) -> None:
    """Stamps that cannot be: backwards in time, tokens that do not add up, a length that the server's own clock contradicts."""
    wrong = ""
    line = 0
    for request in found:
        events = request.get("events") or []
        times = [event[0] for event in events]
        shares = [event[2] for event in events if event[1] in ("content", "reasoning", "text", "tool", "finish")]
        carried = [share for share in shares if share is not None]
        spoken = [tokens for _, tokens in request.spoken]
        if any(later < earlier for earlier, later in pairwise(times)) or any(at < 0 for at in times):
            wrong = "its stamps run backwards"
        elif times and request.get("end_s", 0.0) < times[-1] - 1e-6:
            wrong = "it ends before its last event"
        elif spoken and None not in spoken and request.tokens is not None and sum(carried) != request.tokens:
            wrong = f"its events carry {sum(carried)} tokens, usage says {request.tokens}"
        elif (
            request.get("k1_source") not in (None, "", "assumed")
            and spoken
            and spoken[0] is not None
            and request.get("k1") != spoken[0]
        ):
            wrong = f"its first event carries {spoken[0]} tokens, k1 says {request.get('k1')}"
        elif clock := against_server(request):
            wrong = clock
        if wrong:
            line = request.line
            break
    ledger.holds(f"{part}: stamps and token shares", not wrong, place=f"{name}: line {line}" if wrong else name, note=wrong)


def against_server(request: Request) -> str:
    """A decode span that is far from the server's own, where it tells one."""
    told = request.get("extras", {}).get("timings")
    span = told.get("decode_s") if isinstance(told, dict) else None
    if (
        not isinstance(span, int | float)
        or request.first is None
        or request.last is None
        or not request.tokens
        or request.tokens < 32
    ):
        return ""
    mine = request.last - request.first
    if abs(mine - span) > max(SECONDS_OFF, SHARE_OFF * max(mine, span)):
        return f"its decode took {mine:.2f} s by its stamps, {span:.2f} s by the server's own clock"
    return ""


def steps(ledger: Ledger, part: str, name: str, found: list[Request], settings: dict[str, Any]) -> None:
    """Every step that the contract asks for is there and counts once; prompts have the length asked for."""
    kept = counting(found)
    have = {str(request.get("step")) for request in kept}
    due = planned(part, settings)
    missing = [step for step in due if step not in have]
    if due and any(step in have for step in due):
        note = f"step {missing[0]} and {len(missing) - 1} more have no attempt that counts" if missing else ""
        ledger.holds(f"{part}: every step of the contract", not missing, place=name, note=note)
    if part in ("prefill", "ctx"):
        short = [
            request
            for request in kept
            if isinstance(depth := request.detail.get("depth"), int) and request.get("prompt_tokens") not in (None, depth)
        ]
        where = f"{name}: line {short[0].line}" if short else name
        note = f"{len(short)} prompts do not have the length of their depth" if short else ""
        ledger.holds(f"{part}: prompt lengths", not short, place=where, note=note)
        told = [
            request
            for request in kept
            if request.get("prompt_tokens") is not None
            and (request.get("usage") or {}).get("prompt_tokens") not in (None, request.get("prompt_tokens"))
        ]
        where = f"{name}: line {told[0].line}" if told else name
        ledger.holds(
            f"{part}: prompt tokens by usage", not told, place=where, note="usage counts other prompt tokens than the record"
        )


def planned(part: str, settings: dict[str, Any]) -> list[str]:
    """Step names that the settings of a part stand for."""
    runs = range(1, int(settings.get(f"{part}.runs") or 0) + 1)
    if part == "decode":
        return [f"{prompt}-{run}" for prompt in settings.get("decode.prompt_ids") or [] for run in runs]
    if part == "prefill":
        return [f"{depth}-{run}" for depth in settings.get("prefill.depths") or [] for run in runs]
    if part == "conc":
        rounds = range(1, int(settings.get("conc.rounds") or 0) + 1)
        return [f"{level}-{turn}" for level in settings.get("conc.levels") or [] for turn in rounds]
    ids = settings.get("ctx.prompt_ids") or settings.get("decode.prompt_ids") or []
    return [f"{depth}-{prompt}-{run}" for depth in settings.get("ctx.depths") or [] for prompt in ids for run in runs]


def replies(raw: Raw, ledger: Ledger, part: str, found: list[Request]) -> None:
    """Each request has its reply and no reply stands alone; ids are unique."""
    name = f"replies-{part}.jsonl"
    try:
        rows = raw.lines(name)
    except Unreadable as error:
        ledger.add(f"{part}: replies", "differs", place=name, note=str(error))
        return
    if rows is None:
        if name in raw.held:
            ledger.skip(f"{part}: replies", f"{name} is held back: {raw.held[name]}")
        else:
            ledger.add(f"{part}: replies", "differs", place=name, note=f"{name} is missing")
        return
    asked = [request.get("id") for request in found]
    told = [row.get("id") for _, row in rows]
    double = len(asked) != len(set(asked)) or len(told) != len(set(told))
    lone = set(asked) ^ set(told)
    note = "an id stands twice" if double else f"{sorted(map(str, lone))[0]} has no partner" if lone else ""
    ledger.holds(f"{part}: replies", not double and not lone, place=name, note=note)
