"""The width methods in a round: parts of the whole model, trained on loan from a replica of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from potluck.model.carving import Choice, Loan, Part, Turn
from potluck.model.chain import trace
from potluck.model.replica import Loss, Replica
from potluck.model.state import Layout
from potluck.model.submodels.calibration import calibrate
from potluck.model.submodels.narrowing import narrow, pattern
from potluck.model.submodels.parts import Carver, Pulled
from potluck.model.submodels.parts import Choice as Size
from potluck.model.submodels.width import Width
from potluck.model.submodels.workshop import Workshop

__all__ = ["WidthCarver", "training_batches"]

Batch = tuple[Tensor, Tensor]


class WidthCarver:
    """A width method at work; `capacity` says what share of the whole model's MACs a device affords by its figures."""

    lends = True

    def __init__(
        self,
        carver: Carver,
        layout: Layout,
        capacity: Callable[[str], float],
        batches: Callable[[], Iterable[Batch]],
    ) -> None:
        self._carver = carver
        self._layout = layout
        self._capacity = capacity
        self._batches = batches
        self.chooses = carver.part.chooses
        self.unmoved_is_untrained = carver.part.unmoved_is_untrained
        self._pulled = lru_cache(maxsize=1024)(self._pull)
        self._shape = lru_cache(maxsize=64)(self._small)

    def select(self, turn: Turn) -> Part | None:
        pulled = self._pulled(turn.device, turn.round)
        return None if pulled is None else self._part(pulled)

    def share(self, turn: Turn) -> float | None:
        return None if self.chooses else self._carver.within(self._capacity(turn.device)).share

    def choose(self, turn: Turn, affordable: float, draws: np.random.Generator) -> Choice:
        return self._carver.choose(affordable, draws, self._capacity(turn.device))

    def lend(self, replica: Replica, turn: Turn, choice: Choice | None, draws: np.random.Generator) -> Loan:
        pulled = self._pulled(turn.device, turn.round)
        if not isinstance(replica.workshop, Workshop):
            replica.workshop = self._carver.workshop(replica)
        if choice is None:
            size = self._carver.within(self._capacity(turn.device)) if pulled is None else pulled.choice
        else:
            assert isinstance(choice, Size)
            size = choice
        return replica.workshop.lend(self._carver.subsets(size, draws, pulled))

    def network(self, turn: Turn, part: Part) -> nn.Module:
        raise AssertionError("width methods train on loan")

    def loss(self, turn: Turn, loss: Loss) -> Loss:
        return loss

    def calibration(self) -> Callable[[Replica], None] | None:
        return (lambda replica: calibrate(replica, self._batches())) if self._carver.part.static else None

    def _pull(self, device: str, round: int) -> Pulled | None:
        return self._carver.pulled(device, round, self._capacity(device))

    def _part(self, pulled: Pulled) -> Part:
        layout, macs = self._shape(pulled.choice.counts)
        chosen = pulled.selection
        return Part(pulled.choice.counts, chosen.params.index, chosen.buffers.index, layout, macs)

    def _small(self, counts: tuple[int, ...]) -> tuple[Layout, tuple[float, ...]]:
        """The layout of a network of this size, and its layers' MACs."""
        width: Width = self._carver.width
        module = narrow(width, pattern(width), counts)
        layers = [(layer.parameters, layer.buffers) for layer in width.chain.layers]
        chain = trace(module, width.chain.shape, dtype=width.chain.dtype)
        return Layout.of(module, layers), tuple(float(layer.macs) for layer in chain.layers)


def training_batches(samples: object, count: int = 8, size: int = 128) -> Iterable[Batch]:
    """A few batches of training data, always the same."""
    total = len(samples)  # type: ignore[arg-type]
    chosen = torch.linspace(0, total - 1, min(total, count * size)).long().numpy()
    for start in range(0, len(chosen), size):
        yield samples.batch(chosen[start : start + size])  # type: ignore[attr-defined]
