"""Replies as models write them: empty, chatty, hostile, half right; each gives the hits it should."""

from __future__ import annotations

import json

import gauntlet_solver
import pytest

from homestretch.lab.game import answers
from homestretch.lab.game.programs import sandboxed
from homestretch.lab.game.seasons import season
from homestretch.lab.game.tasks import Outcome, find

MADE = season(21).tasks


def hits(task: str, reply: str, run: object = None) -> list[bool]:
    chosen = run or (sandboxed if find(task).kind == "code" else refuse)
    return [shot.hit for shot in find(task).judge(MADE[task], reply, chosen)]  # type: ignore[arg-type]


def refuse(source: str, stdin: str) -> Outcome:
    pytest.fail("a program was run")


def right(task: str) -> dict[str, object]:
    key = "plan" if task == "ferry" else "answer"
    return {str(number): target[key] for number, target in enumerate(MADE[task].targets, 1)}


NONE, ALL = [False] * 5, [True] * 5


@pytest.mark.parametrize("task", ["ferry", "seating", "painter", "snake"])
@pytest.mark.parametrize("reply", ["", " \n\t", "<think>hm</think>", "<think>never closed ```json\n{}\n```"])
def test_an_empty_reply_hits_nothing_and_runs_nothing(task: str, reply: str) -> None:
    assert hits(task, reply, refuse) == NONE


@pytest.mark.parametrize("task", ["ferry", "seating"])
@pytest.mark.parametrize(
    "form",
    [
        "```json\n{}\n```",
        "Sure! Let me think.\n\n1. First {{brackets}} in prose, then:\n\n```json\n{}\n```\nHope this helps! {{}}",
        '<think>```json\n{{"1": []}}\n```</think>\nMy answer:\n~~~~JSON\n{}\n~~~~',
        "{}",
        "The answer is {}. Good luck!",
        'A draft:\n```json\n{{"1": [], "2": []}}\n```\nThe final one:\n```json\n{}\n```',
        "```\n{}\n```",
        "```json\n{}",
        "```python\nprint(1)\n```\n\n> ```json\n{}\n> ```",
        "reasoning without an opening tag</think>\n```json\n{}\n```",
    ],
)
def test_chat_around_a_right_answer_does_not_matter(task: str, form: str) -> None:
    assert hits(task, form.format(json.dumps(right(task), indent=1))) == ALL
    assert hits(task, form.format(json.dumps(right(task))).replace("\n", "\r\n")) == ALL


@pytest.mark.parametrize("task", ["ferry", "seating"])
def test_half_right_answers_hit_half(task: str) -> None:
    whole = right(task)
    assert hits(task, json.dumps({"2": whole["2"], "5": whole["5"]})) == [False, True, False, False, True]
    mixed = {**whole, "1": whole["5"], "3": "no idea", "4": None}
    assert hits(task, json.dumps(mixed)) == [False, True, False, False, True]
    shouted = json.dumps(whole).upper()
    assert hits(task, shouted) == ALL


@pytest.mark.parametrize("task", ["ferry", "seating"])
@pytest.mark.parametrize(
    "reply",
    [
        "[" * 100_000,
        "{" * 100_000,
        '{"1":' * 50_000,
        '```json\n{"1": ' + "[" * 20_000 + "]" * 20_000 + "}\n```",
        '{"1": [[1, 2]], "2": [["a", {}]], "3": {"a": 1}, "4": 1e999, "5": NaN}',
        '{"1": [' + '["x"],' * 5_000 + '["x"]]}',
        '{"1": [["' + "x" * 300_000 + '"]]}',
        "\x00\ud800 ```json\n\x00\n```",
        "<think>" * 200_000,
        "<think></think>" * 100_000 + "```" * 50_000,
        "`" * 300_000 + "\n" + '{"a": "' * 50_000,
        '{"1": true, "2": "' + "\\u0000" * 100 + '", "3": [null], "4": [[null]], "5": [[[]]]}',
    ],
)
def test_hostile_replies_hit_nothing_and_do_not_break(task: str, reply: str) -> None:
    assert hits(task, reply) == NONE


