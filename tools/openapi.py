"""Writes seam/openapi.json from the engine's request structs; a test says when it is stale."""

from __future__ import annotations

import json
from pathlib import Path

from homestretch.engine.server.openapi import document

if __name__ == "__main__":
    target = Path(__file__).parent.parent / "seam" / "openapi.json"
    target.write_text(json.dumps(document(), indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    print(target)
