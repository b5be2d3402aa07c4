"""The planner: the layout of least period, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from potluck.errors import UserError
from potluck.planning.partition import costs, exact, search
from potluck.planning.partition.layout import Devices, Layers, Partition, ShortMemoryError, evaluate

__all__ = ["Order", "partition"]

Order = Literal["given", "search"] | Sequence[int]
Solver = Callable[[costs.Costs], costs.Found | None]


def partition(
    layers: Layers, devices: Devices, *, order: Order = "given", subset: bool = False, pinned: int | None = None
) -> Partition:
    """The layout of least period, exact.

    Args:
        order: the devices as listed, in an order of your own, or in the best one.
        subset: devices may be left out; otherwise each gets at least one layer.
        pinned: the device that must be stage 0, as the one that owns the data must.
    """
    solver = _solver(layers, devices, order, subset, pinned)
    found = solver(costs.seconds(layers, devices))
    if found is None:
        raise _reason(layers, devices, solver)
    return evaluate(*found, layers, devices)


def _solver(layers: Layers, devices: Devices, order: Order, subset: bool, pinned: int | None) -> Solver:
    chain = _chain(order, len(devices))
    if len(chain) > len(layers) and not subset:
        raise UserError(f"{len(chain)} devices for {len(layers)} layers: leave devices out, or allow it by subset=True")
    if pinned is not None and (pinned not in chain or (order != "search" and not subset and chain[0] != pinned)):
        raise UserError(f"pinned: device {pinned} cannot be stage 0 of the order {chain}; put it first")
    if order == "search":
        if len(devices) > search.MOST_DEVICES:
            raise UserError(
                f"order: {len(devices)} devices are too many to search; at most {search.MOST_DEVICES}, or give an order"
            )
        return lambda prices: search.solve(prices, len(devices), subset=subset, pinned=pinned)
    return lambda prices: exact.solve(prices, chain, subset=subset, pinned=pinned)


def _chain(order: Order, devices: int) -> tuple[int, ...]:
    if isinstance(order, str):
        if order not in ("given", "search"):
            raise UserError(f"order: {order!r} is not known; choose given, search, or list the devices")
        return tuple(range(devices))
    if not order or len(set(order)) != len(order) or not set(order) <= set(range(devices)):
        raise UserError(f"order: {tuple(order)} must name different devices from 0 to {devices - 1}")
    return tuple(order)


def _reason(layers: Layers, devices: Devices, solver: Solver) -> UserError:
    """What the layout that lacks least memory lacks; or that there are not enough places to cut at all."""
    found = solver(costs.shortage(layers, devices))
    if found is None:
        return UserError("no layout is possible: too few layers can be cut apart, or too few devices are linked")
    try:
        evaluate(*found, layers, devices)
    except ShortMemoryError as shortage:
        return shortage
    raise AssertionError("a layout that lacks nothing was not found")
