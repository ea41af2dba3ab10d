"""Opens a checkpoint by its layout: a .gguf file, or a folder in the MLX or Hugging Face layout. Headers only."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from homestretch.engine.checkpoint import Checkpoint
from homestretch.engine.errors import CheckpointError, SetupError


def open_checkpoint(path: Path, *, four_bit: bool = False) -> Checkpoint:
    """The checkpoint at `path`. CheckpointError in one line when there is none, or one that is damaged or unknown.

    four_bit: pack the matrices of a dense Hugging Face folder to 4 bits in groups of 64 while they are read.
    """
    layout = layout_of(path)
    if four_bit:
        if layout != "hf":
            raise SetupError(f"--four-bit packs dense Hugging Face folders; {path.name} is packed already ({layout}): leave it out")
        from homestretch.engine.checkpoint.hf import HfCheckpoint

        return HfCheckpoint(path, four_bit=True)
    module = importlib.import_module(f"homestretch.engine.checkpoint.{layout}")
    checkpoint: Checkpoint = module.open_at(_only_gguf(path) if layout == "gguf" else path)
    return checkpoint


def layout_of(path: Path) -> str:
    """`gguf`, `mlx` or `hf`: the name of the file here that reads it."""
    if path.is_file():
        try:
            with path.open("rb") as file:
                start = file.read(4)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        if start == b"GGUF":
            return "gguf"
        raise CheckpointError(f"{path.name} is not a GGUF file; give a .gguf file or a folder with a config.json")
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is neither a file nor a folder; give a .gguf file or a folder with a config.json")
    if not path.is_dir():
        raise CheckpointError(f"{path} does not exist; give a .gguf file or a folder with a config.json")
    if (path / "config.json").is_file():
        return "mlx" if _is_mlx(path) else "hf"
    if _ggufs(path):
        return "gguf"
    raise CheckpointError(f"{path} holds neither a config.json nor a .gguf file")


def _is_mlx(path: Path) -> bool:
    """MLX marks quantized folders in config.json, and every file in the metadata of its safetensors header."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name}/config.json cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path.name}/config.json holds no object")
    return isinstance(config.get("quantization"), dict)


def _ggufs(path: Path) -> list[Path]:
    return sorted(found for found in path.glob("*.gguf") if found.is_file())


def _only_gguf(path: Path) -> Path:
    if path.is_file():
        return path
    found = _ggufs(path)
    if len(found) > 1:
        raise CheckpointError(f"{path} holds {len(found)} .gguf files ({found[0].name}, {found[1].name}, ...); name one of them")
    return found[0]
