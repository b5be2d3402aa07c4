"""Measured per-layer times of one model on one kind of device, as part of a job.

`potluck profile` writes the file; `profile = "file.json"` in a fleet's `[[devices]]` table names it. The resolved job
contains this table, so that simulated runs, live devices and resumed runs all use the same times.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated

import msgspec

from potluck.settings import Settings, doc

__all__ = ["ComputeProfile", "ProfiledLayer"]

Count = Annotated[int, msgspec.Meta(ge=0)]
Duration = Annotated[float, msgspec.Meta(ge=0.0)]


class ProfiledLayer(Settings, frozen=True, kw_only=True):
    """One layer: bytes and MACs identify it, the seconds are those of the profile's batch."""

    name: Annotated[str, doc("Name of the layer.")]
    param_bytes: Annotated[Count, doc("Bytes of its parameters.")]
    output_bytes: Annotated[Count, doc("Bytes of its output for one sample.")]
    macs: Annotated[Count, doc("MACs of one sample.")]
    forward_s: Annotated[Duration, doc("Seconds of the forward pass of a batch.")]
    backward_s: Annotated[Duration, doc("Seconds of the backward pass of a batch.")]


class ComputeProfile(Settings, frozen=True, kw_only=True, dict=True):
    """The layers of `model` at batch size `batch`; other batch sizes take proportionally longer or shorter."""

    model: Annotated[str, doc("Name of the profiled model.")]
    batch: Annotated[int, msgspec.Meta(ge=1), doc("Samples per step in the measurement.")]
    layers: Annotated[tuple[ProfiledLayer, ...], doc("The model's layers in order.")]

    def __post_init__(self) -> None:
        if not (self._total_s > 0 and math.isfinite(self._total_s) and any(layer.macs for layer in self.layers)):
            raise ValueError("a profile needs layers with MACs and with finite seconds above 0")

    @property
    def _total_s(self) -> float:
        return math.fsum(layer.forward_s + layer.backward_s for layer in self.layers)

    @cached_property
    def flops(self) -> float:
        """The FLOP/s that the device reaches in training this model: 6 FLOP per MAC and sample, over the seconds."""
        return 6.0 * sum(layer.macs for layer in self.layers) * self.batch / self._total_s

    def equivalent_flop(self, seconds: float) -> float:
        """Seconds of the profile's batch as FLOP per sample at the rate `flops`."""
        return seconds * self.flops / self.batch
