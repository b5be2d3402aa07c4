"""A device's running estimates of its link and layers. Saved with the run, since transfers are planned from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.planning.layer_times import LayerTimes
from potluck.planning.online_estimates import LinkEstimate, clip_deviation
from potluck.planning.segments import DuplexPlan

__all__ = ["DeviceEstimates", "LinkPrior"]


@dataclass(frozen=True)
class LinkPrior:
    """What is assumed of a link before anything was measured."""

    up: float  # bytes per second
    down: float
    overhead: float = 0.001  # seconds per transfer
    round_trip: float = 0.02


@dataclass
class DeviceEstimates:
    """Estimates of the link in each direction, of a turn, and of each layer's computation.

    What a link takes is measured where the bytes arrive: of a pull by the device, of a push by the coordinator, which
    says it with the next invitation. `send` would only time how fast buffers fill.
    """

    down: LinkEstimate
    up: LinkEstimate
    round_trip: float
    layers: LayerTimes = field(default_factory=LayerTimes)
    memory: float = field(default=0.5)
    trips: int = 0  # that were timed
    duplex_plan: DuplexPlan | None = None  # of the latest turn, where the next one goes on planning
    turn_s: float = 0.0  # from one turn's start to the next, without waiting for data; 0 before the second
    turn_began: float | None = None
    waited_s: float = 0.0  # for data, in the current turn
    is_prepared: bool = False  # whether it has computed what it computes once

    @staticmethod
    def from_prior(prior: LinkPrior) -> DeviceEstimates:
        return DeviceEstimates(
            LinkEstimate(prior.overhead, 1 / prior.down), LinkEstimate(prior.overhead, 1 / prior.up), prior.round_trip
        )

    def observe_round_trip(self, seconds: float) -> None:
        """What a request and its answer took beyond the transfer itself; the prior is a guess and yields at once."""
        if self.trips > 0:
            seconds = clip_deviation(seconds, self.round_trip) if self.round_trip > 0 else seconds
        self.trips += 1
        self.round_trip += max(1 / self.trips, 1 - self.memory) * (seconds - self.round_trip)

    def begin_turn(self, now: float) -> None:
        """A turn begins, which ends the one before."""
        if self.turn_began is not None:
            seconds = max(now - self.turn_began - self.waited_s, 0.0)
            self.turn_s += (1 - self.memory if self.turn_s else 1.0) * (seconds - self.turn_s)
        self.turn_began, self.waited_s = now, 0.0
