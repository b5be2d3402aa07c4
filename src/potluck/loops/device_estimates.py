"""What a device has seen of its own link and speed; saved with a run, since plans are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.planning.online_estimates import LinkEstimate

__all__ = ["DeviceEstimates", "LinkPrior"]


@dataclass(frozen=True)
class LinkPrior:
    """What is taken for granted of a link before anything was seen."""

    up: float  # bytes per second
    down: float
    overhead: float = 0.001  # seconds per transfer
    round_trip: float = 0.02


@dataclass
class DeviceEstimates:
    """Running estimates: seconds of a segment in each direction and of a turn, and how much slower than nominal."""

    down: LinkEstimate
    up: LinkEstimate
    round_trip: float
    slowness: float = 1.0
    memory: float = field(default=0.5)
    turn_s: float = 0.0  # from one turn's beginning to the next, without waiting for data; 0 before the second
    turn_began: float | None = None
    waited_s: float = 0.0  # for data, in the present turn

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
        """A turn begins, and so the one before is over."""
        if self.turn_began is not None:
            seconds = max(now - self.turn_began - self.waited_s, 0.0)
            self.turn_s += (1 - self.memory if self.turn_s else 1.0) * (seconds - self.turn_s)
        self.turn_began, self.waited_s = now, 0.0
