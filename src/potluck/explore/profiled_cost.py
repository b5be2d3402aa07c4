"""The cost of a sub-model by a device's profile: every layer's measured seconds, scaled with the MACs that are kept."""

from __future__ import annotations

from functools import cache

from potluck.explore.candidate_evaluator import Counts
from potluck.fleet.compute_profile import ComputeProfile
from potluck.job import Job
from potluck.model.layer_chain import trace_layers
from potluck.model.submodels import SlimmableModel
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.run.measured_costs import check_profile

__all__ = ["ProfiledCost", "slowest_profile"]


def slowest_profile(job: Job) -> ComputeProfile | None:
    """The profile of the slowest device that has one: it needs sub-models most."""
    profiles = [device.profile for device in job.fleet.members if device.profile is not None]
    return min(profiles, key=lambda profile: profile.flops, default=None)


class ProfiledCost:
    """Cost fractions of candidates by one profile; SettingError if it was made for another model."""

    def __init__(self, slimmable: SlimmableModel, profile: ComputeProfile) -> None:
        check_profile(profile, slimmable.chain, "fleet.devices.profile")
        self._slimmable = slimmable
        self._graph = width_agnostic_graph(slimmable)
        self._seconds = [layer.forward_s + layer.backward_s for layer in profile.layers]
        self.cost_fraction = cache(self._cost_fraction)

    def _cost_fraction(self, counts: Counts) -> float:
        """Seconds of the sub-model over those of the full model; a layer without MACs always takes its full time."""
        chain = self._slimmable.chain
        module = build_narrow_network(self._slimmable, self._graph, counts)
        narrow = trace_layers(module, chain.shape, dtype=chain.dtype)
        kept_s = sum(
            seconds * (part.macs / whole.macs if whole.macs else 1.0)
            for seconds, part, whole in zip(self._seconds, narrow.layers, chain.layers, strict=True)
        )
        return min(kept_s / sum(self._seconds), 1.0)
