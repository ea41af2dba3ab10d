"""Recounts quality: verdicts against replies and finish reasons, counts, margins, medians; letters are read again."""

from __future__ import annotations

import re
from typing import Any

from homestretch.lab.check.arithmetic import middle, wilson
from homestretch.lab.check.ledger import Ledger
from homestretch.lab.check.raw import Raw, Request, counting

LETTER_PARTS = ("mmlupro", "gpqa", "think")
NAMED = re.compile(r"answer(?:\s+is|\s*[:=])?\s*[:=]?\s*[*_`$(\[{\\a-z]*?\b([A-J])\b(?!['’])", re.IGNORECASE)
ALONE = re.compile(r"^[\s*_`$(\[{\"']*(?:\\boxed\{)?(?:option\s+)?([A-Ja-j])[\s*_`$)\]}\"'.:]*$")
THOUGHT = re.compile(r"^.*</think>", re.DOTALL)


def spoken(text: str) -> str:
    """A reply without its thinking; an unclosed thinking block leaves nothing."""
    rest = THOUGHT.sub("", text)
    return "" if "<think>" in rest else rest.strip()


def plain_letter(text: str) -> str | None:
    """The letter of a reply in which it cannot be missed: alone, or after the last "answer is". None where it takes judgement."""
    if found := ALONE.match(text):
        return found[1].upper()
    named = NAMED.findall(text)
    return named[-1].upper() if named else None


def recount(raw: Raw, ledger: Ledger, part: str) -> None:
    """Counts of `answers-PART.jsonl` against `result.json`, and each verdict against its request and reply."""
    name = f"answers-{part}.jsonl"
    rows = raw.lines(name)
    if rows is None:
        ledger.rest((part,), f"{name} is {'held back' if name in raw.held else 'not there'}")
        return
    requests = raw.requests(part)
    replies = raw.lines(f"replies-{part}.jsonl")
    if requests is None:
        ledger.skip(
            f"{part}: verdicts", f"requests-{part}.jsonl is {'held back' if f'requests-{part}.jsonl' in raw.held else 'not there'}"
        )
    else:
        verdicts(ledger, part, rows, counting(requests), replies)
        if replies is None:
            ledger.skip(
                f"{part}: replies graded again",
                f"replies-{part}.jsonl is {'held back' if f'replies-{part}.jsonl' in raw.held else 'not there'}",
            )
    if part == "ruler":
        for depth in dict.fromkeys((row.get("detail") or {}).get("depth") for _, row in rows):
            mine = [row for _, row in rows if (row.get("detail") or {}).get("depth") == depth]
            counts(ledger, f"ruler.{depth}", mine, name)
            for task in dict.fromkeys((row.get("detail") or {}).get("task") for row in mine):
                those = [row for row in mine if (row.get("detail") or {}).get("task") == task]
                key = f"ruler.{depth}.{task}.right"
                if key in ledger.numbers:
                    ledger.number(key, sum(row.get("verdict") == "right" for row in those), name)
        return
    counts(ledger, part, [row for _, row in rows], name)
    if part == "ifeval" and "ifeval.loose_right" in ledger.numbers:
        loose = sum(bool((row.get("detail") or {}).get("loose_pass")) for _, row in rows)
        ledger.number("ifeval.loose_right", loose, name)
        ledger.number("ifeval.loose_right_pct", 100 * loose / len(rows) if rows else None, name)
    if part == "think":
        ledger.number("think.median_s", middle([row["seconds"] for _, row in rows if row.get("seconds") is not None]), name)


def counts(ledger: Ledger, prefix: str, rows: list[dict[str, Any]], place: str) -> None:
    """Every count of one test, its share and its margin."""
    asked = len(rows)
    tally = {key: sum(row.get("verdict") == key for row in rows) for key in ("right", "cut")}
    half, low, high = wilson(tally["right"], asked) if asked else (0.0, 0.0, 0.0)
    ledger.number(f"{prefix}.right_pct", 100 * tally["right"] / asked if asked else None, place, low=low, high=high)
    ledger.number(f"{prefix}.margin_pts", half, place)
    ledger.number(f"{prefix}.right", tally["right"], place)
    ledger.number(f"{prefix}.asked", asked, place)
    ledger.number(f"{prefix}.cut_off", tally["cut"], place)
    for key, verdict in (("unparsed", "unparsed"), ("errors", "error"), ("empty", "empty"), ("timeouts", "timeout")):
        if f"{prefix}.{key}" in ledger.numbers:
            ledger.number(f"{prefix}.{key}", sum(row.get("verdict") == verdict for row in rows), place)
    tokens = [row["tokens"] for row in rows if row.get("tokens") is not None]
    if f"{prefix}.median_tokens" in ledger.numbers:
        ledger.number(f"{prefix}.median_tokens", middle(tokens), place)
    if f"{prefix}.share_pct" in ledger.numbers:
        shares = [float((row.get("detail") or {}).get("share", 0.0)) for row in rows]
        ledger.number(f"{prefix}.share_pct", 100 * sum(shares) / len(shares) if shares else None, place)


