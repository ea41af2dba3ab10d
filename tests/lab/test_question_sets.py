"""Question sets: each layout read, from a folder and a stand-in of the hub; pins, mirrors, hostile pickles; house sets whole."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab_fake import quick, serving

from homestretch.lab.data import code, fetch, hotpot, instructions, letters, tables
from homestretch.lab.errors import LabError, WrongUse
from homestretch.lab.graders import ifeval, lcb
from homestretch.lab.records import RunFolder
from homestretch.lab.sandbox import open_sandbox

HOUSE = Path("house")
COMMIT = "c0ffee" + "0" * 34


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# --- layouts --------------------------------------------------------------------------------------------------------------


def pro(number: int, options: list[str], answer: int) -> dict[str, Any]:
    return {"question_id": number, "question": f" Question {number}? ", "options": options, "answer": "ABCDEFGHIJ"[answer],
            "answer_index": answer, "category": "own", "src": "test"}  # fmt: skip


def test_mmlu_pro_drops_fillers_and_blanks_and_keeps_the_key(tmp_path: Path) -> None:
    rows = [
        pro(1, ["one", " two", "N/A", "three "], 3),
        pro(2, ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"], 9),
        pro(3, ["N/A", "x", "y", "z"], 1),
    ]
    found = letters.read(parquet(tmp_path / "test.parquet", rows))
    assert [(q.row, q.options, q.key) for q in found] == [("1", 3, "C"), ("2", 10, "J"), ("3", 3, "A")]
    assert found[0].text.endswith("Question 1?\n\nA) one\nB) two\nC) three")
    with pytest.raises(LabError, match="row 4 has 2 options and key index 0"):
        letters.read(parquet(tmp_path / "bad.parquet", [pro(4, ["a", "b", "N/A"], 0)]))
    with pytest.raises(LabError, match="row 5 has 3 options and key index 3"):
        letters.read(parquet(tmp_path / "bad.parquet", [pro(5, ["a", "b", "c", "N/A"], 3)]))


def test_gpqa_csv_is_shuffled_by_row_id_and_keyed_by_index(tmp_path: Path) -> None:
    head = "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3,High-level domain\n"
    body = "".join(f'rec{n},"Question {n}, with\na line",right{n},w1,w2,w3,Physics\n' for n in range(40))
    body += "twin,Which?,same ,same,other,third,Chemistry\n"  # two equal options once stripped
    path = tmp_path / "gpqa_diamond.csv"
    path.write_text(head + body, encoding="utf-8")
    found = letters.read(path)
    for question in found[:-1]:
        chosen = question.text.split(f"{question.key}) ")[1].splitlines()[0]
        assert chosen == f"right{question.row.removeprefix('rec')}"
    assert {question.key for question in found} == set("ABCD")
    twin = found[-1]
    assert twin.text.split(f"{twin.key}) ")[1].splitlines()[0] == "same"
    assert letters.read(path) == found


def test_gpqa_s_mirror_is_not_shuffled(tmp_path: Path) -> None:
    text = "What?\nA. one\nB. two\nC. three\nD. four"
    found = letters.read(parquet(tmp_path / "m.parquet", [{"question": text, "answer": "C"}, {"question": text, "answer": " d "}]))
    assert [(q.row, q.key, q.options) for q in found] == [("0", "C", 4), ("1", "D", 4)]
    assert found[0].text == f"{letters.TASK}\n\n{text}"
    with pytest.raises(LabError, match="row 0 names the letter 'E'"):
        letters.read(parquet(tmp_path / "bad.parquet", [{"question": text, "answer": "E"}]))


def test_ifeval_rows_lose_their_none_arguments(tmp_path: Path) -> None:
    row = {"key": 7, "prompt": "p", "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"]}
    given = [{"relation": None, "num_words": None}, {"relation": "at least", "num_words": 5}]
    for kwargs in (given, json.dumps(given)):
        found = instructions.read(lines(tmp_path / "ifeval.jsonl", [{**row, "kwargs": kwargs}]))
        assert found[0].row == "7"
        assert found[0].arguments == ({}, {"relation": "at least", "num_words": 5})


def packed(tests: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def task(name: str, date: str, hidden: str, function: str = "") -> dict[str, Any]:
    kind = "functional" if function else "stdin"
    public = [{"input": "1", "output": "1", "testtype": kind}]
    return {
        "question_title": name, "question_content": f"Do {name}.", "platform": "own", "question_id": name, "contest_id": "1",
        "contest_date": date, "starter_code": "class Solution:\n    def go(self, n: int) -> int:\n        " if function else "",
        "difficulty": "easy", "public_test_cases": json.dumps(public), "private_test_cases": hidden,
        "metadata": json.dumps({"func_name": function} if function else {}),
    }  # fmt: skip


def test_livecodebench_rows_unpack_and_sort_by_date_then_id(tmp_path: Path) -> None:
    hidden = [{"input": "2", "output": "4", "testtype": "stdin"}]
    rows = [
        task("b", "2025-02-01T00:00:00", packed(hidden)),
        task("a", "2025-02-01T00:00:00", json.dumps(hidden)),
        task("old", "2024-01-01T00:00:00", packed(hidden)),
        task("f", "2025-03-01T00:00:00", packed([{"input": "3", "output": "9", "testtype": "functional"}]), "go"),
    ]
    path = lines(tmp_path / "test6.jsonl", rows)
    assert [t.row for t in code.read(path)] == ["old", "a", "b", "f"]
    newest = code.read(path, 2)
    assert [t.row for t in newest] == ["b", "f"]
    assert newest[0].tests == (lcb.Case(given="1", expected="1"), lcb.Case(given="2", expected="4"))
    assert newest[1].function == "go"
    assert "def go(self, n: int) -> int:" in newest[1].messages()[1]["content"]
    assert "YOUR PROGRAM" in newest[0].messages()[1]["content"]


class Evil:
    def __reduce__(self) -> Any:
        return (open, ("/tmp/homestretch-pickle-was-run", "w"))


def test_a_pickle_that_names_a_class_is_refused_before_it_runs(tmp_path: Path) -> None:
    Path("/tmp/homestretch-pickle-was-run").unlink(missing_ok=True)
    for bad in (Evil(), [Path("x")], {"a": Evil()}):
        with pytest.raises(LabError, match="nothing else is loaded"):
            code.hidden_tests(base64.b64encode(zlib.compress(pickle.dumps(bad))).decode())
    assert not Path("/tmp/homestretch-pickle-was-run").exists()


@pytest.mark.parametrize(
    "bad",
    [
        "not base64!",
        base64.b64encode(b"not zlib").decode(),
        packed("x")[:40],
        base64.b64encode(zlib.compress(b"\x80\x04.")).decode(),
    ],
)
def test_damaged_hidden_tests_are_refused(bad: str) -> None:
    with pytest.raises(LabError, match="cannot be unpacked"):
        code.hidden_tests(bad)


def test_hidden_tests_that_unpack_to_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST_TEST_BYTES", 1000)
    with pytest.raises(LabError, match="unpack to more than"):
        code.hidden_tests(packed("x" * 100_000))


def test_tests_of_two_kinds_do_not_fit_together(tmp_path: Path) -> None:
    row = task("x", "2025-01-01", packed([{"input": "3", "output": "9", "testtype": "functional"}]))
    with pytest.raises(LabError, match="do not fit together"):
        code.read(lines(tmp_path / "t.jsonl", [row]))


def test_hotpot_in_both_layouts_gives_the_same_rows(tmp_path: Path) -> None:
    titles, sentences = ["One", "Two", "Three"], [["First.", " More."], ["Second."], ["Third."]]
    pairs = {
        "_id": "q1",
        "question": "Who?",
        "answer": "Me",
        "context": [list(p) for p in zip(titles, sentences, strict=True)],
        "supporting_facts": [["Two", 0], ["One", 1]],
    }
    columns = {
        "id": "q1",
        "question": "Who?",
        "answer": "Me",
        "context": {"title": titles, "sentences": sentences},
        "supporting_facts": {"title": ["Two", "One"], "sent_id": [0, 1]},
    }
    one = hotpot.read(lines(tmp_path / "a.jsonl", [pairs]), 5)
    two = hotpot.read(parquet(tmp_path / "a.parquet", [columns]), 5)
    assert one == two
    assert [document.title for document in one[0].needed] == ["One", "Two"]
    assert one[0].needed[0].text == "First. More."
    assert [document.title for document in one[0].others] == ["Three"]


def test_files_of_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text("<a/>")
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{broken')
    (tmp_path / "y.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    for name, message in (
        ("x.xml", "are .parquet, .jsonl"),
        ("x.jsonl", "not readable as jsonl"),
        ("x.parquet", "not readable as parquet"),
    ):
        with pytest.raises(LabError, match=message):
            tables.rows(tmp_path / name)
    with pytest.raises(LabError, match="lacks the columns key, prompt, instruction_id_list, kwargs; it has a"):
        instructions.read(tmp_path / "y.jsonl")


# --- folders --------------------------------------------------------------------------------------------------------------


def test_a_folder_may_hold_sets_as_on_the_hub_or_by_name(tmp_path: Path) -> None:
    path = parquet(tmp_path / "TIGER-Lab" / "MMLU-Pro" / "data" / "test-00000-of-00001.parquet", [pro(1, ["a", "b", "c"], 0)])
    found = fetch.bring("mmlupro", tmp_path)
    assert (found.name, found.path, found.sha256) == ("TIGER-Lab/MMLU-Pro", path, hashlib.sha256(path.read_bytes()).hexdigest())
    lines(tmp_path / "ifeval" / "mine.jsonl", [{"key": 1}])
    assert fetch.bring("ifeval", tmp_path).name == "google/IFEval"
    lines(tmp_path / "ifeval" / "other.jsonl", [{"key": 1}])
    with pytest.raises(WrongUse, match=r"2 files could be the set ifeval: mine\.jsonl, other\.jsonl; keep one"):
        fetch.bring("ifeval", tmp_path)
    with pytest.raises(WrongUse, match=r"holds no set lcb: put the file test6\.jsonl of livecodebench/code_generation_lite into"):
        fetch.bring("lcb", tmp_path)
    with pytest.raises(WrongUse, match="is no folder"):
        fetch.bring("lcb", tmp_path / "missing")


def test_a_folder_may_hold_the_mirror_of_a_gated_set(tmp_path: Path) -> None:
    parquet(tmp_path / "fingertap" / "GPQA-Diamond" / "test" / "x.parquet", [{"question": "q", "answer": "A"}])
    assert fetch.bring("gpqa", tmp_path).name == "fingertap/GPQA-Diamond"


def pinned(monkeypatch: pytest.MonkeyPatch, name: str, **changes: str) -> None:
    pins = {key: msgspec.structs.replace(pin, **changes) if key == name else pin for key, pin in fetch.pins().items()}
    monkeypatch.setattr(fetch, "pins", lambda: pins)


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lines(tmp_path / "ifeval" / "mine.jsonl", [{"key": 1}])
    pinned(monkeypatch, "ifeval", sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    assert fetch.bring("ifeval", tmp_path).path == path
    pinned(monkeypatch, "ifeval", sha256="ab" * 32)
    with pytest.raises(LabError, match=r"is pinned to sha256 abab.*delete it and fetch it again"):
        fetch.bring("ifeval", tmp_path)


# --- a stand-in of the hub ------------------------------------------------------------------------------------------------


class Hub(ThreadingHTTPServer):
    """Serves repositories from memory the way the hub's client asks for them; gated ones only with the token."""

    daemon_threads = True

    def __init__(self, files: dict[str, dict[str, bytes]], gated: tuple[str, ...] = ()) -> None:
        self.files, self.gated, self.asked = files, gated, list[str]()
        super().__init__(("127.0.0.1", 0), HubHandler)


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def say(self, status: int, data: bytes, body: bool, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        self.server.asked.append(path)
        for name, files in self.server.files.items():
            mine = path.startswith((f"/api/datasets/{name}", f"/datasets/{name}/"))
            if mine and name in self.server.gated and self.headers.get("Authorization") != "Bearer right":
                return self.say(401, b"{}", body, X_Error_Code="GatedRepo", X_Error_Message="Access to this set is restricted")
            if path.startswith(f"/api/datasets/{name}"):
                info = {
                    "id": name,
                    "sha": COMMIT,
                    "siblings": [{"rfilename": file} for file in files],
                    "tags": [],
                    "downloads": 0,
                    "private": False,
                }
                return self.say(200, json.dumps(info).encode(), body, Content_Type="application/json")
            for file, data in files.items():
                if path == f"/datasets/{name}/resolve/{COMMIT}/{file}":
                    digest = hashlib.sha256(data).hexdigest()
                    return self.say(
                        200, data, body, ETag=f'"{digest}"', X_Repo_Commit=COMMIT, Content_Type="application/octet-stream"
                    )
        return self.say(404, b"{}", body, X_Error_Code="RepoNotFound")


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub(
        {
            "google/IFEval": {"README.md": b"# no data", "ifeval_input_data.jsonl": b'{"key": 1}\n'},
            "Idavidrein/gpqa": {"gpqa_diamond.csv": b"Question\n"},
            "fingertap/GPQA-Diamond": {"test/gpqa_diamond.parquet": b"mirror"},
            "livecodebench/code_generation_lite": {"test5.jsonl": b"old"},
        },
        gated=("Idavidrein/gpqa",),
    )
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def from_hub(hub: Hub, name: str, cache: Path, say: Any = None) -> fetch.SetFile:
    return fetch.bring(name, None, endpoint=f"http://127.0.0.1:{hub.server_address[1]}", cache_dir=cache, say=say)


def test_the_hub_s_file_comes_with_its_revision_and_hash(hub: Hub, tmp_path: Path) -> None:
    found = from_hub(hub, "ifeval", tmp_path)
    assert found.path.read_bytes() == b'{"key": 1}\n'
    assert (found.name, found.revision, found.origin) == ("google/IFEval", COMMIT, "hub")
    assert found.sha256 == hashlib.sha256(b'{"key": 1}\n').hexdigest()
    first = len([path for path in hub.asked if "/resolve/" in path])
    assert from_hub(hub, "ifeval", tmp_path) == found
    assert len([path for path in hub.asked if "/resolve/" in path]) <= first + 1, "not downloaded twice"


def test_a_pinned_hash_is_held_against_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned(monkeypatch, "ifeval", sha256="cd" * 32)
    with pytest.raises(LabError, match="is pinned to sha256 cdcd"):
        from_hub(hub, "ifeval", tmp_path)


def test_a_gated_set_falls_back_to_its_named_mirror_and_says_how_to_get_the_original(hub: Hub, tmp_path: Path) -> None:
    said: list[str] = []
    found = from_hub(hub, "gpqa", tmp_path, said.append)
    assert found.name == "fingertap/GPQA-Diamond"
    assert found.path.read_bytes() == b"mirror"
    assert found.origin == "hub, open mirror of Idavidrein/gpqa, which is gated"
    assert any("accept its terms at https://huggingface.co/datasets/Idavidrein/gpqa" in text for text in said)


def test_a_file_or_repository_that_is_not_there_is_refused_with_the_way_out(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"has 0 files like test6\.jsonl at revision c0ffee.*--data house"):
        from_hub(hub, "lcb", tmp_path)
    with pytest.raises(LabError, match=r"TIGER-Lab/MMLU-Pro cannot be (read|fetched).*Give --data DIR with data/test-"):
        from_hub(hub, "mmlupro", tmp_path)


def test_no_hub_at_all_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"cannot be fetched: .*--data house for the sets written for homestretch"):
        fetch.bring("ifeval", None, endpoint="http://127.0.0.1:9", cache_dir=tmp_path)


