"""Data sets that are read when samples are needed, with transforms that run on every read."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

from potluck.data import Scaling, as_dataset, from_torch
from potluck.errors import DataError


class Noisy(torch.utils.data.Dataset[Any]):
    """Its transform draws from all three global generators."""

    def __init__(self, count: int = 12) -> None:
        self.count = count
        self.reads = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        noise = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor([float(index), *noise]), index % 3


def test_samples_are_only_read_when_needed() -> None:
    source = Noisy(10**6)
    data = from_torch(source, Noisy(5), classes=3)
    before = source.reads
    inputs, targets = data.train.batch(np.array([999_999, 3]))
    assert source.reads == before + 2
    assert inputs[:, 0].tolist() == [999_999.0, 3.0]
    assert targets.tolist() == [0, 0]


def test_transforms_are_random_by_epoch_and_equal_in_two_runs() -> None:
    data = from_torch(Noisy(), Noisy(4))
    indices = np.array([4, 2, 7])
    first, again, other = (data.train.batch(indices, np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not (first[:, 1:] == other[:, 1:]).any()
    assert torch.equal(data.test.batch(indices % 4)[0], data.test.batch(indices % 4)[0])


def test_reading_leaves_the_global_generators_alone() -> None:
    data = from_torch(Noisy(), Noisy(4))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    data.train.batch(np.arange(3), np.random.default_rng(0))
    assert torch.equal(torch.rand(3), expected)


def test_a_fraction_is_held_out_without_reading_anything_twice() -> None:
    data = from_torch(Noisy(20), test_fraction=0.25)
    assert (len(data.train), len(data.test)) == (15, 5)
    seen = [data.train.batch(np.arange(15))[0][:, 0], data.test.batch(np.arange(5))[0][:, 0]]
    assert sorted(torch.cat(seen).tolist()) == [float(index) for index in range(20)]
    assert data.train.labels.tolist() == (data.train.batch(np.arange(15))[0][:, 0] % 3).tolist()


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, *rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def test_dicts_tuples_and_targets_of_any_shape() -> None:
    mapping = Rows(*({"ids": torch.arange(4), "mask": True, "labels": torch.ones(4)} for _ in range(6)))
    inputs, targets = from_torch(mapping).train.batch(np.arange(2))
    assert sorted(inputs) == ["ids", "mask"]
    assert (inputs["ids"].dtype, inputs["mask"].dtype) == (torch.int64, torch.bool)
    assert targets.shape == (2, 4)
    only = from_torch(mapping, inputs="ids", target="labels").train.batch(np.arange(2))[0]
    assert only.shape == (2, 4)
    triples = Rows(*((torch.zeros(2), np.ones(3), 5) for _ in range(6)))
    inputs, targets = from_torch(triples).train.batch(np.arange(2))
    assert [tensor.dtype for tensor in inputs] == [torch.float32, torch.float32]
    assert targets.tolist() == [5, 5]


def test_a_collate_function_pads_what_has_different_lengths() -> None:
    def pad(samples: list[Any]) -> Any:
        return torch.nn.utils.rnn.pad_sequence([ids for ids, _ in samples], True), torch.tensor([y for _, y in samples])

    ragged = Rows(*((torch.arange(1 + index), index) for index in range(6)))
    with pytest.raises(DataError, match="reading samples 0, 1, 2, … failed"):
        from_torch(ragged).train.batch(np.arange(4))
    assert from_torch(ragged, collate=pad).train.batch(np.arange(2, 4))[0].dtype == torch.int64
    loader = DataLoader(ragged, batch_size=2, shuffle=True, collate_fn=pad)
    assert as_dataset(loader).train.batch(np.arange(2))[0].ndim == 2


def test_labels_come_from_targets_a_function_or_the_samples() -> None:
    data = from_torch(Noisy(6), Noisy(3))
    assert data.train.has_labels
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    dense = Rows(*((torch.zeros(2), torch.full((2, 2), float(index))) for index in range(6)))
    assert not from_torch(dense, Rows(dense[0])).train.has_labels
    with pytest.raises(DataError, match="give `label`"):
        _ = from_torch(dense, Rows(dense[0])).train.labels
    labelled = from_torch(dense, Rows(dense[0]), label=lambda x, y: int(y.mean()) % 2)
    assert labelled.train.labels.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (Rows(torch.zeros(2), torch.zeros(2)), "expected \\(input, target\\)"),
        (Rows(("text", 0), ("text", 1)), "holds a str; use a transform or `collate`"),
        (Rows({"a": torch.zeros(2)}, {"a": torch.zeros(2)}), "say which one is the `target`"),
        (Rows(), "is empty"),
        (DataLoader(Noisy(4), sampler=WeightedRandomSampler([1.0] * 4, 4)), "WeightedRandomSampler"),
        (DataLoader(Noisy(4), batch_sampler=[[0, 1], [1, 2]]), "a list of its own"),
        (DataLoader(Noisy(4), sampler=RandomSampler(range(4), replacement=True)), "draws with replacement"),
        (DataLoader(Noisy(4), sampler=RandomSampler(range(4), num_samples=2)), "other than all samples"),
        (3, "`data` is a int"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(data: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as error:
        as_dataset(data)
    assert "\n" not in str(error.value)


def test_an_error_of_the_data_set_keeps_its_file_and_line() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> Any:
            raise KeyError("no such picture")

    with pytest.raises(DataError, match=r"KeyError: 'no such picture' \(.*test_lazy_samples.py:\d+\)"):
        from_torch(Broken())


def test_a_tensor_dataset_stays_in_memory_as_it_is() -> None:
    x = torch.rand(6, 2)
    data = from_torch(TensorDataset(x, torch.arange(6)), TensorDataset(x, torch.arange(6)))
    assert data.train.x.data_ptr() == x.data_ptr()


def test_scaling_is_for_tensors_in_memory() -> None:
    pixels = TensorDataset(torch.full((6, 1, 2, 2), 255, dtype=torch.uint8), torch.arange(6))
    data = from_torch(pixels, pixels, scaling=Scaling((0.5,), (0.5,), 255.0))
    assert data.train.batch(np.arange(1))[0].unique().tolist() == [1.0]
    with pytest.raises(DataError, match="`scaling` is for tensors in memory"):
        from_torch(Noisy(), scaling=Scaling((0.5,), (0.5,)))


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter((torch.tensor([float(number)]), number % 2) for number in range(10))


def test_an_iterable_data_set_is_numbered_and_starts_again() -> None:
    train = from_torch(Counting(), Noisy(3)).train
    assert train.is_stream
    assert train.batch(np.array([3, 9, 12]))[0][:, 0].tolist() == [3.0, 9.0, 2.0]
    assert train.batch(np.array([1, 20]))[0][:, 0].tolist() == [1.0, 0.0]
    with pytest.raises(DataError, match="needs a test set"):
        from_torch(Counting())


def test_hugging_face_data_sets_are_used_as_they_are() -> None:
    datasets = pytest.importorskip("datasets")
    table = {"input_ids": [[1, 2, 3], [4, 5, 6], [7, 8, 9]], "labels": [0, 1, 0]}
    data = as_dataset({"train": datasets.Dataset.from_dict(table), "test": datasets.Dataset.from_dict(table)})
    inputs, targets = data.train.batch(np.array([2, 0]))
    assert inputs["input_ids"].tolist() == [[7, 8, 9], [1, 2, 3]]
    assert targets.tolist() == [0, 0]
