"""Per-layer costs of devices that have a profile: the measured times, expressed as FLOP at the device's own rate.

The total per sample stays that of the model; a profile changes the rate, and how the work spreads over layers and
directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from potluck.errors import SettingError
from potluck.fleet.compute_profile import ComputeProfile
from potluck.job import Job
from potluck.model.layer_chain import LayerChain
from potluck.task import TaskSettings

__all__ = ["LayerWork", "check_profile", "check_profiles", "measured_work"]


class LayerWork(NamedTuple):
    """FLOP per sample of each layer, forward and backward."""

    forward: list[float]
    backward: list[float]


def check_profiles(job: Job, chain: LayerChain) -> None:
    """SettingError if a device's profile was measured for another model than the job's."""
    for index, group in enumerate(job.fleet.devices):
        if group.profile is None:
            continue
        path = f"fleet.devices[{index}].profile"
        if isinstance(job.task, TaskSettings) and job.task.costs is not None:
            raise SettingError(path, "cannot be combined with `task.costs`; give `flops` instead")
        check_profile(group.profile, chain, path)


def check_profile(profile: ComputeProfile, chain: LayerChain, path: str) -> None:
    """SettingError unless the profile has exactly the layers of this chain."""
    advice = "measure this job's model with `potluck profile job.toml --measure --out FILE`"
    if len(profile.layers) != len(chain.layers):
        raise SettingError(
            path,
            f"was made for another model ({profile.model}, {len(profile.layers)} layers; the job's has"
            f" {len(chain.layers)}); {advice}",
        )
    for index, (profiled, layer) in enumerate(zip(profile.layers, chain.layers, strict=True)):
        expected = layer.name, layer.param_bytes, layer.output_bytes, layer.macs
        if (profiled.name, profiled.param_bytes, profiled.output_bytes, profiled.macs) != expected:
            raise SettingError(
                path,
                f"was made for another model ({profile.model}): layer {index} is {profiled.name!r} with"
                f" {profiled.param_bytes} bytes of weights and {profiled.macs} MACs, the job's is {layer.name!r} with"
                f" {layer.param_bytes} and {layer.macs}; {advice}",
            )


def measured_work(job: Job, units: Sequence[Sequence[int]]) -> dict[str, LayerWork]:
    """The work of every device with a profile; a layer counts as the last of its transfer units, `units[layer]`."""
    by_profile: dict[int, LayerWork] = {}
    works = {}
    for device in job.fleet.members:
        if device.profile is not None:
            if id(device.profile) not in by_profile:
                by_profile[id(device.profile)] = _spread_over_units(device.profile, units)
            works[device.name] = by_profile[id(device.profile)]
    return works


def _spread_over_units(profile: ComputeProfile, units: Sequence[Sequence[int]]) -> LayerWork:
    count = units[-1][-1] + 1
    work = LayerWork([0.0] * count, [0.0] * count)
    for layer, indices in zip(profile.layers, units, strict=True):
        work.forward[indices[-1]] = profile.equivalent_flop(layer.forward_s)
        work.backward[indices[-1]] = profile.equivalent_flop(layer.backward_s)
    return work
