"""A run folder: append-only raw files with fsync, recovery after a kill, derived files, and the manifest."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

try:
    import fcntl
except ImportError:  # Windows has none; there a second lab is not noticed
    fcntl = None  # type: ignore[assignment]

from homestretch.lab.errors import BrokenRun, WrongUse
from homestretch.lab.exchange import Outcome
from homestretch.lab.types import (
    Answer,
    Contract,
    GuardSample,
    Manifest,
    ManifestEntry,
    Record,
    ReplyRecord,
    RequestRecord,
    Result,
    StepSummary,
)

T = TypeVar("T", bound=Record)
DERIVED = ("result.json", "manifest.json")


def now() -> str:
    """Wall clock in UTC, to the millisecond, as every record writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_lines(path: Path, records: Iterable[Record]) -> None:
    """All lines in one write, on the disk before it returns."""
    data = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, record: Record) -> None:
    """A JSON file that is there whole or not at all."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_whole(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise BrokenRun(f"{path} is missing; a run folder holds contract.json, requests-PART.jsonl and result.json") from None
    except msgspec.MsgspecError as error:
        raise BrokenRun(f"{path} is not a readable {kind.__name__}: {error}") from None


def read_lines(path: Path, kind: type[T]) -> Iterator[T]:
    """Records of a raw file; a last line torn by a kill is left out, any other unreadable line is a BrokenRun."""
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise BrokenRun(f"{path} line {number} is not a readable {kind.__name__}: {error}") from None


class RunFolder:
    """`path` and what lies in it. Appending is thread-safe; an attempt's replies are written before its requests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._steps: dict[str, dict[str, list[RequestRecord]]] = {}

    @staticmethod
    def create(path: Path) -> RunFolder:
        """A new folder; WrongUse when it holds files already (a run is never overwritten)."""
        if path.exists() and not path.is_dir():
            raise WrongUse(f"{path} is a file; a run needs a folder of its own: give another --output")
        if path.exists() and any(path.iterdir()):
            raise WrongUse(f"{path} is not empty; a run is never overwritten: give another --output, or --resume to go on with it")
        path.mkdir(parents=True, exist_ok=True)
        return RunFolder(path)

    @staticmethod
    def open(path: Path) -> RunFolder:
        if not (path / "contract.json").exists():
            raise WrongUse(f"{path} is no run folder: it holds no contract.json")
        return RunFolder(path)

    # --- reading -------------------------------------------------------------------------------------------------------------

    def contract(self) -> Contract:
        return read_whole(self.path / "contract.json", Contract)

    def result(self) -> Result:
        return read_whole(self.path / "result.json", Result)

    def manifest(self) -> Manifest:
        return read_whole(self.path / "manifest.json", Manifest)

    def parts(self) -> tuple[str, ...]:
        """Parts the contract asks for, in order."""
        settings = self.contract().settings
        return tuple(settings["parts"].value) if "parts" in settings else ()

    def requests(self, part: str) -> list[RequestRecord]:
        """Every request of a part, discarded ones and those of cut attempts too, in the order of the file."""
        return list(read_lines(self.path / f"requests-{part}.jsonl", RequestRecord))

    def kept(self, part: str) -> list[RequestRecord]:
        """Requests that count: of whole attempts that were not discarded."""
        return [record for step in self._index(part).values() for record in whole(step)]

    def replies(self, part: str) -> dict[str, ReplyRecord]:
        return {reply.id: reply for reply in read_lines(self.path / f"replies-{part}.jsonl", ReplyRecord)}

    def answers(self, part: str) -> list[Answer]:
        return list(read_lines(self.path / f"answers-{part}.jsonl", Answer))

    def guard_samples(self, name: str = "guard") -> list[GuardSample]:
        """Samples of `guard.jsonl`, or with name="quiet" of `quiet.jsonl`."""
        return list(read_lines(self.path / f"{name}.jsonl", GuardSample))

    def outcomes(self, part: str, step: str) -> list[Outcome]:
        """The outcomes of a step that is done; [] when it is not."""
        kept = whole(self._index(part).get(step, []))
        if not kept:
            return []
        replies = self.replies(part)
        return [Outcome(record=record, reply=replies.get(record.id, ReplyRecord(id=record.id))) for record in kept]

    def attempts(self, part: str, step: str) -> int:
        return max((record.attempt for record in self._index(part).get(step, [])), default=0)

    def steps_done(self, part: str) -> set[str]:
        return {name for name, records in self._index(part).items() if whole(records)}

    def step_summary(self, part: str) -> StepSummary:
        """Steps, discarded attempts and the busiest foreign process of a part, from requests and guard samples."""
        index = self._index(part)
        discarded = {(r.step, r.attempt) for records in index.values() for r in records if r.discarded}
        samples = [sample for sample in self.guard_samples() if sample.step.split("/")[0] == part]
        busiest = max((load for sample in samples for load in sample.foreign), key=lambda load: load.cpu_pct, default=None)
        return StepSummary(
            steps=len([step for step in index if not step.startswith("warmup")]),
            discarded=len(discarded),
            samples=len(samples),
            busiest_name=busiest.name if busiest else "",
            busiest_pct=busiest.cpu_pct if busiest else 0.0,
        )

    # --- writing -------------------------------------------------------------------------------------------------------------

    def append(self, part: str, outcomes: Sequence[Outcome]) -> None:
        """One attempt of a step: replies first, then its requests in one write, so that a kill leaves it whole or absent."""
        with self._lock:
            self._index_locked(part)
            append_lines(self.path / f"replies-{part}.jsonl", [outcome.reply for outcome in outcomes])
            append_lines(self.path / f"requests-{part}.jsonl", [outcome.record for outcome in outcomes])
            for outcome in outcomes:
                self._steps[part].setdefault(outcome.record.step, []).append(outcome.record)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it lasts no other lab may write here; WrongUse when one does already."""
        with (self.path / "log.txt").open("a", encoding="utf-8") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise WrongUse(f"another lab is writing to {self.path}; wait for it, or stop it") from None
            yield

    def log(self, text: str) -> None:
        """A dated line in log.txt."""
        with self._lock, (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{now()} {text}\n")

    def write_contract(self, contract: Contract) -> None:
        write_whole(self.path / "contract.json", contract)

    def write_derived(self, result: Result, answers: dict[str, tuple[Answer, ...]]) -> None:
        """`result.json` and `answers-PART.jsonl`, made anew, then the manifest."""
        for part, lines in answers.items():
            path = self.path / f"answers-{part}.jsonl"
            path.unlink(missing_ok=True)
            append_lines(path, lines)
        write_whole(self.path / "result.json", result)
        self.write_manifest()

    def write_manifest(self) -> None:
        files = {}
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            if path.is_file() and name != "manifest.json" and not name.endswith(".part"):
                files[name] = ManifestEntry(bytes=path.stat().st_size, sha256=sha256_of(path))
        write_whole(self.path / "manifest.json", Manifest(files=files))

    def recover(self) -> list[str]:
        """After a kill: cut torn last lines and the lines of the attempt in flight; says what was cut."""
        cut = []
        for path in sorted(self.path.glob("*.jsonl")):
            if torn := _cut_torn_line(path):
                cut.append(f"{path.name}: {torn} bytes of a torn last line")
        for path in sorted(self.path.glob("requests-*.jsonl")):
            part = path.stem.removeprefix("requests-")
            records = self.requests(part)
            tail = [r for r in records if records and (r.step, r.attempt) == (records[-1].step, records[-1].attempt)]
            if tail and len(tail) < tail[0].of:
                _cut_lines(path, len(records) - len(tail))
                cut.append(f"{path.name}: {len(tail)} of {tail[0].of} requests of step {tail[0].step}")
        for path in sorted(self.path.glob("replies-*.jsonl")):
            part = path.stem.removeprefix("replies-")
            known = {record.id for record in self.requests(part)}
            replies = list(read_lines(path, ReplyRecord))
            keep = len(replies)
            while keep and replies[keep - 1].id not in known:
                keep -= 1
            if keep < len(replies):
                _cut_lines(path, keep)
                cut.append(f"{path.name}: {len(replies) - keep} replies without a request")
        self._steps.clear()
        return cut

    # --- index ---------------------------------------------------------------------------------------------------------------

    def _index(self, part: str) -> dict[str, list[RequestRecord]]:
        with self._lock:
            return self._index_locked(part)

    def _index_locked(self, part: str) -> dict[str, list[RequestRecord]]:
        if part not in self._steps:
            index: dict[str, list[RequestRecord]] = {}
            for record in self.requests(part):
                index.setdefault(record.step, []).append(record)
            self._steps[part] = index
        return self._steps[part]


def whole(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Of one step's requests those of its counting attempt: complete, not discarded; the first such attempt."""
    attempts: dict[int, list[RequestRecord]] = {}
    for record in records:
        if not record.discarded:
            attempts.setdefault(record.attempt, []).append(record)
    for attempt in sorted(attempts):
        if len(attempts[attempt]) == attempts[attempt][0].of:
            return attempts[attempt]
    return []


def _cut_torn_line(path: Path) -> int:
    data = path.read_bytes()
    keep = data.rfind(b"\n") + 1
    if keep < len(data):
        os.truncate(path, keep)
    return len(data) - keep


def _cut_lines(path: Path, keep: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    os.truncate(path, sum(len(line) for line in lines[:keep]))
