"""Where the layers of a new layout come from: which version can be put together, and who gives what to whom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from potluck.loops.node import COORDINATOR

__all__ = ["HeldLayers", "LayerOrigin", "newest_complete_version", "plan_layer_sources"]


class HeldLayers(msgspec.Struct, frozen=True):
    """A device has these layers in this version, made in this term."""

    device: str
    first: int
    last: int
    version: int
    made: int

    def covers_layer(self, layer: int) -> bool:
        return self.first <= layer <= self.last


class LayerOrigin(msgspec.Struct, frozen=True):
    """Take these layers in this version from this device."""

    device: str
    first: int
    last: int
    version: int


def newest_complete_version(held: Sequence[HeldLayers], layers: int) -> int | None:
    """The newest version of which someone has each layer."""
    for version in sorted({each.version for each in held}, reverse=True):
        having = [each for each in held if each.version == version]
        if all(any(each.covers_layer(layer) for each in having) for layer in range(layers)):
            return version
    return None


def plan_layer_sources(
    held: Sequence[HeldLayers], receiver: str, layers: range, version: int | None
) -> list[LayerOrigin]:
    """From whom a device takes its layers, neighbours from one giver together.

    Its own copy comes first, the coordinator's last, whose link all share. With no version, each layer is taken in the
    newest there is.
    """
    chosen = [_best_holder(held, receiver, layer, version) for layer in layers]
    found = []
    for giver, run in groupby(zip(layers, chosen, strict=True), key=lambda pair: pair[1]):
        numbers = [layer for layer, _ in run]
        found.append(LayerOrigin(giver.device, numbers[0], numbers[-1], giver.version))
    return found


def _best_holder(held: Sequence[HeldLayers], receiver: str, layer: int, version: int | None) -> HeldLayers:
    options = [each for each in held if each.covers_layer(layer) and version in (None, each.version)]
    assert options, f"nobody has layer {layer}"
    return min(
        options,
        key=lambda each: (-each.version, each.device != receiver, each.device == COORDINATOR, each.device, each.first),
    )
