"""The time of a step with channels left out, as a share of the whole model's step, against the share of its MACs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from potluck.model import zoo
from potluck.model.model_replica import ModelReplica
from potluck.model.submodels import SlimmableModel, WidthWorkspace, trace_slimmable
from potluck.model.submodels.unit_subsets import choose_subsets, random_units

__all__ = ["NETWORKS", "RATES", "measure_steps"]

NETWORKS = {"vgg11-bn-cifar": "VGG-11", "resnet20": "ResNet-20", "mobilenet-v2-cifar": "MobileNetV2"}
RATES = (0.25, 0.5, 0.75)
BATCH = 32
GRID = 8
LR = 1e-4


def measure_steps(name: str, repeats: int, grid: int = GRID) -> dict[str, Any]:
    """Whole steps and small ones take turns; processor time of one thread, channels last on both sides."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        bench = _StepBench(name)
        return {str(rate): bench.compare_steps(rate, repeats, grid) for rate in RATES}
    finally:
        torch.set_num_threads(threads)


class _StepBench:
    """A network, a batch, and the two kinds of step."""

    def __init__(self, name: str) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module, entry = zoo.build_model(name), zoo.model_entry(name)
            inputs, self._targets = torch.randn(BATCH, *entry.shape), torch.randint(0, entry.classes, (BATCH,))
        self._inputs = inputs.contiguous(memory_format=torch.channels_last)
        self._width: SlimmableModel = trace_slimmable(module, entry.shape)
        self._whole = ModelReplica(module, self._width.layout, nn.functional.cross_entropy)
        self._workshop = WidthWorkspace(self._width, self._whole, scaled=True)
        self._rng = np.random.default_rng(0)

    def compare_steps(self, rate: float, repeats: int, grid: int) -> dict[str, float]:
        """Medians of the times, after one step of each that does not count."""
        counts = self._width.kept_counts([rate] * len(self._width.sets), grid)
        whole, small = (lambda: self._run_step(self._width.full_counts)), (lambda: self._run_step(counts))
        pairs = [(_thread_seconds(whole), _thread_seconds(small)) for _ in range(repeats + 1)][1:]
        whole_s, small_s = (float(np.median(times)) for times in zip(*pairs, strict=True))
        return {
            "macs": self._width.macs_fraction(counts),
            "time": small_s / whole_s,
            "whole_s": whole_s,
            "small_s": small_s,
        }

    def _run_step(self, counts: tuple[int, ...]) -> None:
        """Everything a device does: draw the channels, gather, forward, backward, update, scatter."""
        kept = choose_subsets(self._width, counts, random_units(self._rng))
        batch = (self._inputs, self._targets)
        self._workshop.train_step(kept, batch, lambda weights, gradient, _: weights.add_(gradient, alpha=-LR))


def _thread_seconds(step: Callable[[], None]) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start
