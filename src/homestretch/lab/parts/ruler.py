"""Long text: four kinds of tasks after RULER, ten of each at each length, filled by the served tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homestretch.lab.asking import Question as Asked
from homestretch.lab.asking import QuestionPart, counts, notes, numbers_of
from homestretch.lab.client import try_json
from homestretch.lab.context import Step
from homestretch.lab.data import fetch, hotpot, longtext, words
from homestretch.lab.errors import Undecided, WrongUse
from homestretch.lab.exchange import Ask
from homestretch.lab.graders import ruler
from homestretch.lab.parts import Example, FakeAnswer, NumberSpec
from homestretch.lab.progress import Progress
from homestretch.lab.types import Answer, Contract, Number, RequestRecord, Sourced

if TYPE_CHECKING:
    from homestretch.lab.context import Context
    from homestretch.lab.options import Options

DEPTHS, EACH = (8192, 32_768), 10
HOUSE_DEPTHS, HOUSE_EACH = (1024, 2048, 4096), 2
REPLY_TOKENS = 128
FEWEST_SHARE = 0.98
TEMPLATE_ROOM = 48  # tokens of a chat template whose length the server does not tell


class Ruler(QuestionPart):
    name = "ruler"
    asks = "Does it find and follow what stands in a long text?"
    numbers = (
        *numbers_of("ruler.DEPTH"),
        NumberSpec(name="ruler.DEPTH.TASK.right", unit="answers", digits=0, meaning="right answers of one kind of task"),
        NumberSpec(
            name="ruler.DEPTH.share_pct", unit="%", digits=1, meaning="mean share of the references found; partial answers count"
        ),
    )
    set_name = "hotpot"
    grader = ruler.VERSION
    limit = REPLY_TOKENS
    house_limit = REPLY_TOKENS

    def settings(self, options: Options) -> dict[str, Sourced]:
        where = options.data
        house = where is not None and str(where) == fetch.HOUSE
        file = None if house else fetch.bring(self.set_name, where, say=Progress().say)
        depths, each = (HOUSE_DEPTHS, HOUSE_EACH) if house else (DEPTHS, EACH)
        source = f"default of the {'house' if house else 'public'} set"
        lengths, cut = self._that_fit(depths, options.window)
        name = fetch.HOUSE if file is None else file.name
        origin = "made up by hash" if file is None else file.origin
        return {
            "set": Sourced(value=name, source=options.source("data")),
            "set_file": Sourced(value="" if file is None else file.file, source=origin),
            "set_revision": Sourced(value="" if file is None else file.revision, source=origin),
            "set_sha256": Sourced(value="" if file is None else file.sha256, source=origin),
            "place": Sourced(
                value=str(where.resolve() if where.is_dir() else where) if where else "hub", source=options.source("data")
            ),
            "lengths": Sourced(value=list(lengths), source=source + cut),
            "each": Sourced(value=each, source=source),
            "max_tokens": Sourced(value=options.limits.get("ruler", REPLY_TOKENS), source=source),
            "seed": Sourced(value=options.seed, source=options.source("seed")),
            "thinking": Sourced(value=False, source="the part"),
            "at_once": Sourced(value=options.at_once, source=options.source("at_once")),
            "grader": Sourced(value=self.grader, source="the part"),
            "generator": Sourced(value=longtext.VERSION, source="the part"),
        }

    def _that_fit(self, depths: tuple[int, ...], window: int | None) -> tuple[tuple[int, ...], str]:
        """Lengths the window holds, and how to say that some were left out. WrongUse when it holds none."""
        fit = tuple(depth for depth in depths if window is None or depth <= window)
        if not fit:
            raise WrongUse(
                f"part ruler: the window of {window} tokens holds none of its lengths ({', '.join(map(str, depths))}); "
                "serve a larger window or leave the part out of --parts"
            )
        left_out = ", ".join(str(depth) for depth in depths if depth not in fit)
        return fit, f"; {left_out} left out, the window holds {window} tokens" if left_out else ""

    def hashes(self, options: Options) -> dict[str, str]:
        where = options.data
        listed = {f"data/words/{name}": digest for name, digest in words.PINNED.items()}
        return (
            listed
            if where is not None and str(where) == fetch.HOUSE
            else {**listed, "data/ruler": fetch.bring(self.set_name, where).sha256}
        )

    def plan(self, contract: Contract) -> tuple[str, ...]:
        return tuple(
            f"{depth}-{kind}-{index}"
            for depth in contract.settings["ruler.lengths"].value
            for kind in longtext.KINDS
            for index in range(contract.settings["ruler.each"].value)
        )

    def questions(self, file: fetch.SetFile) -> list[Asked]:
        return []  # made for a length and a tokenizer, in `run`

    def run(self, context: Context) -> None:
        contract, done = context.contract, context.folder.steps_done(self.name)
        limit, seed = int(context.setting("max_tokens")), int(context.setting("seed"))
        rows: list[longtext.QuestionRow] = []
        if context.setting("set") != fetch.HOUSE:
            rows = hotpot.read(self.file(contract).path, 10 * max(DEPTHS) // 80)
        count = prompt_counter(context)
        for depth in context.setting("lengths"):
            steps = []
            context.progress.say(f"ruler: writing {len(longtext.KINDS) * context.setting('each')} texts of {depth} tokens")
            for kind in longtext.KINDS:
                for index in range(context.setting("each")):
                    name = f"{depth}-{kind}-{index}"
                    if name in done:
                        steps.append(Step(id=name, asks=(), guarded=False))
                        continue
                    make = longtext.maker(kind, seed, index, depth, rows)
                    text, tokens = longtext.fill(make, depth - limit, count)
                    steps.append(self._long_step(context, name, kind, depth, limit, text, tokens))
            context.steps(steps, at_once=int(context.setting("at_once")))

    def _long_step(
        self, context: Context, name: str, kind: str, depth: int, limit: int, text: longtext.LongText, tokens: int
    ) -> Step:
        body = context.body(messages=[{"role": "user", "content": text.text}], max_tokens=limit, thinking=False)
        detail = {
            "row": name,
            "depth": depth,
            "task": kind,
            "references": list(text.references),
            "every": text.every,
            "text_sha256": hashlib.sha256(text.text.encode()).hexdigest(),
        }
        ask = Ask(body=body, prompt_id=name, prompt_tokens=tokens, prompt_tokens_source=context.tokens.source, detail=detail)
        return Step(id=name, asks=(ask,), guarded=False)

    # --- scoring -------------------------------------------------------------------------------------------------------------

    def grade(self, text: str, record: RequestRecord) -> tuple[str, str, str, dict[str, Any]]:
        references = record.detail["references"]
        found = ruler.score(text, references, bool(record.detail["every"]))
        reason = "" if found.right else f"{round(found.share * len(references))} of {len(references)} found"
        return ("right" if found.right else "wrong"), reason, "", {"share": found.share, "prompt_tokens": record.prompt_tokens}

    def numbers_from(self, answers: Sequence[Answer], source: str) -> dict[str, Number]:
        found: dict[str, Number] = {}
        for depth in dict.fromkeys(answer.detail["depth"] for answer in answers):
            mine = [answer for answer in answers if answer.detail["depth"] == depth]
            found |= counts(f"ruler.{depth}", mine, source)
            share = sum(float(answer.detail.get("share", 0.0)) for answer in mine) / len(mine)
            found[f"ruler.{depth}.share_pct"] = Number(value=100.0 * share, unit="%", n=len(mine), source=source)
            for kind in longtext.KINDS:
                those = [answer for answer in mine if answer.detail["task"] == kind]
                right = sum(answer.verdict == "right" for answer in those)
                found[f"ruler.{depth}.{kind}.right"] = Number(value=right, unit="answers", n=len(those), source=source)
        return found

    def notes_from(self, answers: Sequence[Answer], contract: Contract) -> list[str]:
        lines = notes(answers)
        if "left out" in (source := contract.settings["ruler.lengths"].source):
            lines.append(f"Lengths in tokens: {source.partition('; ')[2]}.")
        depths = list(dict.fromkeys(answer.detail["depth"] for answer in answers))
        told = []
        for kind in longtext.KINDS:
            parts = []
            for depth in depths:
                those = [answer for answer in answers if (answer.detail["depth"], answer.detail["task"]) == (depth, kind)]
                parts.append(f"{sum(answer.verdict == 'right' for answer in those)} of {len(those)}")
            told.append(f"{longtext.LABELS[kind]} {' and '.join(parts)}")
        where = " and ".join(f"{depth // 1024}K" for depth in depths)
        lines.append(f"By task at {where}: {'; '.join(told)}.")
        limit = contract.settings["ruler.max_tokens"].value
        for depth in depths:
            tokens = [t for answer in answers if answer.detail["depth"] == depth and (t := answer.detail.get("prompt_tokens"))]
            over = sum(t > depth - limit for t in tokens)
            if over:
                lines.append(f"At {depth} tokens, {over} prompts were longer than planned, by the server's count.")
            if tokens and min(tokens) < FEWEST_SHARE * (depth - limit):
                lines.append(f"At {depth} tokens, prompts were filled to {100 * min(tokens) / (depth - limit):.1f} % at least.")
        return lines

    def example(self) -> Example:
        """A server that always says the same: nothing is found in any text."""
        return Example(
            options={"parts": ("ruler",), "data": Path(fetch.HOUSE)},
            answers=(FakeAnswer(match="", text="I do not know."),),
            numbers={"ruler.1024.asked": 8, "ruler.1024.right": 0, "ruler.4096.multikey.right": 0, "ruler.2048.share_pct": 0.0},
        )


def prompt_counter(context: Context) -> Callable[[str], int]:
    """Tokens of the whole prompt that holds one user message: counted text plus the template's own, else the server's usage.

    Undecided when neither can be known.
    """

    def usage(text: str) -> int:
        body = context.body(messages=[{"role": "user", "content": text}], max_tokens=1, stream=False)
        answer = try_json(context.target, "/chat/completions", body, timeout_s=context.retry.total_s)
        told = answer.get("usage") if isinstance(answer, dict) else None
        tokens = told.get("prompt_tokens") if isinstance(told, dict) else None
        if not isinstance(tokens, int):
            raise Undecided("prompt tokens cannot be counted: the server sends no usage for a short request; give --tokenizer-json")
        return tokens

    if not context.tokens.counts:
        return usage
    probe = "How long is this prompt?"
    try:
        template = usage(probe) - (context.tokens.count(probe) or 0)
    except Undecided:
        template = TEMPLATE_ROOM

    def counted(text: str) -> int:
        tokens = context.tokens.count(text)
        if tokens is None:
            raise Undecided(f"{context.tokens.source} stopped counting tokens")
        return tokens + template

    return counted


PART = Ruler()
