"""Augmentation of images: a random crop out of a padded image, and a mirror image half of the time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["CropFlip"]


@dataclass(frozen=True)
class CropFlip:
    """Works on stored values, so that what is padded is the picture's own background."""

    rows: int = 4
    columns: int = 4
    flip: bool = True
    background: float = 0.0

    def apply(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """(N, C, H, W) varied image by image; the same generator state gives the same batch."""
        count, _, height, width = images.shape
        padded = F.pad(images, (self.columns, self.columns, self.rows, self.rows), value=self.background)
        top = rng.integers(0, 2 * self.rows + 1, count)
        left = rng.integers(0, 2 * self.columns + 1, count)
        mirrored = rng.integers(0, 2, count, dtype=bool) & self.flip
        column = np.arange(width)
        column = np.where(mirrored[:, None], column[::-1], column)
        return _gather(padded, top[:, None] + np.arange(height), left[:, None] + column)


def _gather(padded: Tensor, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """padded[n, c, rows[n, i], columns[n, j]] for all n, c, i, j."""
    count, channels, _, _ = padded.shape
    return padded[
        torch.arange(count).view(-1, 1, 1, 1),
        torch.arange(channels).view(1, -1, 1, 1),
        torch.from_numpy(rows)[:, None, :, None],
        torch.from_numpy(columns)[:, None, None, :],
    ]
