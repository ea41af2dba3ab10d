"""Verdicts on programs are those of a real run: real processes, real standard input, first failure stops."""

from __future__ import annotations

import pytest

from homestretch.lab.graders.lcb import Case, Judged, extract_code, judge, same_output, same_value
from homestretch.lab.sandbox import Limits, Sandbox, open_sandbox

QUICK = Limits(wall_s=2.5)  # for programs that only the limit ends
PATIENT = Limits(wall_s=15.0)  # for those that end by themselves, on a machine however busy


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return open_sandbox(prove=False)


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nDone."


SUMS = [Case(given=f"{n}\n" + "\n".join(map(str, range(n))) + "\n", expected=f"{n * (n - 1) // 2}\n") for n in (3, 10, 2000)]
BY_INPUT = "n = int(input())\nprint(sum(int(input()) for _ in range(n)))"
BY_READ = "import sys\nn = int(sys.stdin.readline())\nprint(sum(map(int, sys.stdin.read().split())))"
BY_LINES = "import sys\nvalues = [int(line) for line in sys.stdin]\nprint(sum(values[1:]))"
BY_BUFFER = "import sys, os\ndata = sys.stdin.buffer.read().split()\nsys.stdout.buffer.write(b'%d\\n' % sum(map(int, data[1:])))"
BY_FD = "import os\ndata = os.read(0, 1 << 20).split()\nos.write(1, str(sum(map(int, data[1:]))).encode())"
BY_FILE = "print(sum(map(int, open(0).read().split()[1:])))"
BY_THREAD = (
    "import sys, threading\nthreading.stack_size(2**27)\nsys.setrecursionlimit(10**6)\n"
    "def main():\n    n = int(input())\n    def go(k):\n"
    "        return 0 if k == n else int(input()) + go(k + 1)\n    print(go(0))\n"
    "thread = threading.Thread(target=main)\nthread.start()\nthread.join()"
)
BY_EXIT = "n = int(input())\nprint(sum(int(input()) for _ in range(n)))\nexit()\nprint('never')"
BY_EXIT_LATER = "import sys\ndef main():\n    print(sum(map(int, sys.stdin.read().split()[1:])))\n    sys.exit(0)\nmain()"
BY_NAMES = "n = int(input())\nprint(reduce(add, (int(input()) for _ in range(n)), floor(0.5)))"  # names the preamble brings
BY_SYS_NAMES = "n = int(stdin.readline())\nprint(sum(int(line) for line in stdin))\nstdout.flush()"
BY_MAIN = (
    "def main():\n    n = int(input())\n    print(sum(int(input()) for _ in range(n)))\nif __name__ == '__main__':\n    main()"
)
BY_FUTURE = "from __future__ import annotations\n" + BY_INPUT
SHADOWED = "input = __import__('sys').stdin.readline\nn = int(input())\nprint(sum(int(input()) for _ in range(n)))"


@pytest.mark.parametrize(
    "code",
    [
        BY_INPUT,
        BY_READ,
        BY_LINES,
        BY_BUFFER,
        BY_FD,
        BY_FILE,
        BY_THREAD,
        BY_EXIT,
        BY_EXIT_LATER,
        BY_NAMES,
        BY_MAIN,
        BY_FUTURE,
        SHADOWED,
    ],
)
def test_right_programs_are_right_however_they_read(sandbox: Sandbox, code: str) -> None:
    assert judge(sandbox, fenced(code), SUMS, limits=PATIENT) == Judged(verdict="right", passed=3)


