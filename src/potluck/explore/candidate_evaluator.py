"""Scores a sub-model candidate: a short training from common weights, evaluated on held-out samples.

A fleet of uneven devices never trains one size alone. With `mixed`, every other mini-batch of a training, and of the
warm-up to the common weights, has one rate for all layers that is drawn at random; all candidates see the same rates.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck import seeds
from potluck.data import Dataset
from potluck.explore.settings import Exploration
from potluck.model.class_positions import class_positions
from potluck.model.input_spec import InputSpec, batch_size
from potluck.model.layer_chain import trace_layers
from potluck.model.model_replica import ModelReplica
from potluck.model.submodels import SlimmableModel, WidthWorkspace, calibrate_norms
from potluck.model.submodels.slimmable_model import UnitChooser, choose_subsets, leading_units, random_units
from potluck.model.weights_file import load_weights
from potluck.task import Task

__all__ = ["CandidateEvaluator", "Counts", "EvaluationRequest", "Weights"]

Counts = tuple[int, ...]
Weights = tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]
ALIGNMENT_BATCHES = 4
BRIEF_DIVISOR = 8  # the `brief` proxy trains for this fraction of the batches
TIMED_STEPS = 5
CALIBRATION_BATCHES = 16  # for the statistics of norm layers


class EvaluationRequest(NamedTuple):
    """What to score: the judge, the number of units kept in every channel set, and the repeat."""

    judge: str
    counts: Counts
    repeat: int


class CandidateEvaluator:
    """A model at its common weights, and the data to score candidates with; equal requests get equal scores."""

    def __init__(
        self, task: Task, settings: Exploration, weights: Weights | None = None, start: Path | None = None
    ) -> None:
        """From these common weights, or from what the warm-up makes of those of a new model or of the file `start`."""
        self._settings = settings
        self._data: Dataset = task.data
        module = task.build_module(settings.seed)
        if start is not None:
            load_weights(module, start)
        self.slimmable = SlimmableModel(
            trace_layers(module, InputSpec.of_batch(task.data.train.batch(np.arange(1))[0]))
        )
        self._replica = ModelReplica(module, self.slimmable.layout, task.loss)
        self._workspace = WidthWorkspace(
            self.slimmable, self._replica, scaled=settings.scales, static=settings.static, most=1
        )
        order = seeds.child_generator(settings.seed, "held out").permutation(len(task.data.train))
        held_out = min(settings.held_out, len(order) // 4)
        self._held_out, self._train = order[:held_out], order[held_out:]
        self.weights = self._warm_up() if weights is None else weights
        self._reset_weights()
        self._score_before = self._held_out_score()

    @property
    def weights_digest(self) -> str:
        """Of the common weights."""
        return hashlib.sha256(b"".join(vector.tobytes() for vector in self.weights)).hexdigest()

    def evaluate_candidate(self, request: EvaluationRequest) -> float:
        """The score of a candidate: its gain, cosine or seconds, depending on the judge."""
        self._reset_weights()
        if request.judge == "alignment":
            return self._gradient_alignment(request)
        if request.judge == "seconds":
            return self._step_s(request.counts)
        brief = request.judge == "brief"
        batches = max(2, self._settings.batches // BRIEF_DIVISOR) if brief else self._settings.batches
        self._train_batches(request.counts, batches, f"trial {request.repeat}")
        return self._held_out_score() - self._score_before

    def _step_s(self, counts: Counts) -> float:
        """CPU seconds of one mini-batch; the minimum of several, because other load only adds to it."""
        seconds = []
        for repeat in range(TIMED_STEPS + 1):  # the first one warms up
            began = time.thread_time()
            self._train_batches(counts, 1, f"timed {repeat}")
            seconds.append(time.thread_time() - began)
        return min(seconds[1:])

    def _warm_up(self) -> Weights:
        self._train_batches(self.slimmable.full_counts, self._settings.warmup, "warm-up")
        return self._replica.state.params.numpy().copy(), self._replica.copy_buffers().numpy().copy()

    def _reset_weights(self) -> None:
        params, buffers = map(torch.from_numpy, self.weights)
        self._replica.load_layers(0, self.slimmable.layout.layer_count - 1, params, buffers)
        self._replica.sync_counters()

    def _train_batches(self, counts: Counts, batches: int, name: str) -> None:
        """Train on mini-batches that depend on `name` only, so that all candidates see the same ones."""
        settings = self._settings
        data, draws = (seeds.child_generator(settings.seed, name, purpose) for purpose in ("batches", "subsets"))
        velocity = torch.zeros_like(self._replica.state.params)

        def update(weights: Tensor, gradient: Tensor, velocity: Tensor | None) -> None:
            assert velocity is not None
            velocity.mul_(settings.momentum).add_(gradient)
            weights.add_(velocity, alpha=-settings.lr)

        for index in range(batches):
            trained = self._draw_uniform_counts(data) if settings.mixed and index % 2 else counts
            kept = choose_subsets(self.slimmable, trained, self._unit_chooser(draws))
            self._workspace.train_step(kept, self._draw_batch(data), update, velocity, draws)

    def _draw_uniform_counts(self, rng: np.random.Generator) -> Counts:
        """What some other device trains: one rate for all channel sets."""
        rate = float(rng.uniform(0.0, self._settings.highest_rate))
        return self.slimmable.kept_counts([rate] * len(self.slimmable.sets), self._settings.grid)

    def _unit_chooser(self, draws: np.random.Generator) -> UnitChooser:
        return leading_units if self._settings.units == "leading" else random_units(draws)

    def _draw_batch(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        chosen = self._train[rng.integers(len(self._train), size=self._settings.batch)]
        batch: tuple[Tensor, Tensor] = self._data.train.batch(chosen, rng)
        return batch

    def _held_out_score(self) -> float:
        """Accuracy, or the negative loss, on the held-out samples."""
        if self._settings.static:
            rng = seeds.child_generator(self._settings.seed, "statistics")
            calibrate_norms(self._replica, [self._draw_batch(rng) for _ in range(CALIBRATION_BATCHES)])
        batches = [self._held_out[start : start + 500] for start in range(0, len(self._held_out), 500)]
        total = 0.0
        for output, targets in self._replica.outputs(self._data.train.batch(batch) for batch in batches):
            if self._settings.measure == "accuracy":
                positions = class_positions(output, targets)
                correct = int((positions.predicted == positions.labels).sum())
                total += correct * batch_size(targets) / max(1, len(positions.labels))
            else:
                total -= float(self._replica.loss(output, targets)) * batch_size(targets)
        return total / len(self._held_out)

    def _gradient_alignment(self, request: EvaluationRequest) -> float:
        """Cosine between the mean gradient of random sub-models and that of the full model on other batches."""
        rng = seeds.child_generator(self._settings.seed, "alignment", request.repeat)
        full = torch.zeros_like(self._replica.state.params)
        for _ in range(ALIGNMENT_BATCHES):
            full += self._replica.gradient(*self._draw_batch(rng), rng)[0]
        sampled = torch.zeros_like(full)
        for _ in range(ALIGNMENT_BATCHES):
            submodel = self._workspace.extract_submodel(
                choose_subsets(self.slimmable, request.counts, self._unit_chooser(rng))
            )
            gradient, _ = submodel.replica.gradient(*self._draw_batch(rng), rng)
            scattered = torch.zeros_like(full)
            submodel.scatter(gradient, scattered)
            sampled += scattered if submodel.selection is not None else gradient
        return float(torch.cosine_similarity(full, sampled, dim=0))
