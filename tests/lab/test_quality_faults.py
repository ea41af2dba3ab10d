"""Faulty servers: each fault has its named outcome, and never becomes a wrong score; kill -9 and resume; broken sets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from lab_fake import RETRY, SMALL, quick, serving

from homestretch.lab.data import letters
from homestretch.lab.data.fetch import bring
from homestretch.lab.errors import BrokenRun
from homestretch.lab.options import given
from homestretch.lab.progress import Progress
from homestretch.lab.publish.filter import Filter
from homestretch.lab.records import RunFolder
from homestretch.lab.run import Measured, measure
from homestretch.lab.score import score


class Faulty(ThreadingHTTPServer):
    """Answers `reply(turn)` to the turn-th question: (status, text, reasoning, finish_reason), or None to drop the connection."""

    daemon_threads = True

    def __init__(self, reply: Any) -> None:
        self.reply, self.turn, self.asked, self.lock = reply, 0, Counter[str](), threading.Lock()
        super().__init__(("127.0.0.1", 0), FaultyHandler)

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class FaultyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faulty

    def log_message(self, format: str, *args: Any) -> None: ...

    def send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.send(200, {"object": "list", "data": [{"id": "stub", "max_model_len": 16384}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "completions" not in self.path:
            return self.send(404, {"error": {"message": "no such route"}})
        text = "\n".join(str(message["content"]) for message in body.get("messages", []))
        said: Any = (200, "one two", "", "stop")
        if text.startswith(letters.TASK):
            with self.server.lock:
                self.server.turn += 1
                self.server.asked[text] += 1
                said = self.server.reply(self.server.turn, self.server.asked[text], body)
        if said is None:
            self.close_connection = True
            return None
        status, content, reasoning, finish = said
        if status != 200:
            return self.send(status, {"error": {"message": "named by the test"}})
        message = {"role": "assistant", "content": content, **({"reasoning_content": reasoning} if reasoning else {})}
        usage = {"prompt_tokens": 50, "completion_tokens": max(1, len(content.split())), "total_tokens": 51}
        return self.send(
            200, {"model": "stub", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}
        )


@contextmanager
def faulty(reply: Any) -> Iterator[str]:
    server = Faulty(reply)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def only_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before the questions has its own tests; here it would only take time."""
    monkeypatch.setattr("homestretch.lab.run._check_instrument", lambda folder, say: None)
    monkeypatch.setattr("homestretch.lab.run.Prober.run", lambda prober, say: prober.found)
    monkeypatch.setattr("homestretch.lab.exchange.undisturbed", nullcontext)


def ask(url: str, folder: Path, **changes: object) -> Measured:
    chosen = {**SMALL, "model": "stub", "base_url": url, "output": folder, "parts": ("gpqa",), "data": Path("house"), **changes}
    return measure(given(**chosen), progress=Progress(quiet=True), retry=RETRY)


def counted(done: Measured) -> Counter[str]:
    return Counter(answer.verdict for answer in RunFolder.open(done.folder).answers("gpqa"))


@pytest.mark.parametrize(
    "fault", [(429, "", "", ""), (500, "", "", ""), (503, "", "", ""), None], ids=["429", "500", "503", "dropped"]
)
def test_a_passing_fault_is_retried_and_leaves_no_trace_in_the_score(fault: Any, tmp_path: Path) -> None:
    with faulty(lambda turn, time_asked, body: fault if time_asked == 1 and turn % 3 == 0 else (200, "B", "", "stop")) as url:
        done = ask(url, tmp_path / "run")
    assert done.exit_code == 0
    assert set(counted(done)) <= {"right", "wrong"}
    assert done.result.numbers["gpqa.asked"].value == 16
    assert done.result.numbers["gpqa.errors"].value == 0
    discarded = [record for record in RunFolder.open(done.folder).requests("gpqa") if record.discarded]
    assert discarded
    assert all(record.discarded.startswith("error: ") for record in discarded)


@pytest.mark.parametrize(
    "fault", [(429, "", "", ""), (500, "", "", ""), (404, "", "", ""), None], ids=["429", "500", "wrong model", "dropped"]
)
def test_a_lasting_fault_makes_the_part_invalid_and_gives_no_rate(fault: Any, tmp_path: Path) -> None:
    with faulty(lambda turn, time_asked, body: fault if turn > 5 else (200, "B", "", "stop")) as url:
        done = ask(url, tmp_path / "run", at_once=2)
        assert done.exit_code == 1
        assert done.result.parts["gpqa"].state == "invalid"
        assert "gpqa.right_pct" not in done.result.numbers
        assert done.result.numbers["gpqa.errors"].value == 16 - len(RunFolder.open(done.folder).answers("gpqa"))
        reason = done.result.parts["gpqa"].reason
        assert any(word in reason for word in ("429", "500", "404", "dropped")), reason
    with faulty(lambda turn, time_asked, body: (200, "B", "", "stop")) as url:
        healed = ask(url, tmp_path / "run", resume=True)
    assert healed.exit_code == 0, "after the server came back the run goes on where it stopped"
    assert healed.result.numbers["gpqa.asked"].value == 16