@pytest.mark.parametrize(
    ("code", "verdict", "reason"),
    [
        ("n = int(input())\nprint(n)", "wrong", "test 2 of 3: wrong output"),  # right for n = 3 by chance
        ("print('x' * 2 * 10**7)", "wrong", "test 1 of 3: too much output"),
        ("print(1)\n" * 3, "wrong", "test 1 of 3: wrong output"),
        ("", "wrong", "test 1 of 3: wrong output"),
        ("while True: pass", "timeout", "test 1 of 3: not done in 2.5 s"),
        ("import time\nn = int(input())\nif n > 5: time.sleep(9)\nprint(3)", "timeout", "test 2 of 3: not done in 2.5 s"),
        ("1 / 0", "wrong", "test 1 of 3: crashed: ZeroDivisionError"),
        ("import json\njson.loads('{')", "wrong", "test 1 of 3: crashed: JSONDecodeError"),
        ("def (", "wrong", "test 1 of 3: crashed: SyntaxError"),
        ("import os\nos.abort()", "wrong", "test 1 of 3: crashed: signal 6"),
        ("import sys\nprint(3)\nsys.exit(2)", "wrong", "test 1 of 3: crashed: exit code 2"),
        ("x = [0] * 10**11", "wrong", "test 1 of 3: too much memory"),
        ("f = lambda n: f(n + 1)\nf(0)", "wrong", "test 1 of 3: crashed: RecursionError"),
        ("class MySecretError(Exception): pass\nraise MySecretError('text')", "wrong", "test 1 of 3: crashed: MySecretError"),
        ("import sys\nsys.stderr.write('noise\\n')\n" + BY_INPUT, "right", ""),
    ],
)
def test_other_programs(sandbox: Sandbox, code: str, verdict: str, reason: str) -> None:
    judged = judge(sandbox, fenced(code), SUMS, limits=QUICK if verdict == "timeout" else PATIENT)
    assert (judged.verdict, judged.reason) == (verdict, reason)


def test_a_timed_out_test_is_run_again_from_where_it_stopped(sandbox: Sandbox) -> None:
    slow = "import time\nn = int(input())\nif n == 10: time.sleep(5)\nprint(sum(int(input()) for _ in range(n)))"
    first = judge(sandbox, fenced(slow), SUMS, limits=QUICK)
    assert (first.verdict, first.failed_test, first.passed) == ("timeout", 1, 1)
    again = judge(sandbox, fenced(slow), SUMS, begin=1, limits=PATIENT)
    assert again == Judged(verdict="right", passed=3)


CALLS = [Case(given='[1, 2, 3]\n"a"', expected='[3, "a"]'), Case(given='[]\n""', expected='[0, ""]')]


@pytest.mark.parametrize(
    ("code", "verdict", "reason"),
    [
        ("class Solution:\n    def go(self, xs: List[int], s: str) -> list:\n        return [len(xs), s]", "right", ""),
        ("class Solution:\n    def go(self, xs, s):\n        return len(xs), s", "right", ""),
        ("class Solution:\n    def go(self, xs, s):\n        print('debug', xs)\n        return [len(xs), s]", "right", ""),
        ("def go(xs, s):\n    return [len(xs), s]", "right", ""),
        ("class Solution:\n    def go(self, xs, s):\n        return [[len(xs)], s]", "wrong", "test 1 of 2: wrong result"),
        ("class Solution:\n    def go(self, xs, s):\n        return [3, 'a']", "wrong", "test 2 of 2: wrong result"),
        ("class Solution:\n    def go(self, xs, s):\n        return {1, 2}", "wrong", "test 1 of 2: wrong result"),
        ("class Solution:\n    def go(self, xs, s):\n        return object()", "wrong", "test 1 of 2: wrong result"),
        ("class Solution:\n    def go(self, xs, s):\n        return None", "wrong", "test 1 of 2: wrong result"),
        ("class Solution:\n    def went(self, xs, s): ...", "wrong", "test 1 of 2: crashed: AttributeError"),
        ("class Solution:\n    def go(self, xs):\n        return 1", "wrong", "test 1 of 2: crashed: TypeError"),
        ("class Solution:\n    def go(self, xs, s):\n        exit()", "wrong", "test 1 of 2: no result"),
        ("class Solution:\n    def go(self, xs, s):\n        while True: pass", "timeout", "test 1 of 2: not done in 2.5 s"),
        (
            "import sys\nclass Solution:\n    def go(self, xs, s):\n        sys.stdout = None\n        return [len(xs), s]",
            "wrong",
            None,
        ),
    ],
)
def test_functional_tasks(sandbox: Sandbox, code: str, verdict: str, reason: str | None) -> None:
    judged = judge(sandbox, fenced(code), CALLS, "go", limits=QUICK if verdict == "timeout" else PATIENT)
    assert judged.verdict == verdict
    assert reason is None or judged.reason == reason


