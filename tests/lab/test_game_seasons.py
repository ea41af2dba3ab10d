"""Season 21 and ten others: the same bytes everywhere, one right answer each or every right one accepted, 20 of 20 in reach."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import subprocess
import sys

import gauntlet_solver
import pytest

from homestretch.lab.errors import WrongUse
from homestretch.lab.game.draws import Draws, mix64
from homestretch.lab.game.programs import sandboxed
from homestretch.lab.game.seasons import LAST, season
from homestretch.lab.game.tasks import Outcome, find, names
from homestretch.lab.game.tasks import ferry as ferry_task
from homestretch.lab.game.tasks.seating import solutions
from homestretch.lab.game.tasks.snake import TIES
from homestretch.lab.game.walk import careful, careless, fault

SEASONS = (21, 1, 2, 3, 7, 20, 22, 100, 2026, 31_337, LAST)
SCRIPT = """
import sys
from homestretch.lab.game.tasks import find
from homestretch.lab.game.seasons import Season
order = sys.argv[1].split(",")
for number in map(int, sys.argv[2].split(",")):
    made = {name: find(name).make(number) for name in order}
    print(number, Season(number=number, tasks=made).sha256())
"""


def made_in_a_process(order: str, numbers: list[int], hash_seed: str) -> dict[str, str]:
    command = [sys.executable, "-c", SCRIPT, order, ",".join(map(str, numbers))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": hash_seed})
    return dict(line.split() for line in done.stdout.splitlines())


def trusted(source: str, stdin: str) -> Outcome:
    """Our own reference programs need no cage; season 21's run in it all the same."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        exec(compile(source, "reference", "exec"), {"__name__": "__main__"})  # noqa: S102
    return Outcome(stdout=printed.getvalue())


def test_two_processes_two_orders_the_same_bytes() -> None:
    """This process makes them in the course's order; another one, hashing otherwise, backwards and task by task the other way."""
    other = made_in_a_process("snake,seating,ferry,painter", list(reversed(SEASONS)), "4711")
    here = {str(number): season(number).sha256() for number in SEASONS}
    assert other == here
    assert len(set(here.values())) == len(SEASONS)


def test_season_21_is_what_it_was() -> None:
    """Past seasons stay: other bytes would make published races wrong. Change GAME in draws.py for another game instead."""
    assert season(21).sha256() == "1caffb98920cd6f09574b8de67377aec26dbed35e02c26fdfe2836813cae4c76"
    assert [mix64(n) for n in (0, 1, 2**64 - 1)] == [0, 0x5692161D100B05E5, 0xB4D055FCF2CBBD7B]
    draws = Draws(21, "ferry", 0)
    assert [draws.below(6) for _ in range(8)] == [5, 1, 4, 5, 2, 3, 4, 2]


@pytest.mark.parametrize("number", SEASONS)
def test_each_bench_has_one_order_and_no_idle_clue(number: int) -> None:
    for target in season(number).tasks["seating"].targets:
        assert solutions(target) == [target["answer"]]
    target = season(number).tasks["seating"].targets[0]
    for clue in target["clues"]:
        fewer = [other for other in target["clues"] if other is not clue]
        assert len(solutions({**target, "clues": fewer})) > 1


@pytest.mark.parametrize("number", SEASONS)
def test_no_ferry_plan_is_shorter(number: int) -> None:
    """The plan found by breadth-first search is right, and an exhaustive walk over fewer trips ends nowhere."""
    for target in season(number).tasks["ferry"].targets:
        assert ferry_task.fault(target, target["plan"]) == ""
        east = set(target["things"]) - set(target["west"])
        kilos = target["kilograms"] or 10**9
        for fewer in range(target["trips"]):
            found = gauntlet_solver.cross(
                set(target["west"]), east, target["places"], target["quarrels"], target["weights"], kilos, fewer, {}
            )
            assert found is None


def test_two_different_right_ferry_plans_both_hit() -> None:
    target = {
        "things": ["dog", "fox", "owl"],
        "places": 1,
        "quarrels": [["dog", "fox"]],
        "weights": {},
        "kilograms": 0,
        "west": ["dog", "fox", "owl"],
        "trips": 5,
    }
    faults = {
        order: ferry_task.fault(target, [[order[0]], [], [order[1]], [], [order[2]]])
        for order in itertools.permutations(target["west"])
    }
    right = {order for order, reason in faults.items() if not reason}
    assert right == {("dog", "owl", "fox"), ("fox", "owl", "dog")}
    assert faults["dog", "fox", "owl"] == "trip 4: a quarrel on the bank left behind"
    assert faults["owl", "dog", "fox"] == "trip 1: a quarrel on the bank left behind"


@pytest.mark.parametrize("number", SEASONS)
def test_snake_boards_can_be_won_and_the_last_ones_trap_the_careless(number: int) -> None:
    for group, target in enumerate(season(number).tasks["snake"].targets, 1):
        for board in target["boards"]:
            assert fault(board, board["proof"]) == ""
            assert careful(board) == board["proof"]
            assert {careless(board, order) for order in TIES} == {group < 4}


@pytest.mark.parametrize("number", SEASONS)
def test_a_reference_solver_hits_20_of_20_from_the_statements_alone(number: int) -> None:
    missed = []
    for name, made in season(number).tasks.items():
        run = sandboxed if number == 21 else trusted
        shots = find(name).judge(made, gauntlet_solver.solve(name, made.statement), run)
        missed += [f"{name} {at}: {shot.reason}" for at, shot in enumerate(shots, 1) if not shot.hit]
    assert missed == []


def test_statements_hold_no_solution() -> None:
    for number in SEASONS:
        for name, made in season(number).tasks.items():
            for target in made.targets:
                secret = target.get("plan") or target.get("answer") or target.get("cases") or target.get("boards")
                assert json.dumps(secret) not in made.statement, (number, name)
        for target in season(number).tasks["seating"].targets:
            assert (
                ", ".join(target["answer"]) not in season(number).tasks["seating"].statement or target["answer"] == target["people"]
            )


def test_tasks_are_found_by_file_name() -> None:
    assert names() == ("ferry", "painter", "seating", "snake")
    assert [find(name).name for name in names()] == list(names())
    with pytest.raises(KeyError):
        find("chess")


@pytest.mark.parametrize("number", [0, -1, LAST + 1])
def test_a_season_that_is_none_is_refused(number: int) -> None:
    with pytest.raises(WrongUse, match="a whole number from 1"):
        season(number)