def test_ferry_names_each_rule_that_is_broken() -> None:
    task, made = find("ferry"), MADE["ferry"]
    target = made.targets[3]
    plan = target["plan"]

    def reason(trips: object) -> str:
        return task.judge(made, json.dumps({"4": trips}), refuse)[3].reason

    assert reason(plan) == ""
    assert reason([*plan, [], []]) == f"{len(plan) + 2} trips, {len(plan)} are enough"
    assert "takes what is not on that bank" in reason([["dragon"], *plan[1:]])
    assert "takes what is not on that bank" in reason([[plan[0][0]] * 2, *plan[1:]])
    assert "in the boat" in reason([target["things"][:3], *plan[1:]])
    assert "quarrel" in reason([[], *plan[1:]])
    assert reason(plan[:-2]) == "not everything is where it belongs at the end"
    fifth = made.targets[4]
    heavy = sorted(fifth["west"], key=lambda name: -fifth["weights"][name])[:2]
    assert sum(fifth["weights"][name] for name in heavy) > fifth["kilograms"]
    assert task.judge(made, json.dumps({"5": [heavy]}), refuse)[4].reason == "trip 1: too heavy"


def test_seating_says_which_clue_breaks() -> None:
    task, made = find("seating"), MADE["seating"]
    target = made.targets[1]
    wrong = list(reversed(target["answer"]))
    reason = task.judge(made, json.dumps({"2": wrong}), refuse)[1].reason
    assert reason.startswith("breaks clue ")
    assert task.judge(made, json.dumps({"2": wrong[:-1]}), refuse)[1].reason == "not every person exactly once"


def test_programs_are_found_in_chat() -> None:
    assert answers.program("```python\na = 1\n```\ntry:\n```bash\npython x.py\n```\nprints\n```\n3\n```") == "a = 1\n"
    assert answers.program("first\n```py\na\n```\nbetter:\n```Python3 title=x\nb\n```") == "b\n"
    assert answers.program("```\nplain\n```") == "plain\n"
    assert answers.program("print(1)") == "print(1)"
    assert answers.program("```python\nunfinished") == "unfinished"
    assert answers.program('````python\ns = """\n```\n"""\n````') == 's = """\n```\n"""\n'
    assert answers.program("```js\nx\n```") == ""


def test_a_half_right_painter_hits_the_groups_it_knows() -> None:
    whole = answers.program(gauntlet_solver.solve("painter", MADE["painter"].statement))
    without_undo = whole.replace("if past: pic = past.pop()", "pass")
    assert hits("painter", f"```python\n{without_undo}```") == [True, True, True, True, False]
    no_fill = whole.replace("for q in seen: pic[q] = n[2]", "pass")
    assert hits("painter", f"Here:\n```python\n{no_fill}```\nDone.") == [True, True, False, False, False]


def test_a_careless_snake_hits_the_first_three() -> None:
    source = answers.program(gauntlet_solver.solve("snake", MADE["snake"].statement))
    start = source.index("def search")
    naive = source[:start] + CARELESS
    assert hits("snake", f"```python\n{naive}\n```") == [True, True, True, False, False]


CARELESS = """
s = (body, 0, 0); out = ""
while s[2] < m:
    came = {s[0][0]: ""}; todo = [s[0][0]]
    for c in todo:
        for d in D:
            q = go(c, d)
            if q and q not in came and q not in s[0]: came[q] = came[c] + d; todo.append(q)
    if foods[s[2]] not in came: break
    way = came[foods[s[2]]]
    for d in way: s = step(s, d)
    out += way
    if s is None: break
print(out)
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemExit(3)", "exit status 3"),
        ("import os; os.write(1, b'x' * 3_000_000)", "prints over 1 MiB"),
        ("x = bytearray(1 << 31)", "over 1 GiB of memory"),
        ("print('a lot of rows')", "another picture"),
        ("import socket; socket.create_connection(('127.0.0.1', 22))", "exit status 1"),
        ("\x00", "exit status 1"),
    ],
)
def test_hostile_programs_miss_with_their_reason(source: str, reason: str) -> None:
    shots = find("painter").judge(MADE["painter"], f"```python\n{source}\n```", sandboxed)
    assert {shot.hit for shot in shots} == {False}
    assert shots[0].reason == f"case 1: {reason}"


def test_an_endless_program_misses_after_a_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    from homestretch.lab import sandbox
    from homestretch.lab.game import programs

    monkeypatch.setattr(programs, "LIMITS", sandbox.Limits(wall_s=0.5))
    assert sandboxed("while True: pass", "").fault == "over 10 s"