@pytest.mark.parametrize(
    ("said", "expected", "same"),
    [
        ("1\n2", "1\n2\n", True),
        (" 1 \n 2 \n\n", "1\n2", True),
        ("1 2", "1  2", True),
        ("a  b", "a b", False),
        ("1.0", "1", True),
        ("1e3", "1000", True),
        ("0.30000000000000004", "0.3", False),
        ("3.14", "3.140", True),
        ("Yes", "YES", False),
        ("1\n2", "1 2", False),
        ("", "", True),
        ("", "0", False),
        ("1\n", "1\n\n2", False),
        ("0x10", "16", False),
        ("-0", "0", True),
        ("NaN", "NaN", True),
        ("NaN", "nan", False),
        ("1_000", "1000", True),
        ("12345678901234567890123", "12345678901234567890124", False),
        ("٣", "3", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("Infinity", "inf", True),
    ],
)
def test_outputs(said: str, expected: str, same: bool) -> None:
    assert same_output(said, expected) is same


@pytest.mark.parametrize(
    ("said", "expected", "same"),
    [
        ('["list", 1, 2]', "[1, 2]", True),
        ('["tuple", 1, 2]', "[1, 2]", True),
        ('["list", ["tuple", 1, 2]]', "[[1, 2]]", False),
        ('["list", ["list", 1, 2]]', "[[1, 2]]", True),
        ('["set", 1, 2]', "[1, 2]", False),
        ("1.0", "1", True),
        ("true", "true", True),
        ("1", "true", True),
        ('"a"', '"a"', True),
        ("null", "null", True),
        ('["dict", ["a", 1]]', '{"a": 1}', True),
        ('["dict", [1, 1]]', '{"1": 1}', False),
        ("Infinity", "1", False),
        ('["other"]', "1", False),
        ("-3", "-3", True),
        ("no JSON", "1", False),
        ("[" * 100_000, "1", False),
        ('["list", ' * 100_000, "1", False),
        ('["list", ' * 5_000 + "1" + "]" * 5_000, "1", False),
        ('["dict", [["list", 1], 1]]', "1", False),
        ("[]", "[]", False),
    ],
)
def test_values(said: str, expected: str, same: bool) -> None:
    assert same_value(said, expected) is same


def test_types_of_a_result_are_told_apart(sandbox: Sandbox) -> None:
    values = [
        "[1, (2, 3)]",
        "(1, [2])",
        "{1: {2}}",
        "{'a': None}",
        "True",
        "1.5",
        "'text'",
        "[object()]",
        "10**400",
        "float('nan')",
    ]
    expected = ["[1, [2, 3]]", "[1, [2]]", '{"1": [2]}', '{"a": null}', "1", "1.50", '"text"', "[null]", str(10**400), "null"]
    right = [False, True, False, True, True, True, True, False, True, False]
    for value, wanted, holds in zip(values, expected, right, strict=True):
        code = f"class Solution:\n    def go(self):\n        return {value}"
        judged = judge(sandbox, fenced(code), [Case(given="", expected=wanted)], "go", limits=PATIENT)
        assert (judged.verdict == "right") is holds, value


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\na\n```", "a"),
        ("```\na\n```", "a"),
        ("text\n```py\na\nb\n```\ntext", "a\nb"),
        ("```python\na\n```\n```python\nb\n```", "b"),
        ("no fence", None),
        ("```python\na", None),
        ("", None),
        ("```\n```", ""),
        ("```python\na\n```\nand inline ```x``` here", "and"),
        ("~~~\na\n~~~", None),
    ],
)
def test_which_code_counts(answer: str, code: str | None) -> None:
    found = extract_code(answer)
    assert found == ("" if answer.endswith("here") else code)


def test_an_answer_without_code_is_unparsed(sandbox: Sandbox) -> None:
    assert judge(sandbox, "I would sum them up.", SUMS).verdict == "unparsed"
