"""Plans data injection (ScaDLES): which devices send copies of samples to which others, so that all see more classes.

There are two readings of the publication. In the paper a random fraction `alpha` of the devices sends the fraction
`beta` of its batch to every other device. In the authors' code a device appends ⌊beta · batch⌋ samples of a random
class that it does not hold, ⌈alpha · classes⌉ times; here a device that holds the class sends them.

Samples are copied: their donor trains on them, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np

from potluck.settings import Part, doc

__all__ = ["BroadcastInjection", "Injection", "InjectionFleet", "MissingClassInjection", "SampleTransfer"]

Fraction = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
_ROUNDING = 1e-9  # 0.55 · 100 is a little above 55


class SampleTransfer(NamedTuple):
    """Copies `samples` samples of the donor's batch to the receiver's; of one class, if it has a `label`."""

    donor: str
    receiver: str
    samples: int
    label: int | None = None


@dataclass(frozen=True)
class InjectionFleet:
    """The devices that take part now, and what is known of them."""

    batches: Mapping[str, int]  # samples of its own stream in each device's latest batch
    classes: Mapping[str, Collection[int]] = field(default_factory=dict)  # that each device holds
    class_count: int = 0


class Injection(Part, frozen=True, kw_only=True):
    """`[stream.injection]`: devices send copies of samples to each other."""

    by_class: ClassVar[bool] = False  # whether the samples of a transfer are of one class

    def plan_transfers(
        self, receivers: Sequence[str], fleet: InjectionFleet, rng: np.random.Generator
    ) -> tuple[SampleTransfer, ...]:
        """What the receivers are sent for the turns that they begin now; at most one transfer for each of them, a
        donor and a class. It does not depend on the order of `fleet.batches`."""
        raise NotImplementedError


class BroadcastInjection(Injection, frozen=True, kw_only=True, tag="broadcast"):
    """A random fraction of the devices sends a fraction of its batch to every other device (the paper)."""

    alpha: Annotated[Fraction, doc("Fraction of the devices that send samples.")] = 0.25
    beta: Annotated[Fraction, doc("Fraction of its batch that such a device sends to each other device.")] = 0.25

    def plan_transfers(
        self, receivers: Sequence[str], fleet: InjectionFleet, rng: np.random.Generator
    ) -> tuple[SampleTransfer, ...]:
        devices = sorted(fleet.batches)
        count = math.ceil(self.alpha * len(devices) - _ROUNDING)
        donors = [devices[index] for index in sorted(rng.choice(len(devices), count, replace=False))] if devices else []
        return tuple(
            SampleTransfer(donor, receiver, samples)
            for donor in donors
            if (samples := math.floor(self.beta * fleet.batches[donor] + 0.5))
            for receiver in receivers
            if receiver != donor
        )


class MissingClassInjection(Injection, frozen=True, kw_only=True, tag="missing-classes"):
    """Every device is sent samples of random classes that it does not hold (the authors' code)."""

    by_class: ClassVar[bool] = True

    alpha: Annotated[Fraction, doc("Number of draws of a class, as a fraction of the number of classes.")] = 0.25
    beta: Annotated[Fraction, doc("Samples of each drawn class, as a fraction of the device's batch.")] = 0.25

    def plan_transfers(
        self, receivers: Sequence[str], fleet: InjectionFleet, rng: np.random.Generator
    ) -> tuple[SampleTransfer, ...]:
        holders: dict[int, list[str]] = {}
        for device in sorted(fleet.batches):
            for label in sorted(fleet.classes[device]):
                holders.setdefault(label, []).append(device)
        draws = math.ceil(self.alpha * fleet.class_count - _ROUNDING)
        planned: dict[tuple[str, str, int], int] = {}
        for receiver in receivers:
            samples = math.floor(self.beta * fleet.batches.get(receiver, 0) + _ROUNDING)
            missing = sorted(holders.keys() - set(fleet.classes[receiver]))
            for _ in range(draws if samples and missing else 0):
                label = missing[int(rng.integers(len(missing)))]
                donor = holders[label][int(rng.integers(len(holders[label])))]
                key = (donor, receiver, label)
                planned[key] = planned.get(key, 0) + samples
        return tuple(
            SampleTransfer(donor, receiver, samples, label) for (donor, receiver, label), samples in planned.items()
        )
