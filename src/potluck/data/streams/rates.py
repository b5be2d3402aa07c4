"""How fast samples stream into each device: the same for all, drawn by seed, as published, or from a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np

from potluck import seeds
from potluck.data.streams.arrivals import Arrivals
from potluck.fleet.traces import Constant, Trace
from potluck.settings import Part

__all__ = ["Drawn", "Normal", "Published", "Rate", "Same", "Traced", "Uniform"]

PerSecond = Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]
Spread = Annotated[float, msgspec.Meta(ge=0.0)]

# mean and deviation, the shape of the distribution, and the draws that the authors' code shows
_PUBLISHED: dict[str, tuple[str, float, float, tuple[float, ...]]] = {
    "S1": ("uniform", 38, 24, (50, 38, 12, 36, 34, 13, 82, 40)),
    "S2": ("uniform", 300, 112, ()),
    "S1'": ("normal", 64, 24, (92, 38, 62, 42, 48, 88, 90, 22, 44, 28)),
    "S2'": ("normal", 256, 28, (270, 218, 300, 246, 232, 284, 284, 236, 274, 228)),
}


class Rate(Part, frozen=True, kw_only=True):
    """Samples per second of each device, times a level that may move while the run goes on."""

    level: Trace = Constant()

    def of(self, place: int, seed: int) -> float:
        """The nominal rate of the device at this place of the fleet."""
        raise NotImplementedError

    def arrivals(self, place: int, seed: int) -> Arrivals:
        """When the samples of that device stream in."""
        nominal = self.of(place, seed)
        pieces = self.level.pieces(seeds.generator(seed, "rate", "level", place))
        return Arrivals(_scaled(pieces, nominal))


class Same(Rate, frozen=True, kw_only=True, tag="constant"):
    """The same for every device."""

    per_second: PerSecond = 64.0

    def of(self, place: int, seed: int) -> float:
        return self.per_second


class Drawn(Rate, frozen=True, kw_only=True):
    """Drawn once for each device by the run's seed; none is slower than `least`."""

    mean: PerSecond = 64.0
    deviation: Spread = 24.0
    least: PerSecond = 8.0

    def of(self, place: int, seed: int) -> float:
        return max(self.least, self.draw(seeds.generator(seed, "rate", place)))

    def draw(self, rng: np.random.Generator) -> float:
        raise NotImplementedError


class Uniform(Drawn, frozen=True, kw_only=True, tag="uniform"):
    """Evenly over the interval that has this mean and standard deviation."""

    def draw(self, rng: np.random.Generator) -> float:
        reach = math.sqrt(3) * self.deviation
        return float(rng.uniform(self.mean - reach, self.mean + reach))


class Normal(Drawn, frozen=True, kw_only=True, tag="normal"):
    """From the bell curve."""

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.normal(self.mean, self.deviation))


class Published(Rate, frozen=True, kw_only=True, tag="scadles"):
    """The rate sets of the ScaDLES paper: the draws of the authors' code first, then more of the same distribution."""

    set: Literal["S1", "S2", "S1'", "S2'"] = "S1"

    def of(self, place: int, seed: int) -> float:
        shape, mean, deviation, known = _PUBLISHED[self.set]
        if place < len(known):
            return known[place]
        kind = Uniform if shape == "uniform" else Normal
        return kind(mean=mean, deviation=deviation).of(place, seed)


class Traced(Rate, frozen=True, kw_only=True, tag="trace"):
    """Samples per second straight from a trace: `level = {kind = "piecewise", at = [...], levels = [...]}`."""

    def of(self, place: int, seed: int) -> float:
        return 1.0


def _scaled(pieces: Iterator[tuple[float, float]], nominal: float) -> Iterator[tuple[float, float]]:
    return ((until, nominal * level) for until, level in pieces)
