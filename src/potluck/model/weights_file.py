"""A network's numbers by name in a file of their own (safetensors), for whoever goes on from there."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from potluck.errors import ModelError

__all__ = ["FILE", "load_weights", "save_weights"]

FILE = "model.safetensors"  # in a run's folder


def save_weights(module: nn.Module, path: Path) -> Path:
    """Write aside and rename: the file is whole or absent."""
    aside = path.with_name(f"{path.name}.partial")
    save_file({name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}, aside)
    aside.replace(path)
    return path


def load_weights(module: nn.Module, path: Path) -> None:
    """Give a network the numbers of a file or of a run; ModelError says what does not fit, and nothing is changed."""
    numbers, mine = _read_tensors(_resolve_path(path)), module.state_dict()
    problem = _find_mismatch(numbers, mine)
    if problem is not None:
        raise ModelError(f"the numbers in {path} are not this network's: {problem}; train the same model first")
    with torch.no_grad():
        for name, value in mine.items():
            value.copy_(numbers[name])


def _resolve_path(path: Path) -> Path:
    if not path.is_dir():
        return path
    if not (path / FILE).exists():
        raise ModelError(
            f"{path} holds no {FILE}; name the folder of a run that trained the whole network and has ended, or a file"
        )
    return path / FILE


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read {path}: {error}") from None


def _find_mismatch(numbers: dict[str, Tensor], mine: dict[str, Tensor]) -> str | None:
    for name, value in mine.items():
        if name not in numbers:
            return f"{name!r} is missing"
        theirs, ours = tuple(numbers[name].shape), tuple(value.shape)
        if theirs != ours:
            return f"{name!r} has the shape {theirs}, not {ours}"
        if not numbers[name].isfinite().all():
            return f"{name!r} has values that are not finite"
    strange = sorted(numbers.keys() - mine.keys())
    return f"there is no {strange[0]!r} in it" if strange else None
