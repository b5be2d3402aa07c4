"""Who sends how many samples to whom, so that skewed devices see other classes: ScaDLES' data injection.

In every round a random share `alpha` of the devices gives away a share `beta` of its batch, spread evenly over all
others. A sample moves, it is not copied: the samples of a round stay as many as they were.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from potluck import seeds
from potluck.settings import Settings, doc

__all__ = ["Injection", "SampleTransfer", "injected_batch_sizes", "injection_bytes", "plan_injection"]

Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]


class Injection(Settings, frozen=True, kw_only=True):
    """`[stream.injection]`: in every round some devices give samples of their batch to the others."""

    alpha: Annotated[Share, doc("Fraction of the devices that give samples.")] = 0.25
    beta: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0), doc("Fraction of its batch that such a device gives.")] = 0.25


class SampleTransfer(NamedTuple):
    """So many samples of one device's batch go into another's."""

    donor: str
    receiver: str
    samples: int


def plan_injection(
    injection: Injection, batches: Mapping[str, int], seed: int, round: int
) -> tuple[SampleTransfer, ...]:
    """The gifts of one round, by donor; the same for everyone who asks, whatever the order of the batches."""
    devices = sorted(batches)
    if len(devices) < 2:
        return ()
    rng = seeds.child_generator(seed, "injection", round)
    donors = rng.choice(len(devices), math.ceil(injection.alpha * len(devices) - 1e-9), replace=False)
    gifts: list[SampleTransfer] = []
    for donor in sorted(donors.tolist()):
        others = [device for device in devices if device != devices[donor]]
        first = int(rng.integers(len(others)))
        count = _donated_samples(batches[devices[donor]], injection.beta)
        gifts += _spread_evenly(devices[donor], others[first:] + others[:first], count)
    return tuple(gifts)


def injected_batch_sizes(batches: Mapping[str, int], gifts: Sequence[SampleTransfer]) -> dict[str, int]:
    """Everyone's batch once the gifts have arrived."""
    change: Counter[str] = Counter()
    for gift in gifts:
        change[gift.donor] -= gift.samples
        change[gift.receiver] += gift.samples
    return {device: size + change[device] for device, size in batches.items()}


def injection_bytes(gifts: Sequence[SampleTransfer], sample_bytes: int) -> int:
    """What the gifts put on the wire, between donor and receiver."""
    return sum(gift.samples for gift in gifts) * sample_bytes


def _donated_samples(batch: int, beta: float) -> int:
    """A share of the batch, to the nearest whole sample; one stays at least."""
    return max(0, min(math.floor(beta * batch + 0.5), batch - 1))


def _spread_evenly(donor: str, receivers: Sequence[str], count: int) -> list[SampleTransfer]:
    """Evenly, in order: some get one more than others."""
    each, more = divmod(count, len(receivers))
    counts = (each + (place < more) for place in range(len(receivers)))
    return [
        SampleTransfer(donor, receiver, samples) for receiver, samples in zip(receivers, counts, strict=True) if samples
    ]
