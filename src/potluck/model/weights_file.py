"""Weights in safetensors files: a trained model by name, from which another run can start, and checkpoints of a run."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from potluck.atomic_file import write_atomically
from potluck.errors import ModelError, RunError

__all__ = ["WEIGHTS_FILE", "latest_checkpoint", "load_weights", "read_checkpoint", "save_weights", "write_checkpoint"]


WEIGHTS_FILE = "model.safetensors"  # in a run's folder

_CHECKPOINTS_KEPT = 2


def save_weights(module: nn.Module, path: Path) -> Path:
    """Write the module's state; the file is complete or absent."""
    state = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    write_atomically(path, save(state))
    return path


def load_weights(module: nn.Module, path: Path) -> None:
    """Load the weights in a file or a run's folder; on a ModelError the module is unchanged."""
    saved, own = _read_tensors(_resolve_path(path)), module.state_dict()
    problem = _find_mismatch(saved, own)
    if problem is not None:
        raise ModelError(f"the weights in {path} do not fit this model: {problem}; train the same model first")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(saved[name])


def _resolve_path(path: Path) -> Path:
    if not path.is_dir():
        return path
    if not (path / WEIGHTS_FILE).exists():
        raise ModelError(
            f"{path} has no {WEIGHTS_FILE}; name a file, or the folder of a finished run that trained the whole model"
        )
    return path / WEIGHTS_FILE


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read {path}: {error}") from None


def _find_mismatch(saved: dict[str, Tensor], own: dict[str, Tensor]) -> str | None:
    for name, value in own.items():
        if name not in saved:
            return f"{name!r} is missing"
        actual, expected = tuple(saved[name].shape), tuple(value.shape)
        if actual != expected:
            return f"{name!r} has shape {actual}, not {expected}"
        if not saved[name].isfinite().all():
            return f"{name!r} contains NaN or infinity"
    unknown = sorted(saved.keys() - own.keys())
    return f"the model has no {unknown[0]!r}" if unknown else None


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
