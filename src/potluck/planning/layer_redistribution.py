"""Plans which device each layer of a new pipeline layout is copied from after devices died, joined or changed stages.

    old layout   device 3 │ device 5 │ device 7        stage p + 1 keeps a replica of stage p's weights,
    replicas         ╰──────▶   ╰──────▶  ╰──▶ 3       stage 0 one of the last stage's
    global copy  device 3 holds a copy of all layers

Devices are identified by number, never by their stage, because stages shift when a device is removed. What a device
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
    """Which device holds which layers. A cut c lies between layers c−1 and c."""

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
    """The device that provides a layer, and which of its copies it sends."""

    device: int
    copy: Copy


@dataclass(frozen=True)
class LayerRedistribution:
    """The source of every layer, per stage of the new layout; layers of which no copy is left are in `lost`."""

    stages: tuple[Mapping[int, LayerSource], ...]
    lost: tuple[int, ...]
    layout: StageLayout

    def layer_transfers(self) -> Iterator[tuple[int, int, int]]:
        """The transfers to make, as (layer, sender, receiver)."""
        for receiver, stage in zip(self.layout.order, self.stages, strict=True):
            for layer, source in stage.items():
                if source.device != receiver:
                    yield layer, source.device, receiver


def chain_replicas(old: StageLayout) -> dict[int, int]:
    """Maps each device to the one that keeps its replica: the next stage's device, or stage 0's for the last stage."""
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
    """Choose the source of every layer of the new layout.

    Args:
        dead: devices of the old layout whose memory is lost; one that has restarted may be in the new layout too.
        replicas: maps a device to the one that holds its replica, if that was sent; by default `chain_replicas(old)`.
        global_copy: whether stage 0 of the old layout holds a copy of all layers.
        prefer: `local` uses a replica on the receiver before asking the live owner, as published; `fresh` asks the
            owner first, whose weights are the newest.
    """
    assert old.layers == new.layers
    replica_holders = chain_replicas(old) if replicas is None else replicas
    stages = []
    for receiver, layers in zip(new.order, new.stages, strict=True):
        options = {
            layer: _source_options(old, old.owner_of(layer), receiver, replica_holders, global_copy, prefer)
            for layer in layers
        }
        stages.append({layer: source for layer in layers if (source := _first_live_source(options[layer], dead))})
    available = {layer for stage in stages for layer in stage}
    return LayerRedistribution(
        tuple(stages), tuple(layer for layer in range(new.layers) if layer not in available), new
    )


def _source_options(
    old: StageLayout, owner: int, receiver: int, replica_holders: Mapping[int, int], global_copy: bool, prefer: str
) -> list[LayerSource]:
    """All copies of the owner's layers, in the order in which the receiver tries them."""
    replica_holder = replica_holders.get(owner)
    options = [LayerSource(receiver, "own")] if owner == receiver else []
    nearby = [LayerSource(receiver, "own replica")] if replica_holder == receiver else []
    owners = [LayerSource(owner, "owner")]
    options += nearby + owners if prefer == "local" else owners + nearby
    if replica_holder is not None:
        options.append(LayerSource(replica_holder, "replica"))
    if global_copy:
        options.append(LayerSource(old.first_device, "global"))
    return options


def _first_live_source(options: Sequence[LayerSource], dead: Collection[int]) -> LayerSource | None:
    return next((source for source in options if source.device not in dead), None)
