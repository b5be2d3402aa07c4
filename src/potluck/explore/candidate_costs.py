"""The cost of sub-model candidates before they are trained: by their MACs, or by a device's profile.

A profile weighs the layers: each takes the fraction of its measured seconds that the candidate keeps of its MACs.
"""

from __future__ import annotations

from functools import cache

from potluck.explore.candidate_evaluator import Counts
from potluck.fleet.compute_profile import ComputeProfile
from potluck.job import Job
from potluck.model.layer_chain import trace_layers
from potluck.model.submodels import SlimmableModel
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.planning.pareto_table import Cost
from potluck.run.measured_costs import check_profile

__all__ = ["CandidateCosts", "slowest_profile"]


def slowest_profile(job: Job) -> ComputeProfile | None:
    """The profile of the slowest device that has one: it needs sub-models most."""
    profiles = [device.profile for device in job.fleet.members if device.profile is not None]
    return min(profiles, key=lambda profile: profile.flops, default=None)


class CandidateCosts:
    """Costs as fractions of the full model's; SettingError if the profile was made for another model."""

    def __init__(self, slimmable: SlimmableModel, profile: ComputeProfile | None = None) -> None:
        self.slimmable = slimmable
        self.unit: Cost = "macs"
        self.cost_fraction = slimmable.macs_fraction
        if profile is not None:
            check_profile(profile, slimmable.chain, "fleet.devices.profile")
            self.unit = "seconds"
            self._layer_s = [layer.forward_s + layer.backward_s for layer in profile.layers]
            self._graph = width_agnostic_graph(slimmable)
            self.cost_fraction = cache(self._seconds_fraction)

    def _seconds_fraction(self, counts: Counts) -> float:
        """A layer without MACs takes its full time in every candidate."""
        chain = self.slimmable.chain
        module = build_narrow_network(self.slimmable, self._graph, counts)
        narrow = trace_layers(module, chain.shape, dtype=chain.dtype)
        kept_s = sum(
            seconds * (kept.macs / full.macs if full.macs else 1.0)
            for seconds, kept, full in zip(self._layer_s, narrow.layers, chain.layers, strict=True)
        )
        return min(kept_s / sum(self._layer_s), 1.0)
