"""Class groups: which classes go together, what a device pays for some of the groups, and which cut fits it."""

from potluck.planning.groups.choice import Budget, Choice, choose, table
from potluck.planning.groups.classes import Groups, alike, check_groups, even_groups
from potluck.planning.groups.costs import Cost, Layer, cost, deepest, sizes_of, whole
from potluck.planning.groups.holding import dealt, holders
from potluck.planning.groups.shares import assign_evenly, even_sizes

__all__ = [
    "Budget",
    "Choice",
    "Cost",
    "Groups",
    "Layer",
    "alike",
    "assign_evenly",
    "check_groups",
    "choose",
    "cost",
    "dealt",
    "deepest",
    "even_groups",
    "even_sizes",
    "holders",
    "sizes_of",
    "table",
    "whole",
]
