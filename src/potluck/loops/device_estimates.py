"""A device's running estimates of its link and speed. Saved with the run, since transfers are planned from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.planning.online_estimates import LinkEstimate

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
    """Estimates of the link in each direction, of a turn, and of how much slower than nominal the device computes."""

    down: LinkEstimate
    up: LinkEstimate
    round_trip: float
    slowness: float = 1.0
    memory: float = field(default=0.5)
    turn_s: float = 0.0  # from one turn's start to the next, without waiting for data; 0 before the second
    turn_began: float | None = None
    waited_s: float = 0.0  # for data, in the current turn

    @staticmethod
    def from_prior(prior: LinkPrior) -> DeviceEstimates:
        return DeviceEstimates(
            LinkEstimate(prior.overhead, 1 / prior.down), LinkEstimate(prior.overhead, 1 / prior.up), prior.round_trip
        )

    def observe_pull(self, nbytes: int, seconds: float) -> None:
        self.down.observe_segment(nbytes, max(seconds, 0.0))

    def observe_push(self, nbytes: int, seconds: float) -> None:
        self.up.observe_segment(nbytes, max(seconds, 0.0))

    def observe_compute(self, nominal_s: float, seconds: float) -> None:
        if nominal_s > 0 and seconds > 0:
            self.slowness += (1 - self.memory) * (seconds / nominal_s - self.slowness)

    def begin_turn(self, now: float) -> None:
        """A turn begins, which ends the one before."""
        if self.turn_began is not None:
            seconds = max(now - self.turn_began - self.waited_s, 0.0)
            self.turn_s += (1 - self.memory if self.turn_s else 1.0) * (seconds - self.turn_s)
        self.turn_began, self.waited_s = now, 0.0
