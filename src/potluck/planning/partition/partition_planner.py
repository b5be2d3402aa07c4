"""Plans the pipeline partition of minimal period, or explains why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from potluck.errors import UserError
from potluck.planning.partition import device_order_search, fixed_order_partition, stage_costs
from potluck.planning.partition.pipeline_partition import (
    DeviceSpecs,
    LayerSpecs,
    PipelinePartition,
    ShortMemoryError,
    evaluate_partition,
)

__all__ = ["Order", "plan_partition"]

Order = Literal["given", "search"] | Sequence[int]
Solver = Callable[[stage_costs.StageCosts], stage_costs.CutsAndOrder | None]


def plan_partition(
    layers: LayerSpecs, devices: DeviceSpecs, *, order: Order = "given", subset: bool = False, pinned: int | None = None
) -> PipelinePartition:
    """The partition of minimal period, exact.

    Args:
        order: `given` keeps the devices as listed, `search` finds the best order; or list the device indices.
        subset: whether devices may be left out; otherwise each gets at least one layer.
        pinned: the device that must run stage 0, such as the one that owns the data.
    """
    solver = _choose_solver(layers, devices, order, subset, pinned)
    solution = solver(stage_costs.time_costs(layers, devices))
    if solution is None:
        raise _infeasibility_error(layers, devices, solver)
    return evaluate_partition(*solution, layers, devices)


def _choose_solver(layers: LayerSpecs, devices: DeviceSpecs, order: Order, subset: bool, pinned: int | None) -> Solver:
    chain = _device_chain(order, len(devices))
    if len(chain) > len(layers) and not subset:
        raise UserError(f"{len(chain)} devices for {len(layers)} layers: leave devices out, or pass subset=True")
    if pinned is not None and (pinned not in chain or (order != "search" and not subset and chain[0] != pinned)):
        raise UserError(f"pinned: device {pinned} cannot be stage 0 of the order {chain}; put it first")
    if order == "search":
        if len(devices) > device_order_search.MAX_DEVICES:
            raise UserError(
                f"order: {len(devices)} devices are too many to search; at most"
                f" {device_order_search.MAX_DEVICES}, or give an order"
            )
        return lambda costs: device_order_search.solve_any_order(costs, len(devices), subset=subset, pinned=pinned)
    return lambda costs: fixed_order_partition.solve_fixed_order(costs, chain, subset=subset, pinned=pinned)


def _device_chain(order: Order, devices: int) -> tuple[int, ...]:
    if isinstance(order, str):
        if order not in ("given", "search"):
            raise UserError(f"order: unknown value {order!r}; choose given or search, or list the devices")
        return tuple(range(devices))
    if not order or len(set(order)) != len(order) or not set(order) <= set(range(devices)):
        raise UserError(f"order: {tuple(order)} must name different devices from 0 to {devices - 1}")
    return tuple(order)


def _infeasibility_error(layers: LayerSpecs, devices: DeviceSpecs, solver: Solver) -> UserError:
    """The smallest memory shortage of any layout, or that too few cuts or links exist at all."""
    solution = solver(stage_costs.shortage_costs(layers, devices))
    if solution is None:
        return UserError("no layout is possible: too few cuts are allowed, or too few devices are linked")
    try:
        evaluate_partition(*solution, layers, devices)
    except ShortMemoryError as shortage:
        return shortage
    raise AssertionError("a feasible layout exists, but the solver did not return it")
