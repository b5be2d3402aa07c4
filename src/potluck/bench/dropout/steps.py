"""The time of a step with channels left out, as a share of the whole model's step, against the share of its MACs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from potluck.model import zoo
from potluck.model.replica import Replica
from potluck.model.submodels import Width, Workshop, width
from potluck.model.submodels.subsets import random, subsets

__all__ = ["NETWORKS", "RATES", "measure"]

NETWORKS = {"vgg11-bn-cifar": "VGG-11", "resnet20": "ResNet-20", "mobilenet-v2-cifar": "MobileNetV2"}
RATES = (0.25, 0.5, 0.75)
BATCH = 32
GRID = 8
LR = 1e-4


def measure(name: str, repeats: int, grid: int = GRID) -> dict[str, Any]:
    """Whole steps and small ones take turns; processor time of one thread, channels last on both sides."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        bench = _Bench(name)
        return {str(rate): bench.compare(rate, repeats, grid) for rate in RATES}
    finally:
        torch.set_num_threads(threads)


class _Bench:
    """A network, a batch, and the two kinds of step."""

    def __init__(self, name: str) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module, entry = zoo.build(name), zoo.entry(name)
            inputs, self._targets = torch.randn(BATCH, *entry.shape), torch.randint(0, entry.classes, (BATCH,))
        self._inputs = inputs.contiguous(memory_format=torch.channels_last)
        self._width: Width = width(module, entry.shape)
        self._whole = Replica(module, self._width.layout, nn.functional.cross_entropy)
        self._workshop = Workshop(self._width, self._whole, scaled=True)
        self._rng = np.random.default_rng(0)

    def compare(self, rate: float, repeats: int, grid: int) -> dict[str, float]:
        """Medians of the times, after one step of each that does not count."""
        counts = self._width.counts([rate] * len(self._width.sets), grid)
        whole, small = (lambda: self._step(self._width.full)), (lambda: self._step(counts))
        pairs = [(_seconds(whole), _seconds(small)) for _ in range(repeats + 1)][1:]
        whole_s, small_s = (float(np.median(times)) for times in zip(*pairs, strict=True))
        return {"macs": self._width.share(counts), "time": small_s / whole_s, "whole_s": whole_s, "small_s": small_s}

    def _step(self, counts: tuple[int, ...]) -> None:
        """Everything a device does: draw the channels, gather, forward, backward, update, scatter."""
        kept = subsets(self._width, counts, random(self._rng))
        batch = (self._inputs, self._targets)
        self._workshop.step(kept, batch, lambda weights, gradient, _: weights.add_(gradient, alpha=-LR))


def _seconds(step: Callable[[], None]) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start
