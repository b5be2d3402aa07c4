"""`potluck plan` for a job with class groups: what each cut costs a device, what each affords, who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from potluck.cli.console import open_console, plain_table
from potluck.cli.figures import percent, seconds

if TYPE_CHECKING:
    from rich.table import Table

    from potluck.job import Job
    from potluck.model.carving import Carver
    from potluck.model.decoupled.carving import GroupCarver
    from potluck.planning.groups import Choice
    from potluck.run.cutting import Affordable

__all__ = ["as_json", "show"]

_COLUMNS = 10  # numbers of groups, at most


def show(job: Job, carver: Carver | None) -> None:
    """The table of depths and numbers of groups, then the devices; nothing where there are no groups."""
    found = _groups(carver)
    if found is None:
        return
    console = open_console()
    typer.echo("\ntimes fewer MACs of a training step for a device with one group, by how the network is cut")
    console.print(_drawn_cuts(found))
    whose = "the fastest one's whole step, or set `rounds.slot`" if job.rounds.slot is None else "rounds.slot"
    typer.echo(
        "\nthe cut that keeps most of the network within what a device computes in a mini-batch's slot of"
        f" {seconds(_slot(job, found))} ({whose})"
    )
    console.print(_drawn_picks(job, found))
    for groups, devices in _held(found).items():
        macs = _paid(found, groups)
        console.print(
            f"group {', '.join(map(str, groups))}: {', '.join(devices)}, {macs['times']:.3g} times fewer MACs",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def as_json(job: Job, carver: Carver | None) -> dict[str, Any]:
    """The same as data, under one key; nothing where there are no groups."""
    found = _groups(carver)
    if found is None:
        return {}
    counts = _counts(found)
    cuts = [_as_json(found, choice) for row in _rows(found, counts) for choice in row if choice is not None]
    held = [{"groups": groups, "devices": devices, **_paid(found, groups)} for groups, devices in _held(found).items()]
    picks = [
        {
            "devices": pick.devices,
            "budget": pick.share,
            "cut": None if pick.choice is None else _as_json(found, pick.choice),
        }
        for pick in _picks(job, found)
    ]
    plan = found.grouped.plan
    own = {"depth": plan.depth, "groups": len(plan.groups)}
    return {"class_groups": {"cuts": cuts, "picks": picks, "slot_s": _slot(job, found), "job": own, "held": held}}


def _as_json(carver: GroupCarver, choice: Choice) -> dict[str, Any]:
    return {"depth": choice.depth, "groups": choice.groups, "times": _times(carver, choice), "kept": choice.kept}


def _drawn_cuts(carver: GroupCarver) -> Table:
    counts = _counts(carver)
    drawn = plain_table("shared layers", *(f"{count} groups" for count in counts))
    for depth, row in enumerate(_rows(carver, counts)):
        drawn.add_row(str(depth), *("-" if choice is None else _cell(carver, choice) for choice in row))
    return drawn


def _cell(carver: GroupCarver, choice: Choice) -> str:
    return f"{_times(carver, choice):.3g}x{_mark(carver, choice)}"


def _mark(carver: GroupCarver, choice: Choice) -> str:
    plan = carver.grouped.plan
    return " (this job)" if (choice.depth, choice.groups) == (plan.depth, len(plan.groups)) else ""


def _drawn_picks(job: Job, carver: GroupCarver) -> Table:
    drawn = plain_table("device", "affords", "shared layers", "groups", "fewer MACs", "network kept")
    for pick in _picks(job, carver):
        first, *others = pick.devices
        label = f"{first} and {len(others)} alike" if others else first
        drawn.add_row(label, f"{100 * pick.share:.3g} %", *_words(carver, pick.choice))
    return drawn


def _words(carver: GroupCarver, choice: Choice | None) -> tuple[str, ...]:
    if choice is None:
        return ("none fits", "-", "-", "-")
    return str(choice.depth), str(choice.groups), _cell(carver, choice), percent(choice.kept)


def _picks(job: Job, carver: GroupCarver) -> list[Affordable]:
    from potluck.model.decoupled.part import ClassGroups
    from potluck.run.cutting import affordable

    assert isinstance(job.rounds.submodel, ClassGroups)
    return affordable(job, job.rounds.submodel, carver.grouped.layers, carver.grouped.plan.classes)


def _slot(job: Job, carver: GroupCarver) -> float:
    from potluck.run.cutting import slot

    return slot(job, carver.grouped.layers)


def _groups(carver: Carver | None) -> GroupCarver | None:
    from potluck.model.decoupled.carving import GroupCarver

    return carver if isinstance(carver, GroupCarver) else None


def _counts(carver: GroupCarver) -> list[int]:
    """Numbers of groups to show: few, doubling, and the job's own."""
    plan = carver.grouped.plan
    usual = [count for count in (2, 3, 4, 5, 8, 10, 20, 50, 100) if count <= plan.classes]
    return sorted({*usual, len(plan.groups)})[:_COLUMNS]


def _rows(carver: GroupCarver, counts: Sequence[int]) -> list[list[Choice | None]]:
    from potluck.planning.groups import deepest, table

    layers = carver.grouped.layers
    found = {(choice.depth, choice.groups): choice for choice in table(layers, carver.grouped.plan.classes, counts)}
    return [[found.get((depth, count)) for count in counts] for depth in range(deepest(layers) + 1)]


def _times(carver: GroupCarver, choice: Choice) -> float:
    from potluck.planning.groups import whole

    grouped = carver.grouped
    paid = choice.cost.training_macs(frozen=grouped.frozen)
    return whole(grouped.layers).training_macs(frozen=False) / paid


def _held(carver: GroupCarver) -> dict[tuple[int, ...], list[str]]:
    found: dict[tuple[int, ...], list[str]] = {}
    for device, groups in carver.held.items():
        found.setdefault(groups, []).append(device)
    return found


def _paid(carver: GroupCarver, groups: tuple[int, ...]) -> dict[str, float]:
    from potluck.planning.groups import cost, whole

    grouped = carver.grouped
    sizes = [len(own) for own in grouped.plan.groups]
    paid = cost(grouped.layers, sizes, grouped.plan.depth, groups).training_macs(frozen=grouped.frozen)
    return {"macs": paid, "times": whole(grouped.layers).training_macs(frozen=False) / paid}
