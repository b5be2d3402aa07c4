"""Plans data injection (ScaDLES): which devices send samples to which others, so that skewed devices see more classes.

In every round a random fraction `alpha` of the devices gives away a fraction `beta` of its batch, spread evenly over
the other devices. Samples are moved, not copied: the total of a round stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from potluck import seeds
from potluck.settings import Settings

__all__ = ["Injection", "SampleTransfer", "plan_injection"]

Fraction = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]


class Injection(Settings, frozen=True, kw_only=True):
    """Which fraction of the devices gives samples away, and which fraction of its batch each of them gives."""

    alpha: Fraction = 0.25
    beta: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.25


class SampleTransfer(NamedTuple):
    """Moves `samples` samples from the donor's batch to the receiver's."""

    donor: str
    receiver: str
    samples: int


def plan_injection(
    injection: Injection, batches: Mapping[str, int], seed: int, round: int
) -> tuple[SampleTransfer, ...]:
    """The transfers of one round, by donor. Depends on the seed and the round only, not on the order of `batches`."""
    devices = sorted(batches)
    if len(devices) < 2:
        return ()
    rng = seeds.child_generator(seed, "injection", round)
    donors = rng.choice(len(devices), math.ceil(injection.alpha * len(devices) - 1e-9), replace=False)
    transfers: list[SampleTransfer] = []
    for donor in sorted(donors.tolist()):
        others = [device for device in devices if device != devices[donor]]
        first = int(rng.integers(len(others)))
        count = _donated_samples(batches[devices[donor]], injection.beta)
        transfers += _spread_evenly(devices[donor], others[first:] + others[:first], count)
    return tuple(transfers)


def _donated_samples(batch: int, beta: float) -> int:
    """The fraction `beta` of the batch, rounded to the nearest sample; at least one sample stays."""
    return max(0, min(math.floor(beta * batch + 0.5), batch - 1))


def _spread_evenly(donor: str, receivers: Sequence[str], count: int) -> list[SampleTransfer]:
    """Spread `count` samples evenly; the first receivers get the remainder."""
    each, remainder = divmod(count, len(receivers))
    counts = (each + (index < remainder) for index in range(len(receivers)))
    return [
        SampleTransfer(donor, receiver, samples) for receiver, samples in zip(receivers, counts, strict=True) if samples
    ]
