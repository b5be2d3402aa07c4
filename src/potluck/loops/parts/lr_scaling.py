"""Learning-rate scaling: how the learning rate follows the number of samples in a round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import msgspec

from potluck.settings import Part, doc

__all__ = ["CappedLrScaling", "LinearLrScaling", "LrScaling", "NoLrScaling", "SquareRootLrScaling"]

Base = Annotated[int, msgspec.Meta(ge=1)]


class LrScaling(Part, frozen=True, kw_only=True):
    """A factor on the learning rate, by the samples of a round."""

    warmup: Annotated[int, msgspec.Meta(ge=0), doc("Rounds over which a factor above 1 is reached.")] = 0

    def lr_factor(self, samples: int, devices: int, round: int) -> float:
        """The factor of a round, given its devices and their samples in total."""
        full = self.full_lr_factor(samples, devices)
        if full <= 1.0 or round >= self.warmup:
            return full
        return 1.0 + (full - 1.0) * (round + 1) / (self.warmup + 1)

    def full_lr_factor(self, samples: int, devices: int) -> float:
        """The factor after warm-up."""
        raise NotImplementedError


class NoLrScaling(LrScaling, frozen=True, kw_only=True, tag="none"):
    """The same learning rate for any number of samples."""

    def unused_keys(self) -> Mapping[str, str]:
        return {"warmup": "without scaling"}

    def full_lr_factor(self, samples: int, devices: int) -> float:
        return 1.0


class LinearLrScaling(LrScaling, frozen=True, kw_only=True, tag="linear"):
    """In proportion to the samples of the round (ScaDLES)."""

    base: Annotated[Base, doc("Samples per device for which the learning rate is meant.")] = 64

    def full_lr_factor(self, samples: int, devices: int) -> float:
        return samples / (self.base * max(devices, 1))


class SquareRootLrScaling(LinearLrScaling, frozen=True, kw_only=True, tag="sqrt"):
    """With the square root of the samples of the round."""

    def full_lr_factor(self, samples: int, devices: int) -> float:
        return math.sqrt(super().full_lr_factor(samples, devices))


class CappedLrScaling(LinearLrScaling, frozen=True, kw_only=True, tag="capped"):
    """In proportion to the samples of the round, up to a limit."""

    most: Annotated[float, msgspec.Meta(gt=0.0), doc("Largest factor.")] = 4.0

    def full_lr_factor(self, samples: int, devices: int) -> float:
        return min(super().full_lr_factor(samples, devices), self.most)
