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
from potluck.model.layer_chain import trace_layers
from potluck.model.model_replica import ModelReplica
from potluck.model.submodels import SlimmableModel, WidthWorkspace, calibrate_norms
from potluck.model.submodels.unit_subsets import UnitChooser, choose_subsets, leading_units, random_units
from potluck.task import Task

__all__ = ["CandidateEvaluator", "Counts", "EvaluationRequest", "Weights"]

Counts = tuple[int, ...]
Weights = tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]
PROXY_DRAWS = 4
BRIEF = 8
TIMED = 5
CALIBRATION = 16  # mini-batches that statistics of norms are taken from


class EvaluationRequest(NamedTuple):
    """What is asked of a trial: by which judge, for how many units of every set, for the which-th time."""

    judge: str
    counts: Counts
    repeat: int


class CandidateEvaluator:
    """A model at its common weights and the data to judge it by; asked the same, it answers the same."""

    def __init__(self, task: Task, settings: Exploration, weights: Weights | None = None) -> None:
        self._settings = settings
        self._data: Dataset = task.data
        module = task.build_module(settings.seed)
        self.slimmable = SlimmableModel(trace_layers(module, task.data.shape))
        self._replica = ModelReplica(module, self.slimmable.layout, task.loss)
        ways = {"scaled": settings.scales, "static": settings.static}
        self._workspace = WidthWorkspace(self.slimmable, self._replica, **ways, most=1)
        order = seeds.child_generator(settings.seed, "held out").permutation(len(task.data.train))
        aside = min(settings.held_out, len(order) // 4)
        self._held_out, self._train = order[:aside], order[aside:]
        self._everything: list[None] = [None] * len(self.slimmable.sets)
        self.weights = self._warm_up() if weights is None else weights
        self._reset_weights()
        self._score_before = self._held_out_score()

    def evaluate_candidate(self, question: EvaluationRequest) -> float:
        """How much the model gains; of two vectors the better one has the larger answer."""
        self._reset_weights()
        if question.judge == "alignment":
            return self._gradient_alignment(question)
        if question.judge == "seconds":
            return self._step_s(question.counts)
        brief = question.judge == "brief"
        batches = max(2, self._settings.batches // BRIEF) if brief else self._settings.batches
        self._train_batches(question.counts, batches, f"trial {question.repeat}")
        return self._held_out_score() - self._score_before

    def _step_s(self, counts: Counts) -> float:
        """Processor time of a mini-batch, the least of several: what else the machine does only adds to it."""
        found = []
        for again in range(TIMED + 1):  # the first makes room
            began = time.thread_time()
            self._train_batches(counts, 1, f"timed {again}")
            found.append(time.thread_time() - began)
        return min(found[1:])

    def _warm_up(self) -> Weights:
        self._train_batches(self.slimmable.full_counts, self._settings.warmup, "warm-up")
        return self._replica.state.params.numpy().copy(), self._replica.copy_buffers().numpy().copy()

    def _reset_weights(self) -> None:
        params, buffers = map(torch.from_numpy, self.weights)
        self._replica.load_layers(0, self.slimmable.layout.layer_count - 1, params, buffers)
        self._replica.sync_counters()

    def _train_batches(self, counts: Counts, batches: int, name: str) -> None:
        """Train; mini-batches depend on `name` only, so that all vectors see the same ones."""
        settings = self._settings
        data, draws = (seeds.child_generator(settings.seed, name, what) for what in ("batches", "subsets"))
        velocity = torch.zeros_like(self._replica.state.params)

        def update(weights: Tensor, gradient: Tensor, slow: Tensor | None) -> None:
            assert slow is not None
            slow.mul_(settings.momentum).add_(gradient)
            weights.add_(slow, alpha=-settings.lr)

        for _ in range(batches):
            kept = choose_subsets(self.slimmable, counts, self._unit_chooser(draws))
            self._workspace.train_step(kept, self._draw_batch(data), update, velocity, draws)

    def _unit_chooser(self, draws: np.random.Generator) -> UnitChooser:
        return leading_units if self._settings.units == "leading" else random_units(draws)

    def _draw_batch(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        chosen = self._train[rng.integers(len(self._train), size=self._settings.batch)]
        return self._data.train.batch(chosen, rng)

    def _held_out_score(self) -> float:
        """Accuracy, or the loss's negative, on the samples kept aside."""
        if self._settings.static:
            rng = seeds.child_generator(self._settings.seed, "statistics")
            calibrate_norms(self._replica, [self._draw_batch(rng) for _ in range(CALIBRATION)])
        parts = [self._held_out[start : start + 500] for start in range(0, len(self._held_out), 500)]
        total = 0.0
        for output, targets in self._replica.outputs(self._data.train.batch(part) for part in parts):
            if self._settings.measure == "accuracy":
                total += float((output.argmax(1) == targets).sum())
            else:
                total -= float(self._replica.loss(output, targets)) * len(targets)
        return total / len(self._held_out)

    def _gradient_alignment(self, question: EvaluationRequest) -> float:
        """The cosine between the sub-models' gradients and the whole model's on another batch, on average."""
        rng = seeds.child_generator(self._settings.seed, "alignment", question.repeat)
        whole = torch.zeros_like(self._replica.state.params)
        for _ in range(PROXY_DRAWS):
            whole += self._replica.gradient(*self._draw_batch(rng), rng)[0]
        parts = torch.zeros_like(whole)
        for _ in range(PROXY_DRAWS):
            loan = self._workspace.extract_submodel(
                choose_subsets(self.slimmable, question.counts, self._unit_chooser(rng))
            )
            gradient, _ = loan.replica.gradient(*self._draw_batch(rng), rng)
            held = torch.zeros_like(whole)
            loan.scatter(gradient, held)
            parts += held if loan.selection is not None else gradient
        return float(torch.cosine_similarity(whole, parts, dim=0))
