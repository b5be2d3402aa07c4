"""Measures the seconds of single layers on a device: every layer once, or those of a stage while it trains.

Each layer is a timed step of the work, so the world says when it ended: by its model of the device, or by the clock of
a device that really runs the layers one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise

from potluck.loops.node import Node, Pace, Step, Work
from potluck.loops.pipeline.compute_estimates import MeasuredLayers
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.stage_backend import StageBackend

__all__ = ["LayerPassTimer", "is_timed_batch", "measure_layers"]

_log = logging.getLogger("potluck")

_TIMED_FIRST, _TIMED_EVERY = 4, 10  # batches of a term whose layers are timed: the first ones, and every tenth


def is_timed_batch(batch: int, start: int) -> bool:
    """Whether the layers of a batch are timed, in a term that starts with another one."""
    return batch - start < _TIMED_FIRST or batch % _TIMED_EVERY == 0


class LayerPassTimer:
    """The steps of a pass whose layers are timed: one for what precedes them, then one for each layer."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.steps = [Step(0.0, timed=True), *(Step(each, timed=True) for each in seconds)]
        self._pace: Pace | None = None
        self._entered = 0

    def attach(self, pace: Pace) -> None:
        """Follow a real execution. If it never comes to a layer, all of it counts as one step."""
        self._pace = pace

    def next_layer(self) -> None:
        """The execution comes to the next layer."""
        assert self._pace is not None
        if not self._entered:
            self._pace.enter(0)
        self._pace.leave(self._entered)
        self._entered += 1
        self._pace.enter(self._entered)

    def end_pass(self) -> None:
        """The last layer has ended."""
        if self._pace is not None and self._entered:
            self._pace.leave(self._entered)

    def layer_seconds(self) -> list[float]:
        """Seconds of each layer; empty if the execution did not run them one after the other."""
        seconds = [max(0.0, after.ended - before.ended) for before, after in pairwise(self.steps)]
        return seconds if any(seconds) else []


async def measure_layers(
    node: Node, backend: StageBackend, costs: PipelineCosts, flops: float, samples: int
) -> MeasuredLayers:
    """Seconds of every layer of the model for this many samples, forward and backward, each layer on its own."""
    layers = range(costs.layer_count)
    flop = [
        flop(layer, layer, samples)
        for layer in layers
        for flop in (costs.stage_forward_flop, costs.stage_backward_flop)
    ]
    timer = LayerPassTimer([each / flops for each in flop])

    def run(pace: Pace) -> bool:
        if not pace.holds:
            return True
        timer.attach(pace)
        try:
            backend.run_layers(samples, timer.next_layer)
        except Exception as error:  # a user's layer may raise anything when it runs on its own
            _log.warning("%s cannot measure the model's layers: %s", node.name, error)
            return False
        timer.end_pass()
        return True

    is_complete = await node.compute(Work(timer.steps, run, "measure"))
    seconds = timer.layer_seconds() if is_complete else []
    seconds = seconds or [0.0] * len(flop)
    return MeasuredLayers(seconds[0::2], seconds[1::2])
