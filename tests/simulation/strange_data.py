"""Data and losses that a user may well have and a framework may well stumble over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler
from torch.utils.data import Dataset as TorchDataset

from potluck.data import from_tensors, from_torch
from tests.simulation.strange_models import CLASSES, WIDTH

COUNT, LENGTH, SIDE = 24, 5, 6


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def vectors(count: int = COUNT) -> Tensor:
    return torch.randn(count, WIDTH, generator=_generator())


def labels(count: int = COUNT) -> Tensor:
    return torch.arange(count) % CLASSES


def tokens(count: int = COUNT) -> Tensor:
    return torch.randint(0, 11, (count, LENGTH), generator=_generator())


def images(count: int = COUNT) -> Tensor:
    return torch.randn(count, 1, SIDE, SIDE, generator=_generator())


def split(x: Any, y: Any) -> Any:
    """Tensors with a fifth held out."""
    return from_tensors(x, y)


def dict_inputs() -> Any:
    return {"left": vectors(), "right": vectors() * 2}, labels()


def nested_inputs() -> Any:
    return {"pair": (vectors(), vectors()), "more": {"scale": torch.ones(COUNT, 1)}}, labels()


def pairs_of_texts() -> Any:
    return {"source": tokens(), "target": tokens()[:, :-1]}, tokens()[:, 1:]


def text_to_text() -> Any:
    return {"input_ids": tokens(), "labels": tokens()}, tokens()


def ragged() -> list[tuple[Tensor, int]]:
    return [(torch.arange(1 + index % LENGTH), index % CLASSES) for index in range(COUNT)]


def pad(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    lines = torch.nn.utils.rnn.pad_sequence([line for line, _ in samples], batch_first=True)
    return lines, torch.tensor([label for _, label in samples])


def padded() -> Any:
    return from_torch(Listed(ragged()), collate=pad)


class Listed(TorchDataset[Any]):
    """A map-style data set over a list."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Augmented(Listed):
    """Adds noise from all three global generators on every read."""

    def __getitem__(self, index: int) -> Any:
        x, y = self.samples[index]
        return x + torch.randn(WIDTH) + random.random() + float(np.random.rand()), y


class Unreadable(Listed):
    """Its tenth sample is damaged."""

    def __getitem__(self, index: int) -> Any:
        if index == 10:
            raise OSError("sample 10 is damaged")
        return self.samples[index]


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(vectors(), labels(), strict=True)


def pairs() -> list[Any]:
    return list(zip(vectors(), labels().tolist(), strict=True))


def streamed() -> Any:
    return from_torch(Streamed(), TensorDataset(vectors(), labels()))


def weighted_loader() -> Any:
    return DataLoader(Listed(pairs()), batch_size=4, sampler=WeightedRandomSampler([1.0] * COUNT, COUNT))


def hugging_face() -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": vectors().tolist(), "label": labels().tolist()})


def hugging_face_stream() -> Any:
    return hugging_face().to_iterable_dataset(), hugging_face()


def collate_raising(samples: list[Any]) -> Any:
    raise ArithmeticError("my collate fails")


def collate_sparse(samples: list[Any]) -> Any:
    return torch.stack([x for x, _ in samples]).to_sparse(), torch.tensor([y for _, y in samples])


# --- losses -------------------------------------------------------------------------------------------------------


def first_output_loss(outputs: Any, targets: Tensor) -> Any:
    return F.cross_entropy(outputs[0], targets) + 0.01 * outputs[1].pow(2).mean()


def dict_output_loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs["logits"], targets)


def dict_target_loss(outputs: Tensor, targets: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs, targets["class"]) + 0.1 * (outputs.sum(1) - targets["value"]).pow(2).mean()


def per_sample_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def nan_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() * float("nan")


def detached_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.detach(), targets)


def number_loss(outputs: Tensor, targets: Tensor) -> Any:
    return 0.5


def raising_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    raise ArithmeticError("my loss fails")


def batch_mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.float().mean()).pow(2)


def late_raising_metric(outputs: Tensor, targets: Tensor) -> Tensor:
    """Raises in the run, not on the two samples that are tried before it."""
    return raising_metric(outputs, targets) if len(outputs) > 2 else torch.zeros(())


def raising_metric(outputs: Tensor, targets: Tensor) -> Tensor:
    raise ArithmeticError("my metric fails")


def text_metric(outputs: Tensor, targets: Tensor) -> Any:
    return "good"
