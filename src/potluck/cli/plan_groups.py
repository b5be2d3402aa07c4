"""`potluck plan` for a job with class groups: what each cut of the network costs a device, and who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from potluck.cli.console import open_console, plain_table

if TYPE_CHECKING:
    from potluck.model.carving import Carver
    from potluck.model.decoupled.carving import GroupCarver
    from potluck.planning.groups import Choice

__all__ = ["as_json", "show"]

_COLUMNS = 10  # numbers of groups, at most


def show(carver: Carver | None) -> None:
    """The table of depths and numbers of groups, then the devices; nothing where there are no groups."""
    found = _groups(carver)
    if found is None:
        return
    plan, counts = found.grouped.plan, _counts(found)
    drawn = plain_table("shared layers", *(f"{count} groups" for count in counts))
    for depth, row in enumerate(_rows(found, counts)):
        mark = " (this job)" if depth == plan.depth else ""
        drawn.add_row(f"{depth}{mark}", *("-" if choice is None else f"{_times(found, choice):.3g}x" for choice in row))
    console = open_console()
    typer.echo("\ntimes fewer MACs of a training step for a device with one group, by how the network is cut")
    console.print(drawn)
    for groups, devices in _held(found).items():
        macs = _paid(found, groups)
        console.print(
            f"group {', '.join(map(str, groups))}: {', '.join(devices)}, {macs['times']:.3g} times fewer MACs",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def as_json(carver: Carver | None) -> dict[str, Any]:
    """The same as data, under one key; nothing where there are no groups."""
    found = _groups(carver)
    if found is None:
        return {}
    counts = _counts(found)
    cuts = [
        {"depth": choice.depth, "groups": choice.groups, "times": _times(found, choice), "kept": choice.kept}
        for row in _rows(found, counts)
        for choice in row
        if choice is not None
    ]
    held = [{"groups": groups, "devices": devices, **_paid(found, groups)} for groups, devices in _held(found).items()]
    return {"class_groups": {"cuts": cuts, "held": held}}


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
