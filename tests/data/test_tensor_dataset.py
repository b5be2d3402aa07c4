from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

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


def test_arrays_scalars_and_bytes_are_accepted() -> None:
    data = from_torch(Listed(*((np.full((2, 2), value, np.uint8), value % 2) for value in range(10))))
    assert data.train.x.dtype == torch.uint8
    assert data.train.y.dtype == torch.int64
    assert len(data.classes) == 2


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (Listed((torch.zeros(2), 0), (torch.zeros(3), 0)), r"sample 1: its input is torch.float32 \(3,\)"),
        (Listed((torch.zeros(2), 0), (torch.zeros(2), 0.5)), "sample 1: its target"),
        (Listed(torch.zeros(2)), "expected a pair"),
        (Listed(("text", 0)), "sample 0 cannot become tensors"),
        (Listed(), "is empty"),
        (Listed((torch.tensor([float("nan")]), 0), (torch.zeros(1), 0)), "not finite"),
    ],
)
def test_a_sample_that_cannot_be_batched_is_named(data: Listed, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        from_torch(data)


def test_sizes_are_checked_before_memory_is_allocated() -> None:
    class Endless(Listed):
        def __len__(self) -> int:
            return 10**12

    with pytest.raises(DataError, match="4,000,000,000,000,000 bytes"):
        from_torch(Endless((torch.zeros(1000), 0)))


def test_an_iterable_dataset_is_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([])

    with pytest.raises(DataError, match="no length"):
        from_torch(Stream())


def test_tensors_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="3 inputs but 2 targets"):
        from_tensors(torch.zeros(3, 1), [0, 1], torch.zeros(1, 1), [0])
    with pytest.raises(DataError, match="differ in shape"):
        from_tensors(torch.zeros(3, 1), [0, 1, 1], torch.zeros(1, 2), [0])
