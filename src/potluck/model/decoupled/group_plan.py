"""The class groups' section of `potluck plan`: what each cut costs a device, what each can afford, who trains what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from potluck.model.decoupled.group_cut import AffordableCut, CutRequest, affordable_cuts, mini_batch_slot_s
from potluck.model.decoupled.group_extractor import GroupExtractor
from potluck.model.decoupled.group_samples import step_macs
from potluck.model.submodel_context import PlanTable, SubmodelContext, SubmodelPlan
from potluck.planning.groups import GroupChoice, full_model_cost, group_choices
from potluck.units import format_seconds

__all__ = ["describe_groups"]

CutRows = dict[int, list[GroupChoice | None]]  # by depth

_MAX_COLUMNS = 10  # group counts
_USUAL_COUNTS = (2, 3, 4, 5, 8, 10, 20, 50, 100)


def describe_groups(context: SubmodelContext, request: CutRequest, extractor: GroupExtractor) -> SubmodelPlan:
    """All cuts and their costs, the cut that each kind of device can afford, and the devices of each group."""
    grouped = extractor.grouped
    slot_s = mini_batch_slot_s(context, grouped.graph)
    affordable = affordable_cuts(context, request, grouped.graph, grouped.spec.class_count)
    devices_by_groups: dict[tuple[int, ...], list[str]] = {}
    for device, groups in extractor.device_groups.items():
        devices_by_groups.setdefault(groups, []).append(device)
    costs = {groups: _training_cost(extractor, groups) for groups in devices_by_groups}
    rows = _cut_rows(extractor)
    data = {
        "cuts": [_cut_to_json(extractor, choice) for row in rows.values() for choice in row if choice is not None],
        "picks": [_affordable_to_json(extractor, cut) for cut in affordable],
        "slot_s": slot_s,
        "job": {"depth": grouped.spec.depth, "groups": len(grouped.spec.groups)},
        "held": [
            {"groups": groups, "devices": devices, **costs[groups]} for groups, devices in devices_by_groups.items()
        ],
    }
    lines = [
        f"group {', '.join(map(str, groups))}: {', '.join(devices)}, {costs[groups]['times']:.3g}x fewer MACs"
        for groups, devices in devices_by_groups.items()
    ]
    tables = [_cuts_table(extractor, rows), _affordable_table(extractor, affordable, slot_s, context.slot_s is None)]
    return SubmodelPlan({"class_groups": data}, tables, lines)


def _cuts_table(extractor: GroupExtractor, rows: CutRows) -> PlanTable:
    return PlanTable(
        "reduction of the MACs per training step for a device with one group, by depth and number of groups",
        ["shared layers", *(f"{count} groups" for count in _group_counts(extractor))],
        [
            [str(depth), *("-" if choice is None else _cut_cell(extractor, choice) for choice in row)]
            for depth, row in rows.items()
        ],
    )


def _affordable_table(
    extractor: GroupExtractor, cuts: Sequence[AffordableCut], slot_s: float, by_fastest: bool
) -> PlanTable:
    source = "the fastest device's full step; override it with `rounds.slot`" if by_fastest else "rounds.slot"
    return PlanTable(
        "the cut that keeps most of the network and fits into a mini-batch slot of"
        f" {format_seconds(slot_s)} ({source})",
        ["device", "affords", "shared layers", "groups", "fewer MACs", "network kept"],
        [
            [_device_label(cut.devices), f"{100 * cut.step_fraction:.1f} %", *_choice_cells(extractor, cut.choice)]
            for cut in cuts
        ],
    )


def _device_label(devices: Sequence[str]) -> str:
    first, *others = devices
    return f"{first} and {len(others)} alike" if others else first


def _cut_cell(extractor: GroupExtractor, choice: GroupChoice) -> str:
    spec = extractor.grouped.spec
    mark = " (this job)" if (choice.depth, choice.groups) == (spec.depth, len(spec.groups)) else ""
    return f"{_cost_reduction(extractor, choice):.3g}x{mark}"


def _choice_cells(extractor: GroupExtractor, choice: GroupChoice | None) -> tuple[str, ...]:
    if choice is None:
        return ("none fits", "-", "-", "-")
    return str(choice.depth), str(choice.groups), _cut_cell(extractor, choice), f"{100 * choice.kept_fraction:.1f} %"


def _affordable_to_json(extractor: GroupExtractor, cut: AffordableCut) -> dict[str, Any]:
    choice = None if cut.choice is None else _cut_to_json(extractor, cut.choice)
    return {"devices": cut.devices, "budget": cut.step_fraction, "cut": choice}


def _cut_to_json(extractor: GroupExtractor, choice: GroupChoice) -> dict[str, Any]:
    times = _cost_reduction(extractor, choice)
    return {"depth": choice.depth, "groups": choice.groups, "times": times, "kept": choice.kept_fraction}


def _group_counts(extractor: GroupExtractor) -> list[int]:
    """Numbers of groups to show: few, doubling, and the job's own."""
    spec = extractor.grouped.spec
    usual = [count for count in _USUAL_COUNTS if count <= spec.class_count]
    return sorted({*usual, len(spec.groups)})[:_MAX_COLUMNS]


def _cut_rows(extractor: GroupExtractor) -> CutRows:
    """For each depth the choices with so many groups, None where there is none."""
    counts, graph = _group_counts(extractor), extractor.grouped.graph
    choices = {
        (choice.depth, choice.groups): choice
        for choice in group_choices(graph, extractor.grouped.spec.class_count, counts)
    }
    return {depth: [choices.get((depth, count)) for count in counts] for depth in sorted(graph.trunk_ends)}


def _cost_reduction(extractor: GroupExtractor, choice: GroupChoice) -> float:
    grouped = extractor.grouped
    macs = choice.cost.training_macs(frozen=grouped.frozen, cached=extractor.caches_trunk)
    return full_model_cost(grouped.graph).training_macs(frozen=False) / macs


def _training_cost(extractor: GroupExtractor, groups: tuple[int, ...]) -> dict[str, float]:
    grouped = extractor.grouped
    macs = step_macs(grouped, groups, extractor.caches_trunk, extractor.is_distilled)
    return {"macs": macs, "times": full_model_cost(grouped.graph).training_macs(frozen=False) / macs}
