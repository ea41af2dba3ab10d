"""LiveCodeBench: the 40 newest tasks; the code runs, in the sandbox, against hidden tests."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from homestretch.lab.asking import Question, QuestionPart, notes, numbers_of
from homestretch.lab.data import code
from homestretch.lab.data.fetch import HOUSE, SetFile, bring
from homestretch.lab.graders import lcb
from homestretch.lab.graders.thinking import strip_thinking
from homestretch.lab.parts import Example, FakeAnswer, NumberSpec
from homestretch.lab.progress import Progress
from homestretch.lab.sandbox import Sandbox, allow_unsafe, proven
from homestretch.lab.types import Answer, Contract, Number, ReplyRecord, RequestRecord, Sourced

if TYPE_CHECKING:
    from homestretch.lab.options import Options
    from homestretch.lab.records import RunFolder

NEWEST = 40
QUIET_SHARE, QUIET_WAIT_S = 0.5, 30.0


@lru_cache(maxsize=4)
def tasks(path: Path, newest: int | None) -> tuple[code.CodeTask, ...]:
    return tuple(code.read(path, newest))


class LiveCodeBench(QuestionPart):
    name = "lcb"
    asks = "Does the code it writes work?"
    numbers = (
        *numbers_of("lcb"),
        NumberSpec(
            name="lcb.timeouts", unit="answers", digits=0, meaning="programs that ran out of time twice; they count as wrong"
        ),
    )
    set_name = "lcb"
    grader = lcb.VERSION
    limit = 32_768
    house_limit = 2048

    def prepare(self, options: Options) -> dict[str, Sourced]:
        """Opens and attacks the sandbox before anything is asked: no isolation, no run."""
        allow_unsafe(options.unsafe_code_execution)
        Progress().say("lcb: attacking the sandbox in twelve ways before anything is asked (a few seconds)")
        return {
            "sandbox": Sourced(value=proven().report, source="self-test of 12 attacks before the run"),
            "test_s": Sourced(value=lcb.TEST_S, source="the part"),
            "comparison": Sourced(value="lines stripped; equal, or equal as decimals; no tolerance", source="the part"),
        }

    def _tasks(self, file: SetFile) -> tuple[code.CodeTask, ...]:
        return tasks(file.path, None if file.name == HOUSE else NEWEST)

    def questions(self, file: SetFile) -> list[Question]:
        return [
            Question(row=task.row, messages=tuple(task.messages()), detail={"tests": len(task.tests), "date": task.date})
            for task in self._tasks(file)
        ]

    def grade(self, text: str, record: RequestRecord) -> tuple[str, str, str, dict[str, Any]]:
        """Only whether there is code; the programs run together afterwards, in `answers`."""
        return ("wrong", "", "", {}) if lcb.extract_code(text) is not None else ("unparsed", "no code between two fences", "", {})

    def answers(self, run: RunFolder) -> list[Answer]:
        """Every program runs once, several beside each other; those that ran out of time once more, alone, on a quiet machine."""
        found = super().answers(run)
        replies = run.replies(self.name)
        texts = {
            record.step: strip_thinking(replies.get(record.id, ReplyRecord(id="")).text).answer for record in run.kept(self.name)
        }
        todo = [answer.row for answer in found if answer.verdict == "wrong"]
        if not todo:
            return found
        cage = proven()
        by_row = {task.row: task for task in self._tasks(self.file(run.contract()))}
        judged = self._judge(cage, [(by_row[row], texts[row]) for row in todo])
        return [self._with(answer, judged[answer.row]) if answer.row in judged else answer for answer in found]

    def _judge(self, cage: Sandbox, work: Sequence[tuple[code.CodeTask, str]]) -> dict[str, lcb.Judged]:
        progress = Progress()
        began, done = time.monotonic(), 0

        def one(item: tuple[code.CodeTask, str]) -> lcb.Judged:
            nonlocal done
            task, text = item
            judged = lcb.judge(cage, text, task.tests, task.function)
            done += 1
            if time.monotonic() - began > 2:
                progress.say(f"lcb: {done} of {len(work)} programs have run")
            return judged

        with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) // 2)) as pool:
            verdicts = {task.row: judged for (task, _), judged in zip(work, pool.map(one, work), strict=True)}
        for task, text in work:
            first = verdicts[task.row]
            if first.verdict == "timeout" and first.failed_test is not None:
                progress.say(f"lcb: {task.row} ran out of time; once more on a quiet machine")
                wait_for_quiet()
                verdicts[task.row] = lcb.judge(cage, text, task.tests, task.function, begin=first.failed_test)
        return verdicts

    def _with(self, answer: Answer, judged: lcb.Judged) -> Answer:
        return Answer(
            row=answer.row,
            verdict=judged.verdict,
            reason=judged.reason,
            tokens=answer.tokens,
            finish_reason=answer.finish_reason,
            seconds=answer.seconds,
            detail={**answer.detail, "passed_tests": judged.passed},
        )

    def numbers_from(self, answers: Sequence[Answer], source: str) -> dict[str, Number]:
        found = super().numbers_from(answers, source)
        timeouts = sum(answer.verdict == "timeout" for answer in answers)
        return {**found, "lcb.timeouts": Number(value=timeouts, unit="answers", n=len(answers), source=source)} if found else found

    def notes_from(self, answers: Sequence[Answer], contract: Contract) -> list[str]:
        report = contract.settings["lcb.sandbox"].value
        how = "without any isolation (--unsafe-code-execution)" if report["mode"] == "none" else f"in a sandbox ({report['mode']})"
        return [*notes(answers, "held no code"), f"The programs ran {how} with Python {report['python']}, {lcb.TEST_S:g} s a test."]

    def example(self) -> Example:
        """A server that solves the first task and no other."""
        first = self._tasks(bring(self.set_name, Path(HOUSE)))[0]
        text = "```python\nn = int(input())\nprint(sum(x for x in map(int, input().split()) if x % 2 == 0))\n```"
        return Example(
            options={"parts": ("lcb",), "data": Path(HOUSE)},
            answers=(FakeAnswer(match=first.question[:40], text=text), FakeAnswer(match="", text="I cannot write that.")),
            numbers={"lcb.right": 1, "lcb.asked": 8, "lcb.unparsed": 7, "lcb.timeouts": 0},
        )


def wait_for_quiet() -> None:
    """Until at least half of the machine is idle for half a second; no longer than half a minute."""
    deadline = time.monotonic() + QUIET_WAIT_S
    while time.monotonic() < deadline and psutil.cpu_percent(interval=0.5) > 100 * QUIET_SHARE:
        pass


PART = LiveCodeBench()
