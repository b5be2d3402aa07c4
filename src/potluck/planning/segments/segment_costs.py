"""What a plan is made from: seconds per layer, checked once at the border of this package."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from potluck.errors import UserError

__all__ = ["Direction", "check_cuts", "check_direction", "check_layer_seconds", "check_seconds", "layer_seconds"]

Direction = Literal["pull", "push"]


def check_layer_seconds(compute: Iterable[float], transfer: Iterable[float]) -> tuple[list[float], list[float]]:
    """Both sequences as plain floats; refused unless they are as long as each other, finite and not negative."""
    computing, moving = layer_seconds("compute", compute), layer_seconds("transfer", transfer)
    if len(computing) != len(moving):
        raise UserError(
            f"compute has {len(computing)} layers and transfer has {len(moving)}; give one number per layer in both"
        )
    return computing, moving


def layer_seconds(name: str, values: Iterable[float]) -> list[float]:
    """Seconds per layer. The sum is finite only if every number is, which saves looking at each."""
    try:
        seconds = list(map(float, values))
    except (TypeError, ValueError):
        raise UserError(f"{name} is not a list of numbers; give the seconds of each layer") from None
    if seconds and not (math.isfinite(sum(seconds)) and min(seconds) >= 0.0):
        index = next((i for i, value in enumerate(seconds) if not 0.0 <= value < math.inf), None)
        place, value = (name, sum(seconds)) if index is None else (f"{name}[{index}]", seconds[index])
        raise UserError(f"{place} is {value!r}; give finite seconds that are not negative")
    return seconds


def check_seconds(**named: float) -> None:
    """Refuse a single duration that is negative or not finite."""
    for name, value in named.items():
        if not 0.0 <= value < math.inf:
            raise UserError(f"{name} is {value!r}; give finite seconds that are not negative")


def check_direction(direction: str) -> None:
    if direction not in ("pull", "push"):
        raise UserError(f"direction {direction!r} is not known; choose pull or push")


def check_cuts(cuts: Sequence[int], layers: int) -> None:
    """Cuts rise strictly and leave at least one layer on either side."""
    previous = -1
    for cut in cuts:
        if not previous < cut < layers - 1:
            raise UserError(
                f"cuts {tuple(cuts)!r} do not fit {layers} layers; give rising indices from 0 to {layers - 2}"
            )
        previous = cut
