"""Maps the progress of real training to the steps of a turn's work, so that execution follows the plan.

one step                          transfers are not cut, every mini-batch trains the same submodel
one step for each mini-batch      each chooses its submodel as it begins
forward L · rest · backward L     transfers are cut: layers wait for their segments, gradients leave when ready
"""

from __future__ import annotations

from potluck.loops.node import Pace

__all__ = ["PerBatchHooks", "PerLayerHooks", "SingleStepHooks"]


class SingleStepHooks:
    """One step for everything."""

    holds = False
    overlapped = False

    def on_batch_start(self, batch: int) -> None:
        pass

    def before_layer_forward(self, layer: int) -> None:
        pass

    def after_forward(self, first: bool, last: bool) -> None:
        pass

    def after_layer_backward(self, layer: int) -> None:
        pass

    def on_train_end(self) -> None:
        pass


class PerBatchHooks(SingleStepHooks):
    """A step for each mini-batch."""

    def __init__(self, pace: Pace) -> None:
        self.holds = pace.holds
        self._pace = pace
        self._batch_index = -1

    def on_batch_start(self, batch: int) -> None:
        self.on_train_end()
        self._batch_index = batch
        self._pace.enter(batch)

    def on_train_end(self) -> None:
        if self._batch_index >= 0:
            self._pace.leave(self._batch_index)


class PerLayerHooks(SingleStepHooks):
    """A step for each layer of the first forward and of the last backward pass."""

    overlapped = True

    def __init__(self, pace: Pace, layers: int, steps: int) -> None:
        self.holds = pace.holds
        self._pace = pace
        self._backward = steps - layers  # the first step of the backward pass; a step for the rest may precede it
        self._layers = layers

    def before_layer_forward(self, layer: int) -> None:
        if layer > 0:
            self._pace.leave(layer - 1)
        self._pace.enter(layer)

    def after_forward(self, first: bool, last: bool) -> None:
        if first:
            self._pace.leave(self._layers - 1)
            self._pace.enter(self._layers)
        if last and self._backward > self._layers:
            self._pace.leave(self._layers)
            self._pace.enter(self._backward)

    def after_layer_backward(self, layer: int) -> None:
        step = self._backward + self._layers - 1 - layer
        self._pace.leave(step)
        if layer > 0:
            self._pace.enter(step + 1)
