from __future__ import annotations

import numpy as np
import pytest
import torch

from potluck.data import Dataset, Samples, Scaling, from_tensors
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
