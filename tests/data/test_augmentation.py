from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from potluck.data import CropFlip, Samples, Scaling
from potluck.errors import DataError


def _images(count: int = 64) -> torch.Tensor:
    """Pixels that are never 0 and differ within an image, so that a crop reveals its offset."""
    return torch.randint(1, 256, (count, 3, 16, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_every_image_is_a_possibly_mirrored_crop_of_its_padded_self() -> None:
    images = _images()
    varied = CropFlip(rows=2, columns=3, background=7).augment_images(images, np.random.default_rng(0))
    crops = set()
    for image, result in zip(images, varied, strict=True):
        padded = torch.full((3, 20, 18), 7, dtype=torch.uint8)
        padded[:, 2:18, 3:15] = image
        crops.add(
            next(
                (top, left, mirrored)
                for top in range(5)
                for left in range(7)
                for mirrored in (False, True)
                if torch.equal(_crop(padded, top, left, mirrored), result)
            )
        )
    assert {top for top, _, _ in crops} == set(range(5))
    assert {left for _, left, _ in crops} == set(range(7))
    assert {mirrored for _, _, mirrored in crops} == {False, True}


def _crop(padded: torch.Tensor, top: int, left: int, mirrored: bool) -> torch.Tensor:
    crop = padded[:, top : top + 16, left : left + 12]
    return crop.flip(2) if mirrored else crop


def test_without_padding_and_flip_nothing_changes() -> None:
    images = _images()
    assert torch.equal(CropFlip(rows=0, columns=0, flip=False).augment_images(images, np.random.default_rng(0)), images)


def test_augmentation_depends_on_the_generator_only() -> None:
    samples = Samples(_images(), torch.zeros(64, dtype=torch.int64), augmentation=CropFlip())
    indices = np.arange(64)
    first, second, other = (samples.batch(indices, np.random.default_rng(seed))[0] for seed in (5, 5, 6))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(samples.batch(indices)[0], _images().float())


def test_float_images_can_be_augmented() -> None:
    images = torch.rand(8, 1, 6, 6)
    varied = CropFlip(rows=1, columns=1, background=0.5).augment_images(images, np.random.default_rng(0))
    assert varied.dtype == torch.float32
    assert not torch.equal(varied, images)


def test_only_images_can_be_augmented() -> None:
    with pytest.raises(DataError, match="needs images"):
        Samples(torch.zeros(4, 9), torch.zeros(4), augmentation=CropFlip())


def test_cifar_batches_are_augmented_fast_enough() -> None:
    """The target is 20,000 images a second; the limit leaves room for a busy machine."""
    x = torch.randint(0, 256, (4096, 3, 32, 32), dtype=torch.uint8)
    scaling = Scaling((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), 255.0)
    samples = Samples(x, torch.zeros(4096, dtype=torch.int64), scaling=scaling, augmentation=CropFlip())
    rng = np.random.default_rng(0)
    batches = rng.permutation(4096).reshape(32, 128)
    started = time.process_time()
    for indices in batches:
        samples.batch(indices, rng)
    assert 4096 / (time.process_time() - started) > 5_000
