"""Checkpoints of a run: tensors and a text of metadata in one safetensors file, complete or absent."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from potluck.atomic_file import write_atomically
from potluck.errors import RunError

__all__ = ["latest_checkpoint", "read_checkpoint", "write_checkpoint"]

_CHECKPOINTS_KEPT = 2


def write_checkpoint(folder: Path, number: int, tensors: dict[str, Tensor], metadata: str) -> Path:
    """Write checkpoint `number` and delete all but the latest ones."""
    folder.mkdir(exist_ok=True)
    for interrupted in folder.glob("*.partial"):
        interrupted.unlink()
    path = folder / f"{number:08d}.safetensors"
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(contiguous, metadata={"potluck": metadata}))
    for old in sorted(folder.glob("*.safetensors"))[:-_CHECKPOINTS_KEPT]:
        old.unlink()
    return path


def latest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint of a run."""
    checkpoints = sorted(folder.glob("*.safetensors"))
    if not checkpoints:
        raise RunError(f"no checkpoint in {folder}: the run ended before its first one; start it again")
    return checkpoints[-1]


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors and the metadata of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get("potluck")
            if metadata is None:
                raise RunError(f"{path} is not a checkpoint of a run")
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RunError(f"cannot read checkpoint {path}: {error}") from None
