"""Checkpoints: tensors and a few words in one safetensors file, written aside and renamed: whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from potluck.errors import RunError

__all__ = ["latest_checkpoint", "read_checkpoint", "write_checkpoint"]

_KEPT = 2


def write_checkpoint(folder: Path, number: int, tensors: dict[str, Tensor], words: str) -> Path:
    """Save as number `number` and forget all but the latest ones."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:08d}.safetensors"
    aside = path.with_suffix(".partial")
    data = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, metadata={"potluck": words})
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    _fsync_folder(folder)
    for old in sorted(folder.glob("*.safetensors"))[:-_KEPT]:
        old.unlink()
    return path


def latest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint of a run."""
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise RunError(f"no checkpoint in {folder}; the run ended before its first one, start it anew")
    return found[-1]


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors and the words of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            words = (file.metadata() or {}).get("potluck")
            if words is None:
                raise RunError(f"{path} is not a checkpoint of a run")
            return {name: file.get_tensor(name) for name in file.keys()}, words  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RunError(f"cannot read checkpoint {path}: {error}") from None


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
