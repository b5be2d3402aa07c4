from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from potluck.data import CropFlip, Dataset, Samples, Scaling, from_tensors
from potluck.errors import DataError


def test_a_batch_is_normalised_per_channel_and_stored_samples_stay_compact() -> None:
    x = torch.randint(0, 256, (10, 3, 4, 5), dtype=torch.uint8)
    samples = Samples(x, torch.arange(10), scaling=Scaling((0.1, 0.2, 0.3), (0.5, 1.0, 2.0), 255.0))
    inputs, labels = samples.batch(np.array([7, 2, 7]))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.1, 0.2, 0.3), (0.5, 1.0, 2.0)))
    torch.testing.assert_close(inputs, (x[[7, 2, 7]] / 255 - mean) / std)
    assert inputs.dtype == torch.float32
    assert samples.x.dtype == torch.uint8
    assert labels.tolist() == [7, 2, 7]


def test_changing_a_batch_leaves_the_samples_alone() -> None:
    samples = Samples(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
    samples.batch(np.arange(4))[0].fill_(9)
    assert samples.x.eq(1).all()


def test_scalar_inputs_can_be_scaled() -> None:
    samples = Samples(torch.tensor([2.0, 4.0]), torch.zeros(2), scaling=Scaling((1.0,), (2.0,)))
    assert samples.batch(np.arange(2))[0].tolist() == [0.5, 1.5]


def test_float_targets_are_kept_but_are_not_labels() -> None:
    data = from_tensors(torch.zeros(4, 2), torch.rand(4), torch.zeros(2, 2), torch.rand(2))
    assert data.classes == ()
    assert data.train.batch(np.array([1]))[1].dtype == torch.float32
    with pytest.raises(DataError, match="not labels"):
        _ = data.train.labels


def test_sample_bytes_are_those_of_one_stored_input() -> None:
    x, y = torch.zeros((4, 3, 8, 8), dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
    assert from_tensors(x, y, x, y).sample_bytes == 192
    assert from_tensors(x.float(), y, x.float(), y).sample_bytes == 768


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        (lambda: Samples(torch.zeros(3, 2), torch.zeros(4)), "3 inputs but 4 targets"),
        (lambda: Samples(torch.zeros(3, 2), torch.zeros(3), owner=np.zeros(2, np.int64)), "2 owners"),
        (lambda: Samples(torch.zeros(3, 2), torch.zeros(3), scaling=Scaling((0.0,) * 3, (1.0,) * 3)), "3 channels"),
        (lambda: Scaling((0.0,), (0.0,)), "positive deviations"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(samples: object, problem: str) -> None:
    assert callable(samples)
    with pytest.raises(DataError, match=problem):
        samples()


def test_labels_beyond_the_classes_are_refused() -> None:
    samples = Samples(torch.zeros(2, 2), torch.tensor([0, 1]))
    bad = Samples(torch.zeros(2, 2), torch.tensor([0, 2]))
    with pytest.raises(DataError, match="test labels go from 0 to 2"):
        Dataset(name="mine", train=samples, test=bad, classes=("a", "b"))
    with pytest.raises(DataError, match="no training samples"):
        Dataset(name="mine", train=Samples(torch.zeros(0, 2), torch.zeros(0)), test=samples, classes=())


def _images(count: int = 64) -> torch.Tensor:
    """Pixels that are never 0 and differ within an image, so that a crop shows where it came from."""
    return torch.randint(1, 256, (count, 3, 16, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_every_image_is_a_crop_of_its_padded_self_perhaps_mirrored() -> None:
    images = _images()
    varied = CropFlip(rows=2, columns=3, background=7).augment_images(images, np.random.default_rng(0))
    seen = set()
    for image, result in zip(images, varied, strict=True):
        padded = torch.full((3, 20, 18), 7, dtype=torch.uint8)
        padded[:, 2:18, 3:15] = image
        seen.add(
            next(
                (top, left, mirrored)
                for top in range(5)
                for left in range(7)
                for mirrored in (False, True)
                if torch.equal(_crop(padded, top, left, mirrored), result)
            )
        )
    assert {top for top, _, _ in seen} == set(range(5))
    assert {left for _, left, _ in seen} == set(range(7))
    assert {mirrored for _, _, mirrored in seen} == {False, True}


def _crop(padded: torch.Tensor, top: int, left: int, mirrored: bool) -> torch.Tensor:
    crop = padded[:, top : top + 16, left : left + 12]
    return crop.flip(2) if mirrored else crop


def test_without_padding_and_flip_nothing_changes() -> None:
    images = _images()
    assert torch.equal(CropFlip(rows=0, columns=0, flip=False).augment_images(images, np.random.default_rng(0)), images)


def test_the_generator_alone_decides() -> None:
    samples = Samples(_images(), torch.zeros(64, dtype=torch.int64), augmentation=CropFlip())
    everything = np.arange(64)
    first, second, other = (samples.batch(everything, np.random.default_rng(seed))[0] for seed in (5, 5, 6))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(samples.batch(everything)[0], _images().float())


def test_float_images_can_be_augmented() -> None:
    images = torch.rand(8, 1, 6, 6)
    varied = CropFlip(rows=1, columns=1, background=0.5).augment_images(images, np.random.default_rng(0))
    assert varied.dtype == torch.float32
    assert not torch.equal(varied, images)


def test_only_images_can_be_augmented() -> None:
    with pytest.raises(DataError, match="needs images"):
        Samples(torch.zeros(4, 9), torch.zeros(4), augmentation=CropFlip())


def test_cifar_batches_come_faster_than_any_small_device_trains() -> None:
    """At least 20,000 images a second are meant; the floor leaves room for a busy machine."""
    x = torch.randint(0, 256, (4096, 3, 32, 32), dtype=torch.uint8)
    scaling = Scaling((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), 255.0)
    samples = Samples(x, torch.zeros(4096, dtype=torch.int64), scaling=scaling, augmentation=CropFlip())
    rng = np.random.default_rng(0)
    batches = rng.permutation(4096).reshape(32, 128)
    started = time.process_time()
    for indices in batches:
        samples.batch(indices, rng)
    assert 4096 / (time.process_time() - started) > 5_000
