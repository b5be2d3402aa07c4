"""Sub-models by width: the same network with fewer channels, trained at the cost of a smaller one."""

from potluck.model.submodels.narrow_replica import NarrowReplica, NarrowReplicaCache, build_small_model
from potluck.model.submodels.slimmable_model import ChannelSet, SlimmableModel, trace_slimmable
from potluck.model.submodels.submodel_parts import Submodel, WholeModel
from potluck.model.submodels.submodel_selection import SubmodelSelection, Subsets
from potluck.model.submodels.width_extractor import calibrate_norms
from potluck.model.submodels.width_sampler import RoundSubmodel, WidthChoice, WidthSampler
from potluck.model.submodels.width_workspace import WidthSubmodel, WidthWorkspace

__all__ = [
    "ChannelSet",
    "NarrowReplica",
    "NarrowReplicaCache",
    "RoundSubmodel",
    "SlimmableModel",
    "Submodel",
    "SubmodelSelection",
    "Subsets",
    "WholeModel",
    "WidthChoice",
    "WidthSampler",
    "WidthSubmodel",
    "WidthWorkspace",
    "build_small_model",
    "calibrate_norms",
    "trace_slimmable",
]
