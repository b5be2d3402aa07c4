"""Runs the passes of one stage on its device's processor, and times them: as a whole and, in some batches, by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from potluck.journal import Span
from potluck.loops.node import Node, Pace, Step, Work
from potluck.loops.pipeline.layer_measurement import LayerPassTimer
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.stage_exchange import MessageKey
from potluck.planning.schedule.stage_rules import Kind

__all__ = ["LayerCallback", "PassResult", "PassTimes", "StageProcessor"]

LayerCallback = Callable[[], None] | None


class PassTimes(NamedTuple):
    """Seconds of a pass and, if its layers were timed, of each layer of the stage."""

    seconds: float = 0.0
    layer_s: Sequence[float] = ()

    def plus(self, other: PassTimes) -> PassTimes:
        """Both passes together; the layers' seconds count only if both were timed."""
        layer_s = [sum(pair) for pair in zip(self.layer_s, other.layer_s, strict=False)]
        return PassTimes(self.seconds + other.seconds, layer_s)


class PassResult(NamedTuple):
    value: Any
    times: PassTimes


class StageProcessor:
    """Computes the passes of the layers `first` to `last`; at most one at a time."""

    def __init__(self, node: Node, costs: PipelineCosts, flops: float, layers: range) -> None:
        self._node = node
        self._costs = costs
        self._flops = flops
        self._layers = layers
        self.computing: MessageKey | None = None  # the pass and the micro-batch

    def forward_s(self, samples: int) -> float:
        """Nominal seconds of a forward pass."""
        return self._pass_s("forward", samples, self._layers)

    async def compute(self, work: Work, number: int) -> Any:
        """Compute some work on a batch with this number."""
        self.computing = (work.label, number)
        value = await self._node.compute(work)
        self.computing = None
        return value

    async def compute_pass(
        self, kind: Kind, samples: int, run: Callable[[LayerCallback], Any], fields: dict[str, int], by_layer: bool
    ) -> PassResult:
        """Compute one pass of a micro-batch; `run` is given what to call as each layer begins."""
        began, timer = self._node.now(), self._layer_timer(kind, samples) if by_layer else None

        def run_paced(pace: Pace) -> Any:
            if timer is None or not pace.holds:
                return run(None)
            timer.attach(pace)
            value = run(timer.next_layer)
            timer.end_pass()
            return value

        steps = [Step(self._pass_s(kind, samples, self._layers))] if timer is None else timer.steps
        value = await self.compute(Work(steps, run_paced, kind), fields["batch"])
        now = self._node.now()
        self._node.record(Span(self._node.name, kind, began, now, fields))
        layer_s = [] if timer is None else timer.layer_seconds()
        return PassResult(value, PassTimes(now - began, layer_s if kind == "forward" else layer_s[::-1]))

    def _layer_timer(self, kind: Kind, samples: int) -> LayerPassTimer:
        seconds = [self._pass_s(kind, samples, range(layer, layer + 1)) for layer in self._layers]
        return LayerPassTimer(seconds if kind == "forward" else seconds[::-1])

    def _pass_s(self, kind: Kind, samples: int, layers: range) -> float:
        flop = self._costs.stage_forward_flop if kind == "forward" else self._costs.stage_backward_flop
        return flop(layers[0], layers[-1], samples) / self._flops
