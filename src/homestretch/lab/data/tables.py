"""Rows of a set's file: parquet, JSON lines, JSON or CSV; each row a mapping from column to value."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from homestretch.lab.errors import LabError, WrongUse


def rows(path: Path) -> list[dict[str, Any]]:
    """All rows in the order of the file. LabError when the file is of another kind or cannot be read."""
    try:
        if path.suffix == ".parquet":
            return _parquet(path)
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as file:
                return [json.loads(line) for line in file if line.strip()]
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8"))
            return list(found["data"] if isinstance(found, dict) and "data" in found else found)
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                return [dict(row) for row in csv.DictReader(file)]
    except (ValueError, UnicodeDecodeError) as error:
        raise LabError(f"{path} is not readable as {path.suffix[1:]}: {type(error).__name__}; fetch it again") from error
    raise LabError(f"{path}: question sets are .parquet, .jsonl, .json or .csv files")


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise WrongUse("parquet files need pyarrow; install it with `pip install homestretch[quality]`") from None
    return list(pyarrow.parquet.read_table(path).to_pylist())


def unique(names: Iterable[str], path: Path) -> None:
    """LabError when two rows share an id: results are keyed by it."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise LabError(f"{path} has two rows with the id {name}; each row needs its own")
        seen.add(name)


def need(found: Iterable[Mapping[str, Any]], columns: tuple[str, ...], path: Path) -> None:
    """LabError that names the columns a file lacks."""
    first = next(iter(found), None)
    if first is None:
        raise LabError(f"{path} holds no rows")
    if missing := [column for column in columns if column not in first]:
        raise LabError(f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(first)}")
