from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from potluck.data import from_tensors, from_torch
from potluck.errors import DataError


class Listed(TorchDataset[Any]):
    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def test_any_torch_data_set_is_read_into_memory() -> None:
    x, y = torch.rand(12, 3, 4, 4), torch.arange(12) % 3
    data = from_torch(TensorDataset(x, y), TensorDataset(x[:4], y[:4]), classes=["a", "b", "c"])
    assert torch.equal(data.train.x, x)
    assert torch.equal(data.test.y, y[:4])
    assert data.classes == ("a", "b", "c")


def test_without_a_test_set_a_stratified_fraction_is_held_out() -> None:
    x, y = torch.arange(100).float().view(100, 1), torch.arange(100) % 5
    data = from_torch(TensorDataset(x, y), owner=np.arange(100))
    assert np.bincount(data.test.labels).tolist() == [4] * 5
    both = torch.cat([data.train.x, data.test.x]).flatten()
    assert sorted(both.tolist()) == list(range(100))
    assert data.train.owner is not None
    assert data.train.owner.tolist() == data.train.x.flatten().tolist()


def test_integers_stay_integers_and_pixels_become_floats() -> None:
    x = {"ids": np.arange(12, dtype=np.int32).reshape(6, 2), "pixels": np.full((6, 2, 2), 7, np.uint8)}
    inputs, targets = from_tensors(x, np.arange(6, dtype=np.uint8), classes=6).train.batch(np.arange(2))
    assert (inputs["ids"].dtype, inputs["pixels"].dtype, targets.dtype) == (torch.int32, torch.float32, torch.int64)
    assert from_tensors([[1, 2]] * 6, [0.5] * 6).train.batch(np.arange(1))[0].dtype == torch.int64


def test_floats_are_read_in_the_dtype_of_the_model() -> None:
    data = from_tensors(np.full((6, 2), 1 / 3), np.full(6, 1 / 3))
    assert data.train.batch(np.arange(1))[0].dtype == torch.float32
    exact = data.with_dtype(torch.float64).train.batch(np.arange(1))
    assert [tensor.dtype for tensor in exact] == [torch.float64, torch.float64]
    assert float(exact[0][0, 0]) == 1 / 3


def test_a_label_function_gives_classes_to_any_data() -> None:
    y = torch.arange(8.0).view(8, 1)
    data = from_tensors(torch.zeros(8, 2), y, torch.zeros(2, 2), y[:2], label=lambda x, target: int(target[0] > 3))
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4
    assert data.classes == ()
    with pytest.raises(DataError, match="each training sample needs one integer"):
        from_tensors(torch.zeros(8, 2), y, label=[1, 2])


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="not finite"):
        from_tensors(torch.tensor([[float("nan")], [0.0]]), [0, 1])


def test_tensors_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="3 inputs but 2 targets"):
        from_tensors(torch.zeros(3, 1), [0, 1], torch.zeros(1, 1), [0])
    with pytest.raises(DataError, match="differ in shape"):
        from_tensors(torch.zeros(3, 1), [0, 1, 1], torch.zeros(1, 2), [0])
