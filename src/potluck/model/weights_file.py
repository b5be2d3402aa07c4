"""Weights in safetensors files: a trained model by name, from which another run can start, and checkpoints of a run.

Each file carries a digest of all that it holds, so that a damaged one is noticed; files of older versions have none.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from potluck.atomic_file import UNUSABLE, write_atomically
from potluck.checkpoint_files import checkpoint_name, list_checkpoints
from potluck.errors import ModelError, RunError

__all__ = [
    "BEST_FILE",
    "WEIGHTS_FILE",
    "find_damage",
    "latest_checkpoint",
    "load_weights",
    "read_checkpoint",
    "read_header",
    "save_weights",
    "write_checkpoint",
]


WEIGHTS_FILE = "model.safetensors"  # in a run's folder
BEST_FILE = "best.safetensors"

_HEADER_KEY = "potluck"
_SEAL = "sha256:"

_CHECKPOINTS_KEPT = 3  # where the newest is damaged, there are still two


def save_weights(module: nn.Module, path: Path, header: str | None = None) -> Path:
    """Write the module's state, with a text in the file's header; the file is complete or absent."""
    state = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    write_atomically(path, _serialize(state, header))
    return path


def read_header(path: Path) -> str:
    """The text in the header of a file; OSError if there is none, or if the file is damaged."""
    try:
        header = _read_file(path)[1]
    except _DamagedFileError as error:
        raise OSError(str(error)) from None
    if header is None:
        raise OSError("it has no header")
    return header


def find_damage(path: Path) -> str | None:
    """Why the file cannot be used; None if it is whole."""
    try:
        _read_file(path)
    except _DamagedFileError as error:
        return str(error)
    return None


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
        return _read_file(path)[0]
    except _DamagedFileError as error:
        raise ModelError(f"cannot read {path}: {error}") from None


def _find_mismatch(saved: dict[str, Tensor], own: dict[str, Tensor]) -> str | None:
    for name, value in own.items():
        if name not in saved:
            return f"{name!r} is missing"
        actual, expected = tuple(saved[name].shape), tuple(value.shape)
        if actual != expected:
            return f"{name!r} has shape {actual}, not {expected}"
        if not (saved[name].isfinite() | (saved[name] == value)).all():  # a mask may hold -inf
            return f"{name!r} contains NaN or infinity"
    unknown = sorted(saved.keys() - own.keys())
    return f"the model has no {unknown[0]!r}" if unknown else None


def write_checkpoint(folder: Path, number: int, tensors: dict[str, Tensor], metadata: str) -> Path:
    """Write checkpoint `number`; delete all but the latest ones, and unusable ones that it replaces."""
    folder.mkdir(exist_ok=True)
    for interrupted in folder.glob("*.partial"):
        interrupted.unlink()
    path = folder / checkpoint_name(number)
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, _serialize(contiguous, metadata))
    replaced = [old for old in folder.glob(f"*{UNUSABLE}") if old.name <= f"{path.name}{UNUSABLE}"]
    for old in [*list_checkpoints(folder)[_CHECKPOINTS_KEPT:], *replaced]:
        old.unlink()
    return path


def latest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint of a run; RunError if there is none."""
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        raise RunError(f"no checkpoint in {folder}")
    return checkpoints[0]


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors and the metadata of a checkpoint; RunError if it is damaged."""
    try:
        tensors, metadata = _read_file(path)
    except _DamagedFileError as error:
        raise RunError(f"cannot read checkpoint {path}: {error}") from None
    if metadata is None:
        raise RunError(f"{path} is not a checkpoint of a run")
    return tensors, metadata


# --- files with a digest ---------------------------------------------------------------------------------------------


class _DamagedFileError(Exception):
    """A file that cannot be read, or whose content is not what was written."""


def _serialize(tensors: dict[str, Tensor], header: str | None) -> bytes:
    """Digest and header are one entry: the order of several is random, and equal content should be equal bytes."""
    entry = _SEAL + _content_digest(tensors, header) + ("" if header is None else f" {header}")
    return save(tensors, metadata={_HEADER_KEY: entry})


def _read_file(path: Path) -> tuple[dict[str, Tensor], str | None]:
    try:
        with safe_open(path, framework="pt") as file:
            entry = (file.metadata() or {}).get(_HEADER_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise _DamagedFileError(str(error)) from None
    if entry is None or entry.startswith("{"):  # not written by Potluck, or by an older version
        return tensors, entry
    digest, has_header, header = entry.removeprefix(_SEAL).partition(" ")
    if digest != _content_digest(tensors, header if has_header else None):
        raise _DamagedFileError("its content does not match its digest")
    return tensors, header if has_header else None


def _content_digest(tensors: dict[str, Tensor], header: str | None) -> str:
    total = hashlib.sha256(repr(header).encode(errors="surrogatepass"))
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().reshape(-1)
        total.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        if flat.numel():
            total.update(flat.contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()