@pytest.mark.parametrize(
    ("reply", "verdict", "doubt"),
    [
        ((200, "", "", "stop"), "empty", ""),
        ((200, "  \n ", "", "stop"), "empty", ""),
        ((200, "", "It must be B.", "stop"), "empty", "thinking_leaked"),
        ((200, "<think>It must be B.", "", "stop"), "empty", "thinking_leaked"),
        ((200, "B", "", "length"), "cut", ""),
        ((200, "The answer is B because of the sixteen tokens that this server allows", "", "length"), "cut", ""),
        ((200, "<think>never ends", "", "length"), "cut", "thinking_leaked"),
        ((200, "I cannot answer that.", "", "stop"), "unparsed", ""),
        ((200, "J", "", "stop"), "unparsed", ""),
    ],
)
def test_each_useless_reply_has_its_name(reply: Any, verdict: str, doubt: str, tmp_path: Path) -> None:
    with faulty(lambda turn, time_asked, body: reply) as url:
        done = ask(url, tmp_path / "run")
    assert counted(done) == {verdict: 16}
    numbers = done.result.numbers
    assert numbers["gpqa.right"].value == 0
    assert numbers[{"empty": "gpqa.empty", "cut": "gpqa.cut_off", "unparsed": "gpqa.unparsed"}[verdict]].value == 16
    assert ("thinking_leaked" in done.result.doubts) == bool(doubt)
    assert done.result.parts["gpqa"].notes[0].startswith("16 of 16 answers")


def test_thinking_despite_off_is_taken_out_graded_and_doubted(tmp_path: Path) -> None:
    with faulty(lambda turn, time_asked, body: (200, "<think>The answer is A.</think>\nB", "", "stop")) as url:
        done = ask(url, tmp_path / "run")
    answers = RunFolder.open(done.folder).answers("gpqa")
    assert {answer.answer for answer in answers} == {"B"}
    assert done.result.doubts["thinking_leaked"] == ["gpqa: thinking came back in 16 of 16 replies, although it is off"]


def test_each_question_is_asked_with_the_contract_s_settings(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []
    with faulty(lambda turn, time_asked, body: bodies.append(body) or (200, "B", "", "stop")) as url:
        ask(url, tmp_path / "run", sampling={"temperature": 0.7, "top_p": 0.9}, limits={"gpqa": 33})
    assert len(bodies) == 16
    for body in bodies:
        assert (body["temperature"], body["top_p"], body["seed"], body["max_tokens"]) == (0.7, 0.9, 42, 33)
        assert "stop" not in body
        assert [message["role"] for message in body["messages"]] == ["user"]


def test_no_question_text_stands_in_what_is_published_of_gpqa(tmp_path: Path) -> None:
    with faulty(lambda turn, time_asked, body: (200, "B", "", "stop")) as url:
        done = ask(url, tmp_path / "run")
    questions = [q for q in letters.read(bring("gpqa", Path("house")).path) if q.category in letters.SCIENCE]
    texts = [
        line.strip() for q in questions for line in q.text.splitlines() if len(line.strip()) > 25 and line.strip() != letters.TASK
    ]
    assert len(texts) >= 16
    for path in done.folder.iterdir():
        if path.is_file() and not path.name.startswith("replies-"):
            content = path.read_text(encoding="utf-8")
            assert not [text for text in texts if text in content], path.name


def test_replies_that_can_quote_gpqa_are_held_back() -> None:
    for name in ("replies-gpqa.jsonl", "replies-think.jsonl", "runs/one/replies-gpqa.jsonl"):
        entry = Filter().judge(name, b'{"id":"gpqa-1","text":"B"}\n').entry
        assert entry.state == "held"
        assert "no example appear in plain text" in entry.reason
    assert Filter().judge("replies-mmlupro.jsonl", b'{"id":"mmlupro-1","text":"B"}\n').entry.state == "published"


def test_a_set_whose_bytes_changed_is_refused_on_resume(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "gpqa").mkdir(parents=True)
    rows = [{"question": f"Question {n}?\nA) one\nB) two\nC) three\nD) four", "answer": "ABCD"[n % 4]} for n in range(9)]
    path = data / "gpqa" / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with faulty(lambda turn, time_asked, body: (200, "B", "", "stop")) as url:
        done = ask(url, tmp_path / "run", data=data)
        assert done.result.numbers["gpqa.right"].value == 2
        contract = RunFolder.open(done.folder).contract()
        assert contract.settings["gpqa.set"].value == "Idavidrein/gpqa"
        assert contract.hashes["data/gpqa"] == contract.settings["gpqa.set_sha256"].value
        path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
        with pytest.raises(BrokenRun, match="bring the same file back, or begin a new run"):
            ask(url, tmp_path / "run", data=data, resume=True)


def test_killed_in_the_middle_and_resumed_asks_no_question_twice(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with serving(fake=quick(decode_tokens_per_s=300.0, window=16_384)) as url:
        command = [sys.executable, "-m", "homestretch", "measure", "--base-url", url, "--model", "fake", "--output", str(folder)]
        command += ["--parts", "mmlupro", "--data", "house", "--allow-load", "--at-once", "4"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        path = folder / "requests-mmlupro.jsonl"
        deadline = time.monotonic() + 60
        while not path.exists() or path.read_bytes().count(b"\n") < 10:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        before = path.read_bytes().rpartition(b"\n")[0]
        finished = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    run = RunFolder.open(folder)
    assert path.read_bytes().startswith(before)
    assert Counter(record.step for record in run.kept("mmlupro")).most_common(1)[0][1] == 1
    assert run.result().numbers["mmlupro.asked"].value == 40
    answers = (folder / "answers-mmlupro.jsonl").read_bytes()
    score(folder)
    assert (folder / "answers-mmlupro.jsonl").read_bytes() == answers
