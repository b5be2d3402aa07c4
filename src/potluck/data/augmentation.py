"""Augmentation of images: a random crop out of a padded image, and a mirror image half of the time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

__all__ = ["CropFlip"]


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
