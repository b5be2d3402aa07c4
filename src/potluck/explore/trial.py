"""One evaluation: a short training with some channels left out, from common weights, judged on samples kept aside."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck import seeds
from potluck.data import Dataset
from potluck.explore.settings import Exploration
from potluck.model.chain import trace
from potluck.model.replica import Replica
from potluck.model.submodels import Width, Workshop, calibrate
from potluck.model.submodels.subsets import Chooser, leading, random, subsets
from potluck.task import Task

__all__ = ["Counts", "Question", "Trial", "Weights"]

Counts = tuple[int, ...]
Weights = tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]
PROXY_DRAWS = 4
BRIEF = 8
TIMED = 5
CALIBRATION = 16  # mini-batches that statistics of norms are taken from


class Question(NamedTuple):
    """What is asked of a trial: by which judge, for how many units of every set, for the which-th time."""

    judge: str
    counts: Counts
    repeat: int


class Trial:
    """A model at its common weights and the data to judge it by; asked the same, it answers the same."""

    def __init__(self, task: Task, settings: Exploration, weights: Weights | None = None) -> None:
        self._settings = settings
        self._data: Dataset = task.data
        module = task.module(settings.seed)
        self.width = Width(trace(module, task.data.shape))
        self._replica = Replica(module, self.width.layout, task.loss)
        ways = {"scaled": settings.scales, "static": settings.static}
        self._workshop = Workshop(self.width, self._replica, **ways, most=1)
        order = seeds.generator(settings.seed, "held out").permutation(len(task.data.train))
        aside = min(settings.held_out, len(order) // 4)
        self._aside, self._train = order[:aside], order[aside:]
        self._everything: list[None] = [None] * len(self.width.sets)
        self.weights = self._warmed_up() if weights is None else weights
        self._load()
        self._before = self._score()

    def answer(self, question: Question) -> float:
        """How much the model gains; of two vectors the better one has the larger answer."""
        self._load()
        if question.judge == "alignment":
            return self._alignment(question)
        if question.judge == "seconds":
            return self._seconds(question.counts)
        brief = question.judge == "brief"
        batches = max(2, self._settings.batches // BRIEF) if brief else self._settings.batches
        self._descend(question.counts, batches, f"trial {question.repeat}")
        return self._score() - self._before

    def _seconds(self, counts: Counts) -> float:
        """Processor time of a mini-batch, the least of several: what else the machine does only adds to it."""
        found = []
        for again in range(TIMED + 1):  # the first makes room
            began = time.thread_time()
            self._descend(counts, 1, f"timed {again}")
            found.append(time.thread_time() - began)
        return min(found[1:])

    def _warmed_up(self) -> Weights:
        self._descend(self.width.full, self._settings.warmup, "warm-up")
        return self._replica.numbers.params.numpy().copy(), self._replica.state_buffers().numpy().copy()

    def _load(self) -> None:
        params, buffers = map(torch.from_numpy, self.weights)
        self._replica.load(0, self.width.layout.layers - 1, params, buffers)
        self._replica.settle()

    def _descend(self, counts: Counts, batches: int, name: str) -> None:
        """Train; mini-batches depend on `name` only, so that all vectors see the same ones."""
        settings = self._settings
        data, draws = (seeds.generator(settings.seed, name, what) for what in ("batches", "subsets"))
        velocity = torch.zeros_like(self._replica.numbers.params)

        def update(weights: Tensor, gradient: Tensor, slow: Tensor | None) -> None:
            assert slow is not None
            slow.mul_(settings.momentum).add_(gradient)
            weights.add_(slow, alpha=-settings.lr)

        for _ in range(batches):
            kept = subsets(self.width, counts, self._chooser(draws))
            self._workshop.step(kept, self._batch(data), update, velocity, draws)

    def _chooser(self, draws: np.random.Generator) -> Chooser:
        return leading if self._settings.units == "leading" else random(draws)

    def _batch(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        chosen = self._train[rng.integers(len(self._train), size=self._settings.batch)]
        return self._data.train.batch(chosen, rng)

    def _score(self) -> float:
        """Accuracy, or the loss's negative, on the samples kept aside."""
        if self._settings.static:
            rng = seeds.generator(self._settings.seed, "statistics")
            calibrate(self._replica, [self._batch(rng) for _ in range(CALIBRATION)])
        parts = [self._aside[start : start + 500] for start in range(0, len(self._aside), 500)]
        total = 0.0
        for output, targets in self._replica.outputs(self._data.train.batch(part) for part in parts):
            if self._settings.measure == "accuracy":
                total += float((output.argmax(1) == targets).sum())
            else:
                total -= float(self._replica.loss(output, targets)) * len(targets)
        return total / len(self._aside)

    def _alignment(self, question: Question) -> float:
        """The cosine between the sub-models' gradients and the whole model's on another batch, on average."""
        rng = seeds.generator(self._settings.seed, "alignment", question.repeat)
        whole = torch.zeros_like(self._replica.numbers.params)
        for _ in range(PROXY_DRAWS):
            whole += self._replica.gradient(*self._batch(rng), rng)[0]
        parts = torch.zeros_like(whole)
        for _ in range(PROXY_DRAWS):
            loan = self._workshop.lend(subsets(self.width, question.counts, self._chooser(rng)))
            gradient, _ = loan.replica.gradient(*self._batch(rng), rng)
            held = torch.zeros_like(whole)
            loan.scatter(gradient, held)
            parts += held if loan.selection is not None else gradient
        return float(torch.cosine_similarity(whole, parts, dim=0))
