"""What all quality parts share: fixed questions asked several at once, verdicts, numbers and notes made from counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from homestretch.lab import quietly, seen
from homestretch.lab.context import Step
from homestretch.lab.data import fetch
from homestretch.lab.errors import BrokenRun
from homestretch.lab.exchange import Ask
from homestretch.lab.graders.thinking import strip_thinking
from homestretch.lab.parts import NumberSpec, Part, Scored
from homestretch.lab.progress import Progress
from homestretch.lab.stats import median, wilson, wilson_half_width
from homestretch.lab.types import Answer, Contract, Number, ReplyRecord, RequestRecord, Sourced

if TYPE_CHECKING:
    from homestretch.lab.context import Context
    from homestretch.lab.options import Options
    from homestretch.lab.records import RunFolder

KEPT_DETAIL = ("key", "depth", "task", "limit_cut_to_window")
REPLY_ROOM = 64  # tokens kept free when an answer limit has to be cut to what the window leaves
Grade = Callable[[str, RequestRecord], tuple[str, str, str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question. detail: what scoring needs, without text of the question; it is written into the requests file."""

    row: str
    messages: tuple[Mapping[str, Any], ...]
    detail: Mapping[str, Any] = field(default_factory=dict)


def numbers_of(part: str, *more: NumberSpec) -> tuple[NumberSpec, ...]:
    """The counts that every quality part makes."""
    return (
        NumberSpec(
            name=f"{part}.right_pct", unit="%", digits=1, meaning="right answers of those asked; low and high: Wilson, 95 %"
        ),
        NumberSpec(name=f"{part}.margin_pts", unit="pts", digits=1, meaning="half of the Wilson interval"),
        NumberSpec(name=f"{part}.right", unit="answers", digits=0, meaning="right answers"),
        NumberSpec(name=f"{part}.asked", unit="answers", digits=0, meaning="questions asked"),
        NumberSpec(name=f"{part}.cut_off", unit="answers", digits=0, meaning="answers cut off at their limit; they count as wrong"),
        NumberSpec(name=f"{part}.unparsed", unit="answers", digits=0, meaning="answers in which nothing could be read; wrong"),
        NumberSpec(
            name=f"{part}.empty", unit="answers", digits=0, meaning="answers without text, unclosed thinking among them; wrong"
        ),
        NumberSpec(
            name=f"{part}.errors", unit="answers", digits=0, meaning="questions the server never answered; they void the part"
        ),
        NumberSpec(name=f"{part}.median_tokens", unit="tokens", digits=0, meaning="median tokens of an answer"),
        *more,
    )


