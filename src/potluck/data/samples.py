"""Samples in memory, stored as read and converted to batches on demand: normalised, optionally augmented.

Inputs and targets are tensors or any nesting of tuples, lists and dicts of tensors (PyTorch's pytree). `uint8` inputs
are pixels and become floats; all other integers stay integers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from potluck.data.content_digest import digest_tensors
from potluck.data.text_tokenizers import TextTokenizer
from potluck.errors import DataError

__all__ = ["PLAIN", "CropFlip", "Dataset", "Indices", "SampleSet", "Samples", "Scaling"]


Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scaling:
    """Stored values to inputs, per channel: (value / unit - mean) / std."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    unit: float = 1.0

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or min(self.std) <= 0 or self.unit <= 0:
            raise DataError(f"normalisation needs as many means as positive deviations, got {self.mean} and {self.std}")

    def scale_inputs(self, stored: Tensor) -> Tensor:
        """New float32 inputs; one multiplication and one addition, whatever was stored."""
        if self == PLAIN:
            return stored.to(torch.float32, copy=True)
        channels = (-1, *[1] * (stored.ndim - 2)) if stored.ndim > 1 else (-1,)
        return stored.mul(self._scale.view(channels)).add_(self._shift.view(channels))

    @cached_property
    def _scale(self) -> Tensor:
        return torch.tensor([1 / (std * self.unit) for std in self.std], dtype=torch.float32)

    @cached_property
    def _shift(self) -> Tensor:
        return torch.tensor([-mean / std for mean, std in zip(self.mean, self.std, strict=True)], dtype=torch.float32)


PLAIN = Scaling()


