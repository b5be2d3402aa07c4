"""Reads samples from any map-style data set when they are needed, so that data may be larger than memory.

Transforms run on every read. The generators of `random`, NumPy and PyTorch are seeded for each sample from the run's
seed, so two runs read the same values, and a sample is transformed differently in each epoch.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import default_collate

from potluck.data.iterable_stream import NumberedIterable
from potluck.errors import DataError
from potluck.user_code import describe_user_error

__all__ = ["Collate", "LabelFunction", "LazySamples", "seed_generators"]

Collate = Callable[[list[Any]], Any]
LabelFunction = Callable[[Any, Any], int]

_TARGET_KEYS = ("labels", "label", "targets", "target", "y")
_EVALUATION_SEED = 0
_log = logging.getLogger("potluck")
_random_state = threading.RLock()  # the global generators are shared by all threads


@dataclass(frozen=True, eq=False)
class LazySamples:
    """Samples of a map-style data set: `data[i]` is (input, target), (inputs…, target) or a dict with a target."""

    data: Any
    collate: Collate = default_collate
    owner: npt.NDArray[np.int64] | None = None
    label: LabelFunction | Sequence[int] | npt.NDArray[np.int64] | None = None
    """The class label of a sample, from its input and target; or the labels of all samples."""
    inputs: str | Sequence[str] | None = None
    """The key of a dict sample that is the input, or the keys; by default all but the target."""
    target: str | None = None
    """The key of a dict sample that is the target; by default `labels`, `label`, `targets`, `target` or `y`."""
    rows: npt.NDArray[np.int64] | None = None
    """Which of the data set's samples these are; None: all."""
    dtype: torch.dtype = torch.float32

    needs_rng = True

    @property
    def is_stream(self) -> bool:
        """Whether samples come in an order of their own, one after the other."""
        return isinstance(self.data, NumberedIterable)

    def __len__(self) -> int:
        return len(self.data) if self.rows is None else len(self.rows)

    def batch(self, indices: npt.NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        """Read and collate these samples; without `rng`, random transforms always draw the same."""
        inputs, targets = self._read(indices, rng)
        return tree_map_only(Tensor, self._to_input, inputs), tree_map_only(Tensor, self._to_target, targets)

    def stored_batch(self, indices: npt.NDArray[np.integer]) -> tuple[Any, Any]:
        """The same as `batch` without a generator."""
        return self.batch(indices)

    def with_dtype(self, dtype: torch.dtype) -> LazySamples:
        """The same samples, with floating-point tensors of this dtype."""
        return self if dtype == self.dtype else dataclasses.replace(self, dtype=dtype)

    def content_digest(self) -> None:
        """They are read when they are needed."""

    def subset(self, indices: npt.NDArray[np.int64]) -> LazySamples:
        """Some of the samples; no sample is read or copied."""
        label = np.asarray(self.label)[indices] if isinstance(self.label, Sequence | np.ndarray) else self.label
        owner = None if self.owner is None else self.owner[indices]
        rows = indices if self.rows is None else self.rows[indices]
        return dataclasses.replace(self, rows=rows, label=label, owner=owner)

    @property
    def has_labels(self) -> bool:
        """Whether each sample has one class label, judged by the first."""
        if self.is_stream:
            return False  # they are not known before they arrive
        return self.label is not None or _is_label(self.batch(np.arange(1))[1])

    @property
    def has_known_labels(self) -> bool:
        """Whether labels are known without reading the samples, as torchvision's `targets` are."""
        known = getattr(self.data, "targets", None) if self.label is None else self.label
        return isinstance(known, Sequence | np.ndarray | Tensor) and np.ndim(np.asarray(known)) == 1

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """The class label of each sample; without `label` or a `targets` attribute, all samples are read once."""
        if self.has_known_labels:
            known = self.data.targets if self.label is None else self.label
            labels = _check_labels(known, len(self) if known is self.label else len(self.data))
            return labels if known is self.label or self.rows is None else labels[self.rows]
        if not self.has_labels:
            raise DataError("the targets are not class labels; give `label`, a function of (input, target)")
        _log.info("reading all %d samples once for their labels; give `label` to avoid it", len(self))
        return np.array([self._label_of(index) for index in range(len(self))], np.int64)

    def _label_of(self, index: int) -> int:
        inputs, targets = self.batch(np.array([index]))
        if callable(self.label):
            one_input, one_target = (tree_map_only(Tensor, lambda leaf: leaf[0], tree) for tree in (inputs, targets))
            return int(self.label(one_input, one_target))
        return int(targets[0])

    def _read(self, indices: npt.NDArray[np.integer], rng: np.random.Generator | None) -> tuple[Any, Any]:
        numbers = [int(index) for index in (indices if self.rows is None else self.rows[indices])]
        seeds = _EVALUATION_SEED + np.asarray(numbers) if rng is None else rng.integers(2**32, size=len(numbers))
        try:
            with _own_random_state():
                samples = self._read_seeded(numbers, seeds)
                collated = self.collate(samples)
        except DataError:
            raise
        except Exception as error:  # the user's data set may raise anything
            raise DataError(f"reading samples {_shorten(numbers)} failed: {describe_user_error(error)}") from error
        return self._split_batch(collated)

    def _read_seeded(self, numbers: list[int], seeds: npt.NDArray[np.integer]) -> list[Any]:
        read_many = getattr(self.data, "__getitems__", None)
        if read_many is not None:
            seed_generators(int(seeds[0]))
            return list(read_many(numbers))
        samples = []
        for number, seed in zip(numbers, seeds.tolist(), strict=True):
            seed_generators(seed)
            try:
                samples.append(self.data[number])
            except Exception as error:  # the user's data set may raise anything
                raise DataError(f"reading sample {number} failed: {describe_user_error(error)}") from error
        return samples

    def _split_batch(self, collated: Any) -> tuple[Any, Any]:
        if isinstance(collated, Mapping):
            return self._split_mapping(collated)
        if not isinstance(collated, tuple | list) or len(collated) < 2:
            raise DataError(
                f"a sample is a {type(collated).__name__}; expected (input, target) or a dict with a target"
            )
        *inputs, targets = collated
        return inputs[0] if len(inputs) == 1 else tuple(inputs), targets

    def _split_mapping(self, collated: Mapping[str, Any]) -> tuple[Any, Any]:
        known = ", ".join(map(str, collated))
        target = self.target or next((key for key in _TARGET_KEYS if key in collated), None)
        if target is None or target not in collated:
            raise DataError(f"samples have the keys {known}; say which one is the `target`")
        if isinstance(self.inputs, str):
            wanted: Any = [self.inputs]
        else:
            wanted = [key for key in collated if key != target] if self.inputs is None else list(self.inputs)
        missing = [key for key in wanted if key not in collated]
        if missing or not wanted:
            raise DataError(f"samples have the keys {known}, but not the inputs {', '.join(missing) or 'asked for'}")
        inputs = {key: collated[key] for key in wanted}
        return inputs[self.inputs] if isinstance(self.inputs, str) else inputs, collated[target]

    def _to_input(self, tensor: Tensor) -> Tensor:
        return self._cast_floats(tensor.to(torch.float32) if tensor.dtype == torch.uint8 else tensor)

    def _to_target(self, tensor: Tensor) -> Tensor:
        is_small = not tensor.is_floating_point() and tensor.dtype not in (torch.int64, torch.bool)
        return tensor.to(torch.int64) if is_small else self._cast_floats(tensor)

    def _cast_floats(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


def _is_label(targets: Any) -> bool:
    return isinstance(targets, Tensor) and targets.ndim == 1 and targets.dtype == torch.int64


def _check_labels(known: Any, count: int) -> npt.NDArray[np.int64]:
    labels = np.asarray(known)
    if labels.shape != (count,) or labels.dtype.kind not in "iub":
        raise DataError(f"{labels.dtype} labels of shape {labels.shape} do not give each of {count} samples a class")
    return labels.astype(np.int64)


def _shorten(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:3])) + (", …" if len(numbers) > 3 else "")


@contextmanager
def _own_random_state() -> Iterator[None]:
    """A context in which the global generators may be seeded; their state is restored afterwards."""
    with _random_state:
        saved = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
        try:
            yield
        finally:
            random.setstate(saved[0])
            np.random.set_state(saved[1])
            torch.default_generator.set_state(saved[2])


def seed_generators(seed: int) -> None:
    """Seed the global generators, which transforms draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
