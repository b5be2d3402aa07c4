"""Data sets from Python objects: tensors, arrays, or any map-style `torch.utils.data.Dataset`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch import Tensor

from potluck.data.data_splits import split_holdout
from potluck.data.dataset_files import LARGEST_BYTES
from potluck.data.samples import PLAIN, Dataset, Samples, Scaling
from potluck.errors import DataError

__all__ = ["from_tensors", "from_torch"]

Values = Tensor | npt.ArrayLike


def from_tensors(
    x: Values,
    y: Values,
    x_test: Values,
    y_test: Values,
    *,
    name: str = "own",
    classes: Sequence[str] | int | None = None,
    owner: npt.ArrayLike | None = None,
    owner_test: npt.ArrayLike | None = None,
    scaling: Scaling = PLAIN,
) -> Dataset:
    """Make a data set from tensors or arrays; integer targets are class labels starting at 0."""
    train = _make_samples("training", x, y, owner, scaling)
    test = _make_samples("test", x_test, y_test, owner_test, scaling)
    return Dataset(name=name, train=train, test=test, classes=_class_names(classes, train.y))


def from_torch(
    train: torch.utils.data.Dataset[Any],
    test: torch.utils.data.Dataset[Any] | None = None,
    *,
    name: str = "own",
    classes: Sequence[str] | int | None = None,
    owner: npt.ArrayLike | None = None,
    owner_test: npt.ArrayLike | None = None,
    scaling: Scaling = PLAIN,
    test_share: float = 0.2,
    largest_bytes: int = LARGEST_BYTES,
) -> Dataset:
    """Read a map-style data set of (input, target) pairs into memory; without `test`, hold out `test_share` of it."""
    x, y = _read_into_memory("training", train, largest_bytes)
    if test is not None:
        x_test, y_test = _read_into_memory("test", test, largest_bytes)
    else:
        owners = None if owner is None else np.asarray(owner)
        x, y, x_test, y_test, owner, owner_test = _hold_out_test(x, y, owners, test_share)
    return from_tensors(
        x, y, x_test, y_test, name=name, classes=classes, owner=owner, owner_test=owner_test, scaling=scaling
    )


def _make_samples(part: str, x: Values, y: Values, owner: npt.ArrayLike | None, scaling: Scaling) -> Samples:
    inputs, targets = torch.as_tensor(x).detach().cpu(), torch.as_tensor(y).detach().cpu()
    if inputs.ndim == 0 or targets.ndim == 0:
        raise DataError(f"{part} data needs one row for each sample, got a single number")
    inputs = inputs if inputs.dtype == torch.uint8 else inputs.to(torch.float32)
    if inputs.dtype == torch.float32 and not bool(torch.isfinite(inputs).all()):
        raise DataError(f"{part} inputs hold values that are not finite; clean them first")
    targets = targets.to(torch.float32 if targets.is_floating_point() else torch.int64)
    return Samples(inputs, targets, owner=None if owner is None else np.asarray(owner, np.int64), scaling=scaling)


def _class_names(classes: Sequence[str] | int | None, y: Tensor) -> tuple[str, ...]:
    if classes is None and (y.is_floating_point() or y.ndim != 1):
        return ()
    if classes is None:
        classes = int(y.max()) + 1 if len(y) else 0
    return tuple(str(number) for number in range(classes)) if isinstance(classes, int) else tuple(classes)


def _read_into_memory(part: str, data: torch.utils.data.Dataset[Any], largest_bytes: int) -> tuple[Tensor, Tensor]:
    """Copy all samples into two tensors, allocated by the first sample's shape, which all others must have."""
    if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
        raise DataError(f"the {part} data set has no length; collect it into a list or tensors, or use a stream")
    count = len(data)
    if count == 0:
        raise DataError(f"the {part} data set is empty")
    first_x, first_y = _read_pair(part, data, 0)
    wanted = count * math.prod(first_x.shape) * first_x.element_size()
    if wanted > largest_bytes:
        raise DataError(f"the {part} data set would take {wanted:,} bytes in memory; {largest_bytes:,} are allowed")
    x = torch.empty((count, *first_x.shape), dtype=first_x.dtype)
    y = torch.empty((count, *first_y.shape), dtype=first_y.dtype)
    for index in range(count):
        inputs, target = (first_x, first_y) if index == 0 else _read_pair(part, data, index)
        _check_alike(part, index, inputs, first_x, "input")
        _check_alike(part, index, target, first_y, "target")
        x[index], y[index] = inputs, target
    return x, y


def _read_pair(part: str, data: torch.utils.data.Dataset[Any], index: int) -> tuple[Tensor, Tensor]:
    sample = data[index]
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise DataError(f"{part} sample {index} is a {type(sample).__name__}, expected a pair (input, target)")
    try:
        x, y = (torch.as_tensor(value).detach().cpu() for value in sample)
    except (TypeError, ValueError, RuntimeError) as error:
        hint = "add a transform that returns tensors"
        raise DataError(f"{part} sample {index} cannot become tensors ({error}); {hint}") from error
    x = x if x.dtype == torch.uint8 else x.to(torch.float32)
    return x, y.to(torch.float32 if y.is_floating_point() else torch.int64)


def _check_alike(part: str, index: int, tensor: Tensor, first: Tensor, what: str) -> None:
    if tensor.shape != first.shape or tensor.dtype != first.dtype:
        actual, expected = (f"{one.dtype} {tuple(one.shape)}" for one in (tensor, first))
        raise DataError(
            f"{part} sample {index}: its {what} is {actual}, but sample 0 has {expected};"
            " make all samples the same shape"
        )


def _hold_out_test(
    x: Tensor, y: Tensor, owner: npt.NDArray[Any] | None, fraction: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, npt.NDArray[Any] | None, npt.NDArray[Any] | None]:
    if not 0 < fraction < 1 or len(x) < 2:
        raise DataError(f"cannot hold out {fraction} of {len(x)} samples for testing; pass a test set")
    labelled = y.ndim == 1 and not y.is_floating_point()
    labels = y.numpy() if labelled else np.zeros(len(y), np.int64)
    train, test = split_holdout(labels, max(1, round(fraction * len(x))))
    owners = (None, None) if owner is None else (owner[train], owner[test])
    return x[train], y[train], x[test], y[test], *owners