class QuestionPart(Part):
    """A part that asks the rows of a set. Subclasses name the set, its limits, and how a question is put and graded."""

    group = "quality"
    set_name: ClassVar[str]
    limit: ClassVar[int]
    house_limit: ClassVar[int]
    grader: ClassVar[int]
    thinking: ClassVar[bool] = False

    @abstractmethod
    def questions(self, file: fetch.SetFile) -> list[Question]:
        """The fixed questions of the set, in the order they are asked."""

    @abstractmethod
    def grade(self, text: str, record: RequestRecord) -> tuple[str, str, str, dict[str, Any]]:
        """(verdict, reason, answer, detail) of a reply that is neither cut nor empty, thinking already taken out."""

    def prepare(self, options: Options) -> dict[str, Sourced]:
        """Further settings of the part."""
        return {}

    def settings(self, options: Options) -> dict[str, Sourced]:
        where = options.data
        file = fetch.bring(self.set_name, where, say=Progress().say)
        house = file.name == fetch.HOUSE
        limit = self.house_limit if house else self.limit
        source = options.source("data")
        rows = [question.row for question in self.questions(file)]
        return {
            "set": Sourced(value=file.name, source=source),
            "set_file": Sourced(value=file.file, source=file.origin),
            "set_revision": Sourced(value=file.revision, source=file.origin),
            "set_sha256": Sourced(value=file.sha256, source=file.origin),
            "place": Sourced(value=str(where.resolve() if where.is_dir() else where) if where else "hub", source=source),
            "rows": Sourced(value=rows, source="chosen by hash of the row id, docs/quality.md"),
            "max_tokens": Sourced(
                value=options.limits.get(self.name, limit),
                source=f"--limit {self.name}"
                if self.name in options.limits
                else f"default of the {'house' if house else 'public'} set",
            ),
            "thinking": Sourced(value=self.thinking, source="the part"),
            "at_once": Sourced(value=options.at_once, source=options.source("at_once")),
            "grader": Sourced(value=self.grader, source="the part"),
            **self.prepare(options),
        }

    def hashes(self, options: Options) -> dict[str, str]:
        return {f"data/{self.name}": fetch.bring(self.set_name, options.data).sha256}

    def plan(self, contract: Contract) -> tuple[str, ...]:
        return tuple(contract.settings[f"{self.name}.rows"].value)

    def file(self, contract: Contract) -> fetch.SetFile:
        """The set of a contract, refused when its bytes are not those that the contract names."""
        told_of = {
            name: contract.settings[f"{self.name}.{name}"].value
            for name in ("place", "set", "set_file", "set_revision", "set_sha256")
        }
        place, told = str(told_of["place"]), told_of["set_sha256"]
        if place == "hub":
            file = fetch.again(str(told_of["set"]), str(told_of["set_file"]), str(told_of["set_revision"]))
        else:
            file = fetch.bring(self.set_name, Path(place))
        if file.sha256 != told:
            raise BrokenRun(
                f"{self.name}: the set at {place} has sha256 {file.sha256[:16]}…, the contract was made with {str(told)[:16]}…; "
                "bring the same file back, or begin a new run"
            )
        return file

    def run(self, context: Context) -> None:
        limit = int(context.setting("max_tokens"))
        window = context.contract.settings.get("server.window")
        room = window.value if window is not None and isinstance(window.value, int) else None
        wanted = set(context.setting("rows"))
        steps = [
            self._step(context, question, limit, room)
            for question in self.questions(self.file(context.contract))
            if question.row in wanted
        ]
        context.steps(steps, at_once=int(context.setting("at_once")))

    def _step(self, context: Context, question: Question, limit: int, window: int | None) -> Step:
        detail = {"row": question.row, **question.detail}
        text = "".join(str(message["content"]) for message in question.messages)
        if window is not None and len(text.encode()) + limit + REPLY_ROOM > window:  # a token has at least one byte
            used = (context.tokens.count(text) if context.tokens.counts else None) or len(text) // 2
            if used + limit + REPLY_ROOM > window:
                limit = max(1, window - used - REPLY_ROOM)
                detail["limit_cut_to_window"] = limit
        body = context.body(messages=question.messages, max_tokens=limit, thinking=self.thinking)
        return Step(id=question.row, asks=(Ask(body=body, prompt_id=question.row, detail=detail),), guarded=False)

    # --- scoring -------------------------------------------------------------------------------------------------------------

    def answers(self, run: RunFolder) -> list[Answer]:
        """One answer a question that came back, in the order of the contract's rows."""
        replies = run.replies(self.name)
        kept = {record.step: record for record in run.kept(self.name)}
        order = [row for row in self.plan(run.contract()) if row in kept]
        return [answer_to(kept[row], replies.get(kept[row].id, ReplyRecord(id=kept[row].id)), self.grade) for row in order]

    def score(self, run: RunFolder) -> Scored:
        contract = run.contract()
        kept = run.kept(self.name)
        part = seen.state(run, self.name, self.plan(contract), seen.date(kept))
        answers = self.answers(run)
        source = f"answers-{self.name}.jsonl, set {contract.settings[f'{self.name}.set'].value}"
        missing = len(self.plan(contract)) - len(answers)
        numbers = self.numbers_from(answers, source) if part.state == "done" else {}
        if part.state == "invalid":
            numbers = {f"{self.name}.errors": Number(value=missing, unit="answers", n=len(self.plan(contract)), source=source)}
        notes = [*self.notes_from(answers, contract), *quietly.notes(run, self.name)] if part.state == "done" else []
        detail = {"set": contract.settings[f"{self.name}.set"].value, "grader": self.grader, **self.detail_from(answers)}
        return Scored(
            part=msgspec.structs.replace(part, notes=notes, detail=detail),
            numbers=numbers,
            answers=tuple(answers),
            doubts=doubts_of(run, self.name, kept, self.thinking),
        )

    def numbers_from(self, answers: Sequence[Answer], source: str) -> dict[str, Number]:
        return counts(self.name, answers, source)

    def notes_from(self, answers: Sequence[Answer], contract: Contract) -> list[str]:
        return notes(answers)

    def detail_from(self, answers: Sequence[Answer]) -> dict[str, Any]:
        return {}


