"""`potluck plan` for class groups: what each cut costs, which cut each device affords, and which groups it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from potluck.cli.console import open_console, plain_table
from potluck.cli.number_format import format_percent, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from potluck.job import Job
    from potluck.model.decoupled.group_extractor import GroupExtractor
    from potluck.model.submodel_interface import SubmodelExtractor
    from potluck.planning.groups import GroupChoice
    from potluck.run.class_group_cut import AffordableCut

__all__ = ["class_groups_to_json", "show_class_groups"]

_MAX_COLUMNS = 10


def show_class_groups(job: Job, submodel: SubmodelExtractor | None) -> None:
    """Print the table of depths and group counts, then the devices; nothing for a job without class groups."""
    extractor = _as_group_extractor(submodel)
    if extractor is None:
        return
    console = open_console()
    typer.echo("\nreduction of the MACs per training step for a device with one group, by depth and number of groups")
    console.print(_cuts_table(extractor))
    source = (
        "the fastest device's full step; override it with `rounds.slot`" if job.rounds.slot is None else "rounds.slot"
    )
    typer.echo(
        "\nthe cut that keeps most of the network and fits into a mini-batch slot of"
        f" {format_seconds(_slot_s(job, extractor))} ({source})"
    )
    console.print(_affordable_table(job, extractor))
    for groups, devices in _devices_by_groups(extractor).items():
        macs = _training_cost(extractor, groups)
        console.print(
            f"group {', '.join(map(str, groups))}: {', '.join(devices)}, {macs['times']:.3g}x fewer MACs",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def class_groups_to_json(job: Job, submodel: SubmodelExtractor | None) -> dict[str, Any]:
    """The same for `--json`, under one key; empty for a job without class groups."""
    extractor = _as_group_extractor(submodel)
    if extractor is None:
        return {}
    counts = _group_counts(extractor)
    cuts = [
        _cut_to_json(extractor, choice) for row in _cut_rows(extractor, counts) for choice in row if choice is not None
    ]
    held = [
        {"groups": groups, "devices": devices, **_training_cost(extractor, groups)}
        for groups, devices in _devices_by_groups(extractor).items()
    ]
    picks = [
        {
            "devices": pick.devices,
            "budget": pick.step_fraction,
            "cut": None if pick.choice is None else _cut_to_json(extractor, pick.choice),
        }
        for pick in _affordable_cuts(job, extractor)
    ]
    plan = extractor.grouped.spec
    own = {"depth": plan.depth, "groups": len(plan.groups)}
    return {"class_groups": {"cuts": cuts, "picks": picks, "slot_s": _slot_s(job, extractor), "job": own, "held": held}}


def _cut_to_json(extractor: GroupExtractor, choice: GroupChoice) -> dict[str, Any]:
    return {
        "depth": choice.depth,
        "groups": choice.groups,
        "times": _cost_reduction(extractor, choice),
        "kept": choice.kept_fraction,
    }


def _cuts_table(extractor: GroupExtractor) -> Table:
    counts = _group_counts(extractor)
    drawn = plain_table("shared layers", *(f"{count} groups" for count in counts))
    for depth, row in enumerate(_cut_rows(extractor, counts)):
        drawn.add_row(str(depth), *("-" if choice is None else _cut_cell(extractor, choice) for choice in row))
    return drawn


def _cut_cell(extractor: GroupExtractor, choice: GroupChoice) -> str:
    return f"{_cost_reduction(extractor, choice):.3g}x{_job_mark(extractor, choice)}"


def _job_mark(extractor: GroupExtractor, choice: GroupChoice) -> str:
    plan = extractor.grouped.spec
    return " (this job)" if (choice.depth, choice.groups) == (plan.depth, len(plan.groups)) else ""


def _affordable_table(job: Job, extractor: GroupExtractor) -> Table:
    drawn = plain_table("device", "affords", "shared layers", "groups", "fewer MACs", "network kept")
    for pick in _affordable_cuts(job, extractor):
        first, *others = pick.devices
        label = f"{first} and {len(others)} alike" if others else first
        drawn.add_row(label, format_percent(pick.step_fraction), *_cut_cells(extractor, pick.choice))
    return drawn


def _cut_cells(extractor: GroupExtractor, choice: GroupChoice | None) -> tuple[str, ...]:
    if choice is None:
        return ("none fits", "-", "-", "-")
    return str(choice.depth), str(choice.groups), _cut_cell(extractor, choice), format_percent(choice.kept_fraction)


def _affordable_cuts(job: Job, extractor: GroupExtractor) -> list[AffordableCut]:
    from potluck.model.decoupled.class_groups import ClassGroups
    from potluck.run.class_group_cut import affordable_cuts

    assert isinstance(job.rounds.submodel, ClassGroups)
    return affordable_cuts(job, job.rounds.submodel, extractor.grouped.layers, extractor.grouped.spec.class_count)


def _slot_s(job: Job, extractor: GroupExtractor) -> float:
    from potluck.run.class_group_cut import mini_batch_slot_s

    return mini_batch_slot_s(job, extractor.grouped.layers)


def _as_group_extractor(submodel: SubmodelExtractor | None) -> GroupExtractor | None:
    from potluck.model.decoupled.group_extractor import GroupExtractor

    return submodel if isinstance(submodel, GroupExtractor) else None


def _group_counts(extractor: GroupExtractor) -> list[int]:
    """The group counts to show: a few usual ones, and the job's own."""
    plan = extractor.grouped.spec
    usual = [count for count in (2, 3, 4, 5, 8, 10, 20, 50, 100) if count <= plan.class_count]
    return sorted({*usual, len(plan.groups)})[:_MAX_COLUMNS]


def _cut_rows(extractor: GroupExtractor, counts: Sequence[int]) -> list[list[GroupChoice | None]]:
    from potluck.planning.groups import group_choices, max_trunk_depth

    layers = extractor.grouped.layers
    choices = {
        (choice.depth, choice.groups): choice
        for choice in group_choices(layers, extractor.grouped.spec.class_count, counts)
    }
    return [[choices.get((depth, count)) for count in counts] for depth in range(max_trunk_depth(layers) + 1)]


def _cost_reduction(extractor: GroupExtractor, choice: GroupChoice) -> float:
    from potluck.planning.groups import full_model_cost

    grouped = extractor.grouped
    paid = choice.cost.training_macs(frozen=grouped.frozen)
    return full_model_cost(grouped.layers).training_macs(frozen=False) / paid


def _devices_by_groups(extractor: GroupExtractor) -> dict[tuple[int, ...], list[str]]:
    devices: dict[tuple[int, ...], list[str]] = {}
    for device, groups in extractor.device_groups.items():
        devices.setdefault(groups, []).append(device)
    return devices


def _training_cost(extractor: GroupExtractor, groups: tuple[int, ...]) -> dict[str, float]:
    from potluck.planning.groups import full_model_cost, group_cost

    grouped = extractor.grouped
    sizes = [len(own) for own in grouped.spec.groups]
    paid = group_cost(grouped.layers, sizes, grouped.spec.depth, groups).training_macs(frozen=grouped.frozen)
    return {"macs": paid, "times": full_model_cost(grouped.layers).training_macs(frozen=False) / paid}
