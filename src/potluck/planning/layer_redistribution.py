"""Where each layer of a new layout comes from when devices have died, joined or been given other layers.

    old layout   device 3 │ device 5 │ device 7        stage p's weights are also kept by stage p + 1,
    replicas         ╰──────▶   ╰──────▶  ╰──▶ 3       the last one's by the first, the centre
    global copy  device 3 holds one of everything

Devices are named by identity, never by their place in a layout, since places shift when one is removed: what a device
holds is looked up in the old layout, what it needs in the new one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

__all__ = ["LayerRedistribution", "LayerSource", "StageLayout", "chain_replicas", "plan_redistribution"]

Copy = Literal["own", "own replica", "owner", "replica", "global"]


@dataclass(frozen=True)
class StageLayout:
    """Which device has which layers: a cut c lies between layers c−1 and c."""

    cuts: tuple[int, ...]
    order: tuple[int, ...]
    layers: int

    def __post_init__(self) -> None:
        assert len(self.order) == len(self.cuts) + 1 == len(set(self.order))
        assert all(begin < end for begin, end in pairwise((0, *self.cuts, self.layers)))

    @property
    def first_device(self) -> int:
        return self.order[0]

    @property
    def stages(self) -> tuple[range, ...]:
        return tuple(range(*ends) for ends in pairwise((0, *self.cuts, self.layers)))

    def owner_of(self, layer: int) -> int:
        return self.order[bisect_right(self.cuts, layer)]


@dataclass(frozen=True)
class LayerSource:
    """The device to take a layer from, and which of its copies."""

    device: int
    copy: Copy


@dataclass(frozen=True)
class LayerRedistribution:
    """For each new stage the source of each of its layers; layers that nobody has are in `lost` instead."""

    stages: tuple[Mapping[int, LayerSource], ...]
    lost: tuple[int, ...]
    layout: StageLayout

    def layer_transfers(self) -> Iterator[tuple[int, int, int]]:
        """What must travel: layer, from which device, to which."""
        for receiver, stage in zip(self.layout.order, self.stages, strict=True):
            for layer, source in stage.items():
                if source.device != receiver:
                    yield layer, source.device, receiver


def chain_replicas(old: StageLayout) -> dict[int, int]:
    """Who keeps the replica of each device's layers: the next stage, for the last one the centre."""
    if len(old.order) == 1:
        return {}
    return dict(zip(old.order, (*old.order[1:], old.first_device), strict=True))


def plan_redistribution(
    old: StageLayout,
    dead: Collection[int],
    new: StageLayout,
    *,
    replicas: Mapping[int, int] | None = None,
    global_copy: bool = False,
    prefer: Literal["local", "fresh"] = "local",
) -> LayerRedistribution:
    """Find each layer's source.

    Args:
        dead: devices of the old layout whose memory is gone; one that came back empty may be in the new layout as well.
        replicas: device → who keeps its replica; by default the whole chain's. Leave out those never sent.
        global_copy: whether the old centre holds a copy of everything.
        prefer: `local` takes a device's own replica before asking the live owner, as published; `fresh` asks the owner,
            whose weights are the newest, first.
    """
    assert old.layers == new.layers
    keepers = chain_replicas(old) if replicas is None else replicas
    stages = []
    for receiver, layers in zip(new.order, new.stages, strict=True):
        options = {
            layer: _source_options(old, old.owner_of(layer), receiver, keepers, global_copy, prefer) for layer in layers
        }
        stages.append({layer: source for layer in layers if (source := _first_live_source(options[layer], dead))})
    found = {layer for stage in stages for layer in stage}
    return LayerRedistribution(tuple(stages), tuple(layer for layer in range(new.layers) if layer not in found), new)


def _source_options(
    old: StageLayout, owner: int, receiver: int, keepers: Mapping[int, int], global_copy: bool, prefer: str
) -> list[LayerSource]:
    """Every copy of the owner's layers, in the order in which the receiver should try them."""
    keeper = keepers.get(owner)
    options = [LayerSource(receiver, "own")] if owner == receiver else []
    nearby = [LayerSource(receiver, "own replica")] if keeper == receiver else []
    owners = [LayerSource(owner, "owner")]
    options += nearby + owners if prefer == "local" else owners + nearby
    if keeper is not None:
        options.append(LayerSource(keeper, "replica"))
    if global_copy:
        options.append(LayerSource(old.first_device, "global"))
    return options


def _first_live_source(options: Sequence[LayerSource], dead: Collection[int]) -> LayerSource | None:
    return next((source for source in options if source.device not in dead), None)