def answer_to(record: RequestRecord, reply: ReplyRecord, grade: Grade) -> Answer:
    """The verdict on one reply. Cut off comes before all else: a readable answer does not save it. Thinking is taken out first."""
    tokens = record.usage.completion_tokens if record.usage else None
    asked = record.settings.get("max_tokens")
    stripped = strip_thinking(reply.text)
    verdict, reason, answer = "", "", ""
    detail: dict[str, Any] = {name: record.detail[name] for name in KEPT_DETAIL if name in record.detail}
    if record.finish_reason == "length" or (record.finish_reason is None and tokens is not None and tokens == asked):
        verdict, reason = "cut", f"cut off at {tokens if tokens is not None else asked} tokens"
    elif not stripped.answer.strip():
        only = (
            "thinking that never ended"
            if stripped.unclosed
            else "thinking only"
            if stripped.thought or reply.reasoning
            else "no text"
        )
        verdict, reason = "empty", only
    else:
        verdict, reason, answer, more = grade(stripped.answer, record)
        detail |= more
    return Answer(
        row=str(record.detail["row"]),
        verdict=verdict,  # type: ignore[arg-type]
        reason=reason,
        answer=answer,
        tokens=tokens,
        finish_reason=record.finish_reason,
        seconds=record.end_s,
        detail=detail,
    )


def counts(prefix: str, answers: Sequence[Answer], source: str) -> dict[str, Number]:
    """The numbers of one test. Every answer that is not right is wrong for the rate; why is counted apart."""
    asked = len(answers)
    if not asked:
        return {}
    right = sum(answer.verdict == "right" for answer in answers)
    low, high = wilson(right, asked)

    def tally(verdict: str) -> Number:
        return Number(value=sum(answer.verdict == verdict for answer in answers), unit="answers", n=asked, source=source)

    found = {
        f"{prefix}.right_pct": Number(value=100.0 * right / asked, unit="%", n=asked, low=low, high=high, source=source),
        f"{prefix}.margin_pts": Number(value=wilson_half_width(right, asked), unit="pts", n=asked, source=source),
        f"{prefix}.right": tally("right"),
        f"{prefix}.asked": Number(value=asked, unit="answers", n=asked, source=source),
        f"{prefix}.cut_off": tally("cut"),
        f"{prefix}.unparsed": tally("unparsed"),
        f"{prefix}.empty": tally("empty"),
        f"{prefix}.errors": tally("error"),
    }
    tokens = [answer.tokens for answer in answers if answer.tokens is not None]
    if tokens:
        found[f"{prefix}.median_tokens"] = Number(value=median(tokens), unit="tokens", n=len(tokens), source=source)
    return found


def notes(answers: Sequence[Answer], unparsed: str = "had no letter that could be read") -> list[str]:
    """Sentences made from counts; only what happened is said."""
    several = {"unparsed": unparsed, "cut": "were cut off at their limit", "empty": "were empty", "timeout": "ran out of time"}
    lines = []
    for verdict, text in several.items():
        count = sum(answer.verdict == verdict for answer in answers)
        if count == 1:
            text = text.replace("were", "was").replace("their", "its")
        if count:
            lines.append(f"{count} of {len(answers)} answers {text} ({'counts' if count == 1 else 'count'} as wrong).")
    cut = sum("limit_cut_to_window" in answer.detail for answer in answers)
    return [*lines, *([f"{cut} answer limits were cut to what the window leaves."] if cut else [])]


def doubts_of(run: RunFolder, part: str, records: Sequence[RequestRecord], thinking: bool) -> dict[str, list[str]]:
    """Thinking that came back although it was off; settings that nobody knows."""
    found: dict[str, list[str]] = {}
    if not thinking and records:
        replies = run.replies(part)
        leaked = [r for r in records if (said := replies.get(r.id)) and (said.reasoning or strip_thinking(said.text).thought)]
        if leaked:
            found["thinking_leaked"] = [
                f"{part}: thinking came back in {len(leaked)} of {len(records)} replies, although it is off"
            ]
    contract = run.contract()
    unknown = [name for name in ("server.window", "server.slots", "server.version") if seen.setting(contract, name) in (None, "")]
    if not any(name.startswith("sampling.") for name in contract.settings):
        unknown.append("sampling")
    if unknown:
        found["settings_unknown"] = [f"not known: {', '.join(unknown)}"]
    return found
