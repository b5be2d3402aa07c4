"""Class groups: which classes form a group, what a device pays for its groups, and which cut fits its budget."""

from potluck.planning.groups.channel_graph import ChannelGraph, ChannelStep, OwnedStep, OwnerChoice, choose_in_order
from potluck.planning.groups.class_grouping import (
    Groups,
    assign_groups,
    assign_round_robin,
    check_groups,
    even_groups,
    similar_groups,
)
from potluck.planning.groups.even_assignment import assign_evenly, even_sizes
from potluck.planning.groups.group_choice import DeviceBudget, GroupChoice, choose_groups, group_choices
from potluck.planning.groups.group_costs import (
    GroupCost,
    GroupCosts,
    full_model_cost,
    group_cost,
    group_costs,
    max_trunk_depth,
)

__all__ = [
    "ChannelGraph",
    "ChannelStep",
    "DeviceBudget",
    "GroupChoice",
    "GroupCost",
    "GroupCosts",
    "Groups",
    "OwnedStep",
    "OwnerChoice",
    "assign_evenly",
    "assign_groups",
    "assign_round_robin",
    "check_groups",
    "choose_groups",
    "choose_in_order",
    "even_groups",
    "even_sizes",
    "full_model_cost",
    "group_choices",
    "group_cost",
    "group_costs",
    "max_trunk_depth",
    "similar_groups",
]
