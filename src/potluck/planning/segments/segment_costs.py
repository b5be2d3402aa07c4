"""Validates the per-layer seconds that plans are made from, once, where they enter this package."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from potluck.errors import UserError

__all__ = ["Direction", "check_direction", "check_layer_seconds", "check_seconds", "layer_seconds"]

Direction = Literal["pull", "push"]


def check_layer_seconds(compute: Iterable[float], transfer: Iterable[float]) -> tuple[list[float], list[float]]:
    """Both sequences as lists of floats; UserError unless they have equal lengths and finite, non-negative values."""
    computing, moving = layer_seconds("compute", compute), layer_seconds("transfer", transfer)
    if len(computing) != len(moving):
        raise UserError(
            f"compute has {len(computing)} layers and transfer has {len(moving)}; give one value per layer in both"
        )
    return computing, moving


def layer_seconds(name: str, values: Iterable[float]) -> list[float]:
    """Seconds per layer as floats. A finite sum implies finite values, which saves checking each one."""
    try:
        seconds = list(map(float, values))
    except (TypeError, ValueError):
        raise UserError(f"{name} is not a list of numbers; give the seconds of each layer") from None
    if seconds and not (math.isfinite(sum(seconds)) and min(seconds) >= 0.0):
        index = next((i for i, value in enumerate(seconds) if not 0.0 <= value < math.inf), None)
        where, value = (name, sum(seconds)) if index is None else (f"{name}[{index}]", seconds[index])
        raise UserError(f"{where} is {value!r}; give finite, non-negative seconds")
    return seconds


def check_seconds(**named: float) -> None:
    """Raise UserError if a duration is negative or not finite."""
    for name, value in named.items():
        if not 0.0 <= value < math.inf:
            raise UserError(f"{name} is {value!r}; give finite, non-negative seconds")


def check_direction(direction: str) -> None:
    if direction not in ("pull", "push"):
        raise UserError(f"unknown direction {direction!r}; choose pull or push")
