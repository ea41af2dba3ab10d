"""Writes docs/map.md from the first line of every source file; `--check` fails when it is out of date."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "map.md"
SUFFIXES = {".py", ".cpp", ".hpp", ".sh", ".css", ".js", ".jinja"}


def first_line(path: Path) -> str:
    """What a file says of itself: the first line of its docstring, or of its leading comment."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        doc = ast.get_docstring(ast.parse(text)) or ""
        return doc.splitlines()[0] if doc else ""
    for line in text.splitlines()[:4]:
        found = re.match(r"\s*(?://|#(?!!)|/\*|\{#-?)\s*(.+?)\s*(?:\*/|-?#\})?\s*$", line)
        if found:
            return found.group(1)
    return ""


def render() -> str:
    lines = ["# Map", "", "Made by `make map` from the first line of every file.", ""]
    folders: dict[Path, list[Path]] = {}
    for top in ("src/homestretch", "bench", "tools"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and "__pycache__" not in path.parts and "node_modules" not in path.parts:
                folders.setdefault(path.parent, []).append(path)
    for folder, paths in sorted(folders.items()):
        lines += [f"## {folder.relative_to(ROOT)}", ""]
        paths.sort(key=lambda path: (path.name != "__init__.py", path.name))
        lines += [f"- `{path.name}` {first_line(path)}" for path in paths]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    text = render()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print("docs/map.md is out of date: run `make map`")
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
