"""Which step of a turn's work belongs to which mini-batch and layer: real execution keeps to the plan by it.

one step                          nothing is cut, nothing chosen
one step for each mini-batch      each chooses its part of the model as it begins
forward L · rest · backward L     transfers are cut: layers wait for their segments, gradients leave when ready
"""

from __future__ import annotations

from potluck.loops.node import Pace

__all__ = ["LayerBeat", "PlainBeat", "StepBeat"]


class PlainBeat:
    """One step for everything."""

    holds = False
    overlapped = False

    def batch(self, place: int) -> None:
        pass

    def before(self, layer: int) -> None:
        pass

    def half(self, first: bool, last: bool) -> None:
        pass

    def after(self, layer: int) -> None:
        pass

    def done(self) -> None:
        pass


class StepBeat(PlainBeat):
    """A step for each mini-batch."""

    def __init__(self, pace: Pace) -> None:
        self.holds = pace.holds
        self._pace = pace
        self._place = -1

    def batch(self, place: int) -> None:
        self.done()
        self._place = place
        self._pace.enter(place)

    def done(self) -> None:
        if self._place >= 0:
            self._pace.leave(self._place)


class LayerBeat(PlainBeat):
    """A step for each layer of the first forward and of the last backward pass."""

    overlapped = True

    def __init__(self, pace: Pace, layers: int, steps: int) -> None:
        self.holds = pace.holds
        self._pace = pace
        self._backward = steps - layers  # where the backward pass begins; a step for the rest may lie before it
        self._layers = layers

    def before(self, layer: int) -> None:
        if layer > 0:
            self._pace.leave(layer - 1)
        self._pace.enter(layer)

    def half(self, first: bool, last: bool) -> None:
        if first:
            self._pace.leave(self._layers - 1)
            self._pace.enter(self._layers)
        if last and self._backward > self._layers:
            self._pace.leave(self._layers)
            self._pace.enter(self._backward)

    def after(self, layer: int) -> None:
        step = self._backward + self._layers - 1 - layer
        self._pace.leave(step)
        if layer > 0:
            self._pace.enter(step + 1)
