"""Signatures."""

from pathlib import Path


def signature_state(folders: list[Path]) -> None:
    return None