class SampleSet(Protocol):
    """The training or the test samples of a data set, in memory or read on demand."""

    @property
    def owner(self) -> npt.NDArray[np.int64] | None:
        """The owner of each sample: a writer, speaker or device."""

    @property
    def needs_rng(self) -> bool:
        """Whether `batch` uses a random generator."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of floating-point tensors in batches."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The class label of each sample; DataError where there is none."""

    @property
    def has_labels(self) -> bool:
        """Whether each sample has one class label."""

    @property
    def is_stream(self) -> bool:
        """Whether samples come in an order of their own, one after the other."""

    def __len__(self) -> int: ...

    def batch(self, indices: npt.NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        """The inputs and targets of these samples; random transforms draw from `rng`."""

    def stored_batch(self, indices: npt.NDArray[np.integer]) -> tuple[Any, Any]:
        """The same as stored: neither normalised nor augmented."""

    def with_dtype(self, dtype: torch.dtype) -> SampleSet:
        """The same samples, with floating-point tensors of this dtype."""

    def content_digest(self) -> str | None:
        """A digest of all that is stored; None where it is not in memory."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples in memory: tensors, or nested tuples, lists and dicts of them, whose first dimension is the sample."""

    x: Any
    """Inputs as stored, (N, ...)."""
    y: Any
    """Targets: int64 labels (N,), or anything else."""
    owner: npt.NDArray[np.int64] | None = None
    """The owner of each sample: a writer, speaker or device."""
    scaling: Scaling = PLAIN
    augmentation: CropFlip | None = None
    label: npt.NDArray[np.int64] | None = None
    """The class label of each sample, where the targets are not labels themselves."""
    dtype: torch.dtype = torch.float32
    """The dtype of floating-point tensors in batches."""

    is_stream = False

    def __post_init__(self) -> None:
        inputs, targets = _count_samples("inputs", self.x), _count_samples("targets", self.y)
        if inputs != targets:
            raise DataError(f"{inputs} inputs but {targets} targets; each input needs one")
        for name, values in (("owners", self.owner), ("labels", self.label)):
            if values is not None and len(values) != inputs:
                raise DataError(f"{inputs} inputs but {len(values)} {name}; each input needs one")
        if self.augmentation is not None and not (isinstance(self.x, Tensor) and self.x.ndim == 4):
            raise DataError(f"augmentation needs images (channels, height, width), not inputs of shape {self.shape}")
        self._check_scaling()

    def _check_scaling(self) -> None:
        if self.scaling is PLAIN:
            return
        if not isinstance(self.x, Tensor):
            raise DataError("normalisation needs inputs that are one tensor; normalise nested inputs beforehand")
        if self.x.ndim > 1 and len(self.scaling.mean) not in (1, self.x.shape[1]):
            raise DataError(f"normalisation for {len(self.scaling.mean)} channels, but inputs have {self.x.shape[1]}")

    def __len__(self) -> int:
        return len(self.x) if isinstance(self.x, Tensor) else len(tree_leaves(self.x)[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input; empty where inputs are more than one tensor."""
        return tuple(self.x.shape[1:]) if isinstance(self.x, Tensor) else ()

    @property
    def needs_rng(self) -> bool:
        """Whether `batch` uses a random generator."""
        return self.augmentation is not None

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The labels as an array; DataError if the targets are not class labels."""
        if self.label is not None:
            return self.label
        if not self.has_labels:
            raise DataError(f"the targets are {_describe_targets(self.y)}, not labels; give a `label` for each sample")
        labels: npt.NDArray[np.int64] = self.y.numpy()
        return labels

    @property
    def has_labels(self) -> bool:
        """Whether each sample has one class label."""
        own = isinstance(self.y, Tensor) and self.y.dtype == torch.int64 and self.y.ndim == 1
        return own or self.label is not None

    def batch(self, indices: npt.NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[Any, Any]:
        """Return normalised inputs and targets; augmented if `augmentation` and `rng` are given."""
        inputs, targets = self.stored_batch(indices)
        if not isinstance(inputs, Tensor):
            return tree_map_only(Tensor, self._to_input, inputs), tree_map_only(Tensor, self._cast_floats, targets)
        if rng is not None and self.augmentation is not None:
            inputs = self.augmentation.augment_images(inputs, rng)
        if isinstance(targets, Tensor):
            return self._to_input(inputs), self._cast_floats(targets)
        return self._to_input(inputs), tree_map_only(Tensor, self._cast_floats, targets)

    def stored_batch(self, indices: npt.NDArray[np.integer]) -> tuple[Any, Any]:
        """These samples as stored."""
        chosen = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
        return _select_rows(self.x, chosen), _select_rows(self.y, chosen)

    def with_dtype(self, dtype: torch.dtype) -> Samples:
        """The same samples, with floating-point tensors of this dtype."""
        return self if dtype == self.dtype else dataclasses.replace(self, dtype=dtype)

    def content_digest(self) -> str | None:
        """A digest of all inputs, targets, owners and labels."""
        known = [torch.from_numpy(values) for values in (self.owner, self.label) if values is not None]
        return digest_tensors([*tree_leaves(self.x), *tree_leaves(self.y), *known])

    def _to_input(self, stored: Tensor) -> Tensor:
        """A stored tensor as the model gets it; `stored` is a copy already."""
        if self.scaling is not PLAIN or stored.dtype == torch.uint8:
            stored = self.scaling.scale_inputs(stored)
        return self._cast_floats(stored)

    def _cast_floats(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.dtype == self.dtype or not tensor.is_floating_point() else tensor.to(self.dtype)


def _count_samples(what: str, tree: Any) -> int:
    leaves = tree_flatten(tree)[0]
    counts = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim}
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves):
        raise DataError(
            f"{what} must be tensors with one row for each sample, or nested tuples, lists and dicts of them"
        )
    if len(counts) > 1:
        raise DataError(f"the {what} are tensors of different lengths ({', '.join(map(str, sorted(counts)))})")
    return counts.pop()


def _select_rows(tree: Any, chosen: Tensor) -> Any:
    if isinstance(tree, Tensor):
        return tree.index_select(0, chosen)
    return tree_map_only(Tensor, lambda leaf: leaf.index_select(0, chosen), tree)


def _describe_targets(y: Any) -> str:
    return f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__} of tensors"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of one task; `classes` is empty where the targets are not labels."""

    name: str
    train: Any
    """The training samples, a SampleSet."""
    test: Any
    """The test samples, a SampleSet."""
    classes: tuple[str, ...]
    tokenizer: TextTokenizer | None = None
    """What the numbers stand for, where the inputs are tokens of a text."""

    def __post_init__(self) -> None:
        if len(self.train) == 0:
            raise DataError(f"{self.name}: there are no training samples")
        train, test = self.train, self.test
        if isinstance(train, Samples) and isinstance(test, Samples) and len(test) and train.shape != test.shape:
            raise DataError(f"{self.name}: training {train.shape} and test {test.shape} differ in shape")
        for part, samples in (("training", self.train), ("test", self.test)):
            if isinstance(samples, Samples) and isinstance(samples.y, Tensor) and samples.label is None:
                self._check_labels(part, samples.y)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input; empty where inputs are more than one tensor."""
        if isinstance(self.train, Samples):
            return self.train.shape
        inputs, _ = self.train.batch(np.arange(1))
        return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()

    @property
    def vocabulary(self) -> int:
        """Number of tokens where the inputs are text, else 0."""
        return 0 if self.tokenizer is None else self.tokenizer.vocabulary

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of one stored input: what it costs to keep or send it."""
        inputs, _ = self.train.stored_batch(np.arange(1))
        return sum(leaf.nbytes for leaf in tree_leaves(inputs))

    def with_augmentation(self, augmentation: CropFlip | None) -> Dataset:
        """Return the same data with its training samples augmented in every batch."""
        assert isinstance(self.train, Samples), "only samples in memory are augmented here"
        return dataclasses.replace(self, train=dataclasses.replace(self.train, augmentation=augmentation))

    def with_dtype(self, dtype: torch.dtype) -> Dataset:
        """The same data, with floating-point tensors of this dtype."""
        if dtype == torch.float32:
            return self
        return dataclasses.replace(self, train=self.train.with_dtype(dtype), test=self.test.with_dtype(dtype))

    def _check_labels(self, part: str, y: Tensor) -> None:
        if y.ndim > 1 and not y.is_floating_point():
            return  # a class for each token or pixel
        if self.classes and len(y) and (y.is_floating_point() or y.ndim != 1):
            raise DataError(f"{self.name}: {part} targets of {y.dtype}, shape {tuple(y.shape)} cannot be class labels")
        if self.classes and len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(self.classes):
            raise DataError(
                f"{self.name}: {part} labels go from {int(y.min())} to {int(y.max())},"
                f" but there are {len(self.classes)} classes counted from 0"
            )


@dataclass(frozen=True)
class CropFlip:
    """Pads, crops and flips stored values, so that the padding has the colour of the image's background."""

    rows: int = 4
    columns: int = 4
    flip: bool = True
    background: float = 0.0

    def augment_images(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """(N, C, H, W) varied image by image; the same generator state gives the same batch."""
        count, _, height, width = images.shape
        padded = F.pad(images, (self.columns, self.columns, self.rows, self.rows), value=self.background)
        top = rng.integers(0, 2 * self.rows + 1, count)
        left = rng.integers(0, 2 * self.columns + 1, count)
        # All possible crops as one view: choosing from it copies whole rows, several times faster than by pixel.
        crops = sliding_window_view(padded.numpy(), (height, width), axis=(2, 3))
        varied = crops[np.arange(count), :, top, left]
        if self.flip:
            mirrored = np.flatnonzero(rng.integers(0, 2, count, dtype=bool))
            varied[mirrored] = varied[mirrored][..., ::-1]
        return torch.from_numpy(varied)
