"""Where the layers of a new layout come from: which version is complete, and which device sends which layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from potluck.loops.message_limits import DeviceName, Number
from potluck.loops.node import COORDINATOR

__all__ = ["HeldLayers", "LayerOrigin", "newest_complete_version", "plan_layer_sources"]


class HeldLayers(msgspec.Struct, frozen=True):
    """Layers that a device holds: which version, and the term that made it."""

    device: DeviceName
    first: Number
    last: Number
    version: Number
    made: Number

    def covers_layer(self, layer: int) -> bool:
        return self.first <= layer <= self.last


class LayerOrigin(msgspec.Struct, frozen=True):
    """The device from which to take these layers in this version."""

    device: DeviceName
    first: Number
    last: Number
    version: Number


def newest_complete_version(held: Sequence[HeldLayers], layers: int) -> int | None:
    """The newest version of which each layer is held somewhere."""
    for version in sorted({each.version for each in held}, reverse=True):
        holders = [each for each in held if each.version == version]
        if all(any(each.covers_layer(layer) for each in holders) for layer in range(layers)):
            return version
    return None


def plan_layer_sources(
    held: Sequence[HeldLayers], receiver: str, layers: range, version: int | None
) -> list[LayerOrigin]:
    """The origins of a device's layers; adjacent layers of one holder are taken together.

    A device prefers its own copy and takes the coordinator's last, since all use its link. Without a version, each
    layer is taken in the newest one that exists.
    """
    chosen = [_best_holder(held, receiver, layer, version) for layer in layers]
    origins = []
    for holder, pairs in groupby(zip(layers, chosen, strict=True), key=lambda pair: pair[1]):
        adjacent = [layer for layer, _ in pairs]
        origins.append(LayerOrigin(holder.device, adjacent[0], adjacent[-1], holder.version))
    return origins


def _best_holder(held: Sequence[HeldLayers], receiver: str, layer: int, version: int | None) -> HeldLayers:
    options = [each for each in held if each.covers_layer(layer) and version in (None, each.version)]
    assert options, f"no device holds layer {layer}"
    return min(
        options,
        key=lambda each: (-each.version, each.device != receiver, each.device == COORDINATOR, each.device, each.first),
    )
