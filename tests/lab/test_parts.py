"""Every part, found by its file: its example runs against `fake` and gives the numbers it promises; what it declares is whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from lab_fake import RETRY, options

from homestretch.lab import parts
from homestretch.lab.errors import WrongUse
from homestretch.lab.fake.behaviour import Behaviour, FakeReply
from homestretch.lab.fake.server import FakeServer
from homestretch.lab.progress import Progress
from homestretch.lab.run import measure

SELF_STARTING = {"fit"}  # needs a server that it may start again; its own tests do that
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", parts.names())
def test_a_part_declares_itself(name: str) -> None:
    part = parts.load(name)
    assert part.asks.endswith("?")
    assert part.version >= 1
    assert part.numbers
    for spec in part.numbers:
        assert spec.meaning
        assert spec.unit
        assert 0 <= spec.digits <= 2


def test_parts_run_in_order_and_groups_select() -> None:
    assert parts.select("speed") == ("decode", "prefill", "conc", "ctx")
    assert parts.select("ctx, decode,speed") == ("decode", "prefill", "conc", "ctx")
    with pytest.raises(WrongUse, match="groups: speed, quality"):
        parts.select("sped")
    with pytest.raises(WrongUse, match="names no part"):
        parts.select(" , ")


def filled(value: Any, folder: Path) -> Any:
    if isinstance(value, str):
        return value.replace("{folder}", str(folder))
    if isinstance(value, Path):
        return Path(str(value).replace("{folder}", str(folder)))
    return value


@pytest.mark.parametrize("name", [name for name in parts.names() if name not in SELF_STARTING])
def test_the_example_gives_its_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homestretch.lab.run._check_instrument", lambda folder, say: None)
    example = parts.load(name).example()
    for file, text in example.files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    answers = tuple(
        FakeReply(match=one.match, text=one.text, reasoning=one.reasoning, finish_reason=one.finish_reason)
        for one in example.answers
    )
    server = FakeServer({"fake": Behaviour(decode_tokens_per_s=20_000.0, prefill_tokens_per_s=1e6)}, answers=answers)
    try:
        changes = {key: filled(value, tmp_path) for key, value in example.options.items() if key != "parts"}
        done = measure(options(server.url, tmp_path / "run", name, **changes), progress=Progress(quiet=True), retry=RETRY)
    finally:
        server.close()
    assert done.result.parts[name].state == "done", done.result.parts[name]
    for number, expected in example.numbers.items():
        assert number in done.result.numbers, sorted(done.result.numbers)
        value = done.result.numbers[number].value
        assert value is not None, number
        if expected is not None:
            assert value == pytest.approx(expected), number


def declared() -> list[str]:
    return sorted({spec.name for name in parts.names() for spec in parts.load(name).numbers})


@pytest.mark.parametrize("name", declared())
def test_every_number_has_its_paragraph(name: str) -> None:
    text = (DOCS / "numbers.md").read_text(encoding="utf-8")
    group = name.split(".")[0]
    shared = name.replace("ruler.DEPTH.", "PART.").replace(f"{group}.", "PART.")
    quality = parts.load(group).group == "quality" if group in parts.names() else False
    assert f"`{name}`" in text or (quality and f"`{shared}`" in text)


def test_every_doubt_has_its_paragraph() -> None:
    from homestretch.lab.doubts import DOUBTS

    text = (DOCS / "doubts.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (refuses|tells) \|", text, re.M))
    assert rows == {name: "refuses" if doubt.refuses else "tells" for name, doubt in DOUBTS.items()}
