"""Decoupled collaboration: a network taken apart by class groups, trained in parts, harvested into one.

decouple ──▶ Grouped ──submodel──▶ trained by devices ──harvest──▶ Grouped ──calibrate──▶ assemble ──▶ save
"""

from potluck.model.decoupled.assembled_file import load, save
from potluck.model.decoupled.balanced_sampling import balanced_batches, expected_class_counts
from potluck.model.decoupled.class_statistics import ClassStatistics, describe_classes, draw_features, pool_statistics
from potluck.model.decoupled.contribution_merge import Contribution, ContributionReport, merge_contributions
from potluck.model.decoupled.decouple import Variant, decouple
from potluck.model.decoupled.group_calibration import CalibrationReport, calibrate_groups
from potluck.model.decoupled.group_loss import GroupLoss
from potluck.model.decoupled.group_training import fit, trunk_features
from potluck.model.decoupled.grouped_network import AssembledNetwork, GroupedNetwork, GroupedNetworkSpec, GroupSubmodel
from potluck.model.decoupled.sequential_layers import layer_costs, trace_sequential
from potluck.model.decoupled.submodel_indices import indices_in_whole

__all__ = [
    "AssembledNetwork",
    "CalibrationReport",
    "ClassStatistics",
    "Contribution",
    "ContributionReport",
    "GroupLoss",
    "GroupSubmodel",
    "GroupedNetwork",
    "GroupedNetworkSpec",
    "Variant",
    "balanced_batches",
    "calibrate_groups",
    "decouple",
    "describe_classes",
    "draw_features",
    "expected_class_counts",
    "fit",
    "indices_in_whole",
    "layer_costs",
    "load",
    "merge_contributions",
    "pool_statistics",
    "save",
    "trace_sequential",
    "trunk_features",
]
