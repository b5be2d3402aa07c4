"""Stream rates per device: constant, random by seed, as published, or from a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np

from potluck import seeds
from potluck.data.streams.stream_arrivals import StreamArrivals
from potluck.fleet.traces import ConstantTrace, Trace
from potluck.settings import Part, doc

__all__ = ["ConstantRate", "NormalRate", "RandomRate", "ScadlesRate", "StreamRate", "TraceRate", "UniformRate"]

PerSecond = Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]
Spread = Annotated[float, msgspec.Meta(ge=0.0)]
_LEAST = 8.0

# distribution, mean, deviation, and the draws listed in the authors' code
_PUBLISHED: dict[str, tuple[str, float, float, tuple[float, ...]]] = {
    "S1": ("uniform", 38, 24, (50, 38, 12, 36, 34, 13, 82, 40)),
    "S2": ("uniform", 300, 112, ()),
    "S1'": ("normal", 64, 24, (92, 38, 62, 42, 48, 88, 90, 22, 44, 28)),
    "S2'": ("normal", 256, 28, (270, 218, 300, 246, 232, 284, 284, 236, 274, 228)),
}


class StreamRate(Part, frozen=True, kw_only=True):
    """Samples per second of each device."""

    level: Annotated[Trace, doc("Factor on the rate over time.")] = ConstantTrace()

    def nominal_rate(self, index: int, seed: int) -> float:
        """The nominal rate of the device with this index in the fleet."""
        raise NotImplementedError

    def arrivals_of(self, index: int, seed: int) -> StreamArrivals:
        """The arrival times of that device's samples."""
        nominal = self.nominal_rate(index, seed)
        intervals = self.level.level_intervals(seeds.child_generator(seed, "rate", "level", index))
        return StreamArrivals(_scale_levels(intervals, nominal))


class ConstantRate(StreamRate, frozen=True, kw_only=True, tag="constant"):
    """The same rate for every device."""

    per_second: Annotated[PerSecond, doc("Samples per second.")] = 64.0

    def nominal_rate(self, index: int, seed: int) -> float:
        return self.per_second


class RandomRate(StreamRate, frozen=True, kw_only=True):
    """Drawn once per device from the run's seed; at least `least`."""

    mean: Annotated[PerSecond, doc("Mean over the devices, in samples per second.")] = 64.0
    deviation: Annotated[Spread, doc("Standard deviation over the devices, in samples per second.")] = 24.0
    least: Annotated[PerSecond, doc("Lowest rate that a device may have, in samples per second.")] = _LEAST

    def nominal_rate(self, index: int, seed: int) -> float:
        return max(self.least, self.draw_rate(seeds.child_generator(seed, "rate", index)))

    def draw_rate(self, rng: np.random.Generator) -> float:
        raise NotImplementedError


class UniformRate(RandomRate, frozen=True, kw_only=True, tag="uniform"):
    """One draw per device from a uniform distribution."""

    def draw_rate(self, rng: np.random.Generator) -> float:
        reach = math.sqrt(3) * self.deviation
        return float(rng.uniform(self.mean - reach, self.mean + reach))


class NormalRate(RandomRate, frozen=True, kw_only=True, tag="normal"):
    """One draw per device from a normal distribution."""

    def draw_rate(self, rng: np.random.Generator) -> float:
        return float(rng.normal(self.mean, self.deviation))


class ScadlesRate(StreamRate, frozen=True, kw_only=True, tag="scadles"):
    """The rate sets of the ScaDLES paper: the authors' draws first, then more of the same distribution, none slower."""

    set: Annotated[Literal["S1", "S2", "S1'", "S2'"], doc("Name of the set.")] = "S1"

    def nominal_rate(self, index: int, seed: int) -> float:
        shape, mean, deviation, known = _PUBLISHED[self.set]
        if index < len(known):
            return known[index]
        kind, least = UniformRate if shape == "uniform" else NormalRate, min(known, default=_LEAST)
        return kind(mean=mean, deviation=deviation, least=least).nominal_rate(index, seed)


class TraceRate(StreamRate, frozen=True, kw_only=True, tag="trace"):
    """Samples per second given by the trace `level`."""

    def nominal_rate(self, index: int, seed: int) -> float:
        return 1.0


def _scale_levels(intervals: Iterator[tuple[float, float]], nominal: float) -> Iterator[tuple[float, float]]:
    return ((until, nominal * level) for until, level in intervals)
