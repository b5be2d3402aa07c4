"""Samples in memory, stored as read and converted to normalised, optionally augmented float batches on demand."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from potluck.errors import DataError

__all__ = ["PLAIN", "CropFlip", "Dataset", "Indices", "Samples", "Scaling"]


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


@dataclass(frozen=True, eq=False)
class Samples:
    """The training or the test samples of a data set."""

    x: Tensor
    """Inputs as stored, (N, ...), uint8 or float32."""
    y: Tensor
    """int64 labels (N,), or float targets (N, ...)."""
    owner: npt.NDArray[np.int64] | None = None
    """The owner of each sample: a writer, speaker or device."""
    scaling: Scaling = PLAIN
    augmentation: CropFlip | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise DataError(f"{len(self.x)} inputs but {len(self.y)} targets; each input needs one")
        if self.owner is not None and len(self.owner) != len(self.x):
            raise DataError(f"{len(self.x)} inputs but {len(self.owner)} owners; each input needs one")
        if self.augmentation is not None and self.x.ndim != 4:
            raise DataError(f"augmentation needs images (channels, height, width), not inputs of shape {self.shape}")
        if self.x.ndim > 1 and len(self.scaling.mean) not in (1, self.x.shape[1]):
            raise DataError(f"normalisation for {len(self.scaling.mean)} channels, but inputs have {self.x.shape[1]}")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @property
    def needs_rng(self) -> bool:
        """Whether `batch` uses a random generator."""
        return self.augmentation is not None

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The labels as an array; DataError if the targets are not class labels."""
        if self.y.dtype != torch.int64 or self.y.ndim != 1:
            raise DataError(f"the targets are {self.y.dtype} of shape {tuple(self.y.shape)}, not labels")
        labels: npt.NDArray[np.int64] = self.y.numpy()
        return labels

    def batch(self, indices: npt.NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return normalised float32 inputs and targets; augmented if `augmentation` and `rng` are given."""
        chosen = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
        inputs = self.x.index_select(0, chosen)
        if rng is not None and self.augmentation is not None:
            inputs = self.augmentation.augment_images(inputs, rng)
        if (
            self.scaling is not PLAIN or inputs.dtype != torch.float32
        ):  # otherwise index_select has already made a fresh copy
            inputs = self.scaling.scale_inputs(inputs)
        return inputs, self.y.index_select(0, chosen)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of one task; `classes` is empty where the targets are not labels."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.train) == 0:
            raise DataError(f"{self.name}: there are no training samples")
        if self.train.shape != self.test.shape:
            raise DataError(f"{self.name}: training {self.train.shape} and test {self.test.shape} differ in shape")
        for part, samples in (("training", self.train), ("test", self.test)):
            self._check_labels(part, samples.y)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train.shape

    @property
    def sample_bytes(self) -> int:
        """Bytes of one stored input: what it costs to keep or send it."""
        return int(np.prod(self.shape)) * self.train.x.element_size()

    def with_augmentation(self, augmentation: CropFlip | None) -> Dataset:
        """Return the same data with its training samples augmented in every batch."""
        return dataclasses.replace(self, train=dataclasses.replace(self.train, augmentation=augmentation))

    def _check_labels(self, part: str, y: Tensor) -> None:
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
