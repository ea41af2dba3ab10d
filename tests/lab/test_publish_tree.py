"""A run folder of very many files is published in part, and its list says so."""

from __future__ import annotations

from pathlib import Path

from homestretch.lab.publish.filter import Filter
from homestretch.lab.publish.tree import MAX_FILES, filter_run


def test_more_files_than_are_looked_at_are_named_as_held_back(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 5):
        (tmp_path / f"log-{number:05}.txt").write_text("the server is ready\n")
    entries = [judged.entry for judged in filter_run(tmp_path, Filter.of_this_machine())]
    assert len(entries) == MAX_FILES + 1
    told = [entry for entry in entries if entry.state == "held"]
    assert [entry.name for entry in told] == ["(further files)"]
    assert "1,000" in told[0].reason