def verdicts(
    ledger: Ledger,
    part: str,
    rows: list[tuple[int, dict[str, Any]]],
    requests: list[Request],
    replies: list[tuple[int, dict[str, Any]]] | None,
) -> None:
    """Row by row: asked once, the verdict fits the finish reason, tokens are those of usage, the letter is the reply's."""
    asked = {str(request.detail.get("row", request.get("id"))): request for request in requests}
    texts = {row.get("id"): str(row.get("text", "")) for _, row in replies or []}
    names = [str(row.get("row")) for _, row in rows]
    problem = ""
    line = 0
    if len(set(names)) != len(names):
        problem, line = "a question is answered twice", 1
    elif lone := set(names) ^ set(asked):
        problem, line = f"question {sorted(lone)[0]} has a request or an answer, not both", 1
    for number, row in rows:
        if problem:
            break
        request = asked[str(row.get("row"))]
        line = number
        problem = fits(row, request) or (again(part, row, request, texts.get(request.get("id"))) if replies is not None else "")
    ledger.holds(
        f"{part}: verdicts",
        not problem,
        place=f"answers-{part}.jsonl: line {line}" if problem else f"answers-{part}.jsonl",
        note=problem,
    )


def fits(row: dict[str, Any], request: Request) -> str:
    """Why a verdict cannot be that of its request, "" if it can."""
    finish = request.get("finish_reason")
    verdict = row.get("verdict")
    if row.get("finish_reason") not in (None, finish):
        return f"it ended with {finish!r} by its request, {row.get('finish_reason')!r} by its answer"
    limit = (request.get("settings") or {}).get("max_tokens")
    cut = finish == "length" or (finish is None and request.tokens is not None and request.tokens == limit)
    if cut and verdict != "cut":
        return f"it was cut off at its limit, the verdict says {verdict}"
    if verdict == "cut" and not cut:
        return "the verdict says cut off, its request ended by itself"
    if row.get("tokens") is not None and request.tokens is not None and row["tokens"] != request.tokens:
        return f"its answer says {row['tokens']} tokens, usage says {request.tokens}"
    seconds = row.get("seconds")
    if (
        seconds is not None
        and request.get("end_s")
        and request.last
        and not (request.last - 0.01 <= seconds <= request.get("end_s") + 0.5)
    ):
        return f"its answer says {seconds:.2f} s, its request took {request.get('end_s'):.2f} s"
    return ""


def again(part: str, row: dict[str, Any], request: Request, text: str | None) -> str:
    """What the reply itself says against the verdict, "" if nothing: an empty reply, a letter, references, code."""
    verdict = row.get("verdict")
    if text is None or verdict not in ("right", "wrong", "unparsed", "empty"):
        return ""
    said = spoken(text)
    if not said and verdict in ("right", "wrong"):
        return f"its reply is empty, the verdict says {verdict}"
    if said and verdict == "empty":
        return "its reply is not empty, the verdict says it is"
    if part == "ruler" and isinstance(request.detail.get("references"), list):
        return references(row, request.detail, said)
    if part == "lcb":
        fences = sum(line.lstrip().startswith("```") for line in said.splitlines())
        return "its reply holds no code, the verdict says right" if verdict == "right" and fences < 2 else ""
    return letter(row, request, said) if part in LETTER_PARTS else ""


def references(row: dict[str, Any], detail: dict[str, Any], said: str) -> str:
    """Long text: right when every reference (for questions: any) stands in the reply, whatever its case."""
    hits = [str(item).casefold() in said.casefold() for item in detail["references"]]
    right = all(hits) if detail.get("every") else any(hits)
    if right != (row.get("verdict") == "right"):
        return f"{sum(hits)} of {len(hits)} references stand in its reply, the verdict says {row.get('verdict')}"
    return ""


def letter(row: dict[str, Any], request: Request, said: str) -> str:
    """Whether the letter that the reply plainly gives contradicts the verdict, "" if not."""
    verdict = row.get("verdict")
    mine = plain_letter(said)
    options = request.detail.get("options")
    if isinstance(options, int) and mine is not None and mine not in "ABCDEFGHIJ"[:options]:
        mine = None
    if mine is None:
        return ""
    stored, detail = str(row.get("answer", "")), row.get("detail") or {}
    if verdict in ("right", "wrong") and stored and mine != stored:
        return f"its reply says {mine}, the answer row {stored}"
    key = detail.get("key", request.detail.get("key"))
    if isinstance(key, str) and len(key) == 1 and verdict in ("right", "wrong") and (mine == key) != (verdict == "right"):
        return f"its reply says {mine}, the key is {key}, the verdict says {verdict}"
    return ""
