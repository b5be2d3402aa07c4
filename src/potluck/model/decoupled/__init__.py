"""Decoupled collaboration: split a network by class groups, train the groups separately, merge them into one network.

decouple ──▶ GroupedNetwork ──build_submodel──▶ devices train ──merge_contributions──▶ calibrate_groups ──▶ save
"""

from potluck.model.decoupled.assembled_file import load, save
from potluck.model.decoupled.contribution_merge import Contribution, ContributionReport, merge_contributions
from potluck.model.decoupled.decouple import Variant, decouple
from potluck.model.decoupled.group_calibration import CalibrationReport, calibrate_groups
from potluck.model.decoupled.group_loss import GroupLoss, expected_class_counts
from potluck.model.decoupled.grouped_network import AssembledNetwork, GroupedNetwork, GroupedNetworkSpec, GroupSubmodel
from potluck.model.decoupled.network_layers import channel_graph, trace_network

__all__ = [
    "AssembledNetwork",
    "CalibrationReport",
    "Contribution",
    "ContributionReport",
    "GroupLoss",
    "GroupSubmodel",
    "GroupedNetwork",
    "GroupedNetworkSpec",
    "Variant",
    "calibrate_groups",
    "channel_graph",
    "decouple",
    "expected_class_counts",
    "load",
    "merge_contributions",
    "save",
    "trace_network",
]