def test_a_run_fetches_its_set_once_and_goes_on_without_the_hub(tmp_path: Path) -> None:
    """Through the command line, as a person would: the gated set's mirror, pinned in the contract, then the hub goes away."""
    rows = [{"question": f"Question {n}?\nA) one\nB) two\nC) three\nD) four", "answer": "ABCD"[n % 4]} for n in range(12)]
    mirror = parquet(tmp_path / "mirror.parquet", rows).read_bytes()
    server = Hub(
        {"Idavidrein/gpqa": {"gpqa_diamond.csv": b"x"}, "fingertap/GPQA-Diamond": {"test/m.parquet": mirror}}, ("Idavidrein/gpqa",)
    )
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    environment["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_address[1]}"
    folder = tmp_path / "run"
    with serving(fake=quick(window=16_384)) as url:
        command = [sys.executable, "-m", "homestretch", "measure", "--base-url", url, "--model", "fake", "--output", str(folder)]
        command += ["--parts", "gpqa", "--allow-load"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "accept its terms at" in done.stderr
        server.shutdown()
        server.server_close()
        requests = folder / "requests-gpqa.jsonl"
        requests.write_bytes(b"".join(requests.read_bytes().splitlines(keepends=True)[:7]))
        again = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert again.returncode == 0, again.stderr
    run = RunFolder.open(folder)
    settings = run.contract().settings
    assert settings["gpqa.set"].value == "fingertap/GPQA-Diamond"
    assert settings["gpqa.set_revision"].value == COMMIT
    assert settings["gpqa.set_revision"].source == "hub, open mirror of Idavidrein/gpqa, which is gated"
    assert settings["gpqa.set_sha256"].value == hashlib.sha256(mirror).hexdigest() == run.contract().hashes["data/gpqa"]
    assert run.result().numbers["gpqa.asked"].value == 12
    assert settings["gpqa.rows"].value == [str(n) for n in range(12)]


# --- our own sets -----------------------------------------------------------------------------------------------------------


def test_house_letters_are_forty_with_three_to_ten_options() -> None:
    found = letters.read(fetch.bring("mmlupro", HOUSE).path)
    assert len(found) == len({q.row for q in found}) == 40
    assert {q.options for q in found} >= {3, 4, 5, 6, 7, 8, 10}
    assert len({q.category for q in found}) >= 10
    keys = [q.key for q in found]
    assert max(keys.count(letter) for letter in set(keys)) <= 8
    assert len([q for q in found if q.category in letters.SCIENCE]) == 16


def test_house_instructions_are_twenty_over_all_25_checks() -> None:
    found = instructions.read(fetch.bring("ifeval", HOUSE).path)
    assert len(found) == len({p.row for p in found}) == 20
    assert {name for prompt in found for name in prompt.instructions} == set(ifeval.CHECKS)
    for prompt in found:
        ifeval.grade("any text", prompt.instructions, prompt.arguments)


SOLUTIONS = {
    "house-code-01": """
n = int(input())
print(sum(x for x in map(int, input().split()) if x % 2 == 0))
""",
    "house-code-02": """
s = "".join(c.lower() for c in input() if c.isalnum())
print("yes" if s == s[::-1] else "no")
""",
    "house-code-03": """
c = Counter(input() for _ in range(int(input())))
for w in sorted(c, key=lambda w: (-c[w], w)):
    print(w, c[w])
""",
    "house-code-04": """
n, m, *e = map(int, sys.stdin.read().split())
g = defaultdict(list)
for a, b in zip(e[::2], e[1::2]):
    g[a].append(b)
    g[b].append(a)
d, q = {1: 0}, deque([1])
while q:
    u = q.popleft()
    for v in g[u]:
        if v not in d:
            d[v] = d[u] + 1
            q.append(v)
print(d.get(n, -1))
""",
    "house-code-05": """
n, c = map(int, input().split())
b = [0] * (c + 1)
for _ in range(n):
    w, v = map(int, input().split())
    for k in range(c, w - 1, -1):
        b[k] = max(b[k], b[k - w] + v)
print(b[c])
""",
    "house-code-06": """
class Solution:
    def joinIntervals(self, intervals: List[List[int]]) -> List[List[int]]:
        out = []
        for a, b in sorted(intervals):
            if out and a <= out[-1][1]:
                out[-1][1] = max(out[-1][1], b)
            else:
                out.append([a, b])
        return out
""",
    "house-code-07": """
import textwrap
class Solution:
    def breakLines(self, text, width):
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)
""",
    "house-code-08": """
class Solution:
    def largestPond(self, grid):
        cells, best = {(y, x) for y, r in enumerate(grid) for x, v in enumerate(r) if v}, 0
        while cells:
            todo, n = [cells.pop()], 0
            while todo:
                y, x = todo.pop()
                n += 1
                for p in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                    if p in cells:
                        cells.remove(p)
                        todo.append(p)
            best = max(best, n)
        return best
""",
}


def test_house_code_is_eight_tasks_that_solutions_written_apart_solve() -> None:
    found = code.read(fetch.bring("lcb", HOUSE).path)
    assert {t.row for t in found} == set(SOLUTIONS)
    assert [bool(t.function) for t in found].count(True) == 3
    sandbox = open_sandbox(prove=False)
    for one in found:
        assert len(one.tests) >= 6
        assert lcb.judge(sandbox, f"```python\n{SOLUTIONS[one.row]}\n```", one.tests, one.function).verdict == "right", one.row
        assert lcb.judge(sandbox, "```python\nprint(0)\n```", one.tests, one.function).verdict == "wrong", one.row
