"""Training on one machine in plain PyTorch, which every method is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from potluck import seeds
from potluck.model.evaluation_score import EvaluationScore, iter_evaluation_batches
from potluck.model.metrics import resolve_metrics
from potluck.task import Task

__all__ = ["PlainSettings", "evaluate_plain", "train_plain"]


class PlainSettings(NamedTuple):
    """AdamW with a learning rate that rises linearly, then falls along a cosine, as in nanoGPT."""

    lr: float
    betas: tuple[float, float]
    weight_decay: float
    clip_norm: float | None
    batch: int
    steps: int
    warm_up: int
    floor: float

    def lr_at(self, step: int) -> float:
        if step < self.warm_up:
            return self.lr * (step + 1) / (self.warm_up + 1)
        progress = (step - self.warm_up) / max(self.steps - self.warm_up, 1)
        return self.lr * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def train_plain(
    task: Task, settings: PlainSettings, seed: int, on_step: Callable[[int], None] = lambda step: None
) -> nn.Module:
    """Train the task's model; `on_step` is called after every step."""
    module = task.build_module(seed).train()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, settings.lr, settings.betas, weight_decay=settings.weight_decay)
    indices = _iter_indices(len(task.data.train), settings.batch, seed)
    total_loss = 0.0
    for step in range(settings.steps):
        inputs, targets = task.data.train.batch(next(indices))
        optimizer.param_groups[0]["lr"] = settings.lr_at(step)
        optimizer.zero_grad()
        loss = task.loss(module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(trained, settings.clip_norm)
        optimizer.step()
        total_loss += float(loss.detach())
        on_step(step)
    return module


def evaluate_plain(task: Task, module: nn.Module) -> dict[str, float]:
    """The loss and the task's metrics on its test samples."""
    score = EvaluationScore(task.loss, resolve_metrics(task.metrics))
    module.eval()
    with torch.no_grad():
        for inputs, targets in iter_evaluation_batches(task.data.test, module):
            score.add_batch(module(inputs), targets)
    return score.as_metrics()


def _iter_indices(samples: int, batch: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Batches without end, in a new order for every pass over the samples."""
    rng = seeds.child_generator(seed, "central")
    while True:
        order = rng.permutation(samples)
        for start in range(0, samples - batch + 1, batch):
            yield order[start : start + batch]
