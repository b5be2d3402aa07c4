"""`potluck plan` for a job with class groups: what each cut costs a device, what each affords, who holds what."""

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

_COLUMNS = 10  # numbers of groups, at most


def show_class_groups(job: Job, carver: SubmodelExtractor | None) -> None:
    """The table of depths and numbers of groups, then the devices; nothing where there are no groups."""
    found = _as_group_extractor(carver)
    if found is None:
        return
    console = open_console()
    typer.echo("\ntimes fewer MACs of a training step for a device with one group, by how the network is cut")
    console.print(_cuts_table(found))
    whose = "the fastest one's whole step, or set `rounds.slot`" if job.rounds.slot is None else "rounds.slot"
    typer.echo(
        "\nthe cut that keeps most of the network within what a device computes in a mini-batch's slot of"
        f" {format_seconds(_slot_s(job, found))} ({whose})"
    )
    console.print(_affordable_table(job, found))
    for groups, devices in _devices_by_groups(found).items():
        macs = _training_cost(found, groups)
        console.print(
            f"group {', '.join(map(str, groups))}: {', '.join(devices)}, {macs['times']:.3g} times fewer MACs",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def class_groups_to_json(job: Job, carver: SubmodelExtractor | None) -> dict[str, Any]:
    """The same as data, under one key; nothing where there are no groups."""
    found = _as_group_extractor(carver)
    if found is None:
        return {}
    counts = _group_counts(found)
    cuts = [_cut_to_json(found, choice) for row in _cut_rows(found, counts) for choice in row if choice is not None]
    held = [
        {"groups": groups, "devices": devices, **_training_cost(found, groups)}
        for groups, devices in _devices_by_groups(found).items()
    ]
    picks = [
        {
            "devices": pick.devices,
            "budget": pick.step_fraction,
            "cut": None if pick.choice is None else _cut_to_json(found, pick.choice),
        }
        for pick in _affordable_cuts(job, found)
    ]
    plan = found.grouped.spec
    own = {"depth": plan.depth, "groups": len(plan.groups)}
    return {"class_groups": {"cuts": cuts, "picks": picks, "slot_s": _slot_s(job, found), "job": own, "held": held}}


def _cut_to_json(carver: GroupExtractor, choice: GroupChoice) -> dict[str, Any]:
    return {
        "depth": choice.depth,
        "groups": choice.groups,
        "times": _cost_reduction(carver, choice),
        "kept": choice.kept_fraction,
    }


def _cuts_table(carver: GroupExtractor) -> Table:
    counts = _group_counts(carver)
    drawn = plain_table("shared layers", *(f"{count} groups" for count in counts))
    for depth, row in enumerate(_cut_rows(carver, counts)):
        drawn.add_row(str(depth), *("-" if choice is None else _cut_cell(carver, choice) for choice in row))
    return drawn


def _cut_cell(carver: GroupExtractor, choice: GroupChoice) -> str:
    return f"{_cost_reduction(carver, choice):.3g}x{_job_mark(carver, choice)}"


def _job_mark(carver: GroupExtractor, choice: GroupChoice) -> str:
    plan = carver.grouped.spec
    return " (this job)" if (choice.depth, choice.groups) == (plan.depth, len(plan.groups)) else ""


def _affordable_table(job: Job, carver: GroupExtractor) -> Table:
    drawn = plain_table("device", "affords", "shared layers", "groups", "fewer MACs", "network kept")
    for pick in _affordable_cuts(job, carver):
        first, *others = pick.devices
        label = f"{first} and {len(others)} alike" if others else first
        drawn.add_row(label, f"{100 * pick.step_fraction:.3g} %", *_cut_cells(carver, pick.choice))
    return drawn


def _cut_cells(carver: GroupExtractor, choice: GroupChoice | None) -> tuple[str, ...]:
    if choice is None:
        return ("none fits", "-", "-", "-")
    return str(choice.depth), str(choice.groups), _cut_cell(carver, choice), format_percent(choice.kept_fraction)


def _affordable_cuts(job: Job, carver: GroupExtractor) -> list[AffordableCut]:
    from potluck.model.decoupled.class_groups import ClassGroups
    from potluck.run.class_group_cut import affordable_cuts

    assert isinstance(job.rounds.submodel, ClassGroups)
    return affordable_cuts(job, job.rounds.submodel, carver.grouped.layers, carver.grouped.spec.class_count)


def _slot_s(job: Job, carver: GroupExtractor) -> float:
    from potluck.run.class_group_cut import mini_batch_slot_s

    return mini_batch_slot_s(job, carver.grouped.layers)


def _as_group_extractor(carver: SubmodelExtractor | None) -> GroupExtractor | None:
    from potluck.model.decoupled.group_extractor import GroupExtractor

    return carver if isinstance(carver, GroupExtractor) else None


def _group_counts(carver: GroupExtractor) -> list[int]:
    """Numbers of groups to show: few, doubling, and the job's own."""
    plan = carver.grouped.spec
    usual = [count for count in (2, 3, 4, 5, 8, 10, 20, 50, 100) if count <= plan.class_count]
    return sorted({*usual, len(plan.groups)})[:_COLUMNS]


def _cut_rows(carver: GroupExtractor, counts: Sequence[int]) -> list[list[GroupChoice | None]]:
    from potluck.planning.groups import group_choices, max_trunk_depth

    layers = carver.grouped.layers
    found = {
        (choice.depth, choice.groups): choice
        for choice in group_choices(layers, carver.grouped.spec.class_count, counts)
    }
    return [[found.get((depth, count)) for count in counts] for depth in range(max_trunk_depth(layers) + 1)]


def _cost_reduction(carver: GroupExtractor, choice: GroupChoice) -> float:
    from potluck.planning.groups import full_model_cost

    grouped = carver.grouped
    paid = choice.cost.training_macs(frozen=grouped.frozen)
    return full_model_cost(grouped.layers).training_macs(frozen=False) / paid


def _devices_by_groups(carver: GroupExtractor) -> dict[tuple[int, ...], list[str]]:
    found: dict[tuple[int, ...], list[str]] = {}
    for device, groups in carver.device_groups.items():
        found.setdefault(groups, []).append(device)
    return found


def _training_cost(carver: GroupExtractor, groups: tuple[int, ...]) -> dict[str, float]:
    from potluck.planning.groups import full_model_cost, group_cost

    grouped = carver.grouped
    sizes = [len(own) for own in grouped.spec.groups]
    paid = group_cost(grouped.layers, sizes, grouped.spec.depth, groups).training_macs(frozen=grouped.frozen)
    return {"macs": paid, "times": full_model_cost(grouped.layers).training_macs(frozen=False) / paid}
