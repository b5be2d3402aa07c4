"""The cost of a trunk and some of the class groups, exactly as the network is built.

    shared + first decoupled / m + rest / m²        for one of m groups, up to widths that do not divide evenly

A layer's cost is proportional to its pairs of input and output channels, so a narrower one needs only its two widths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from potluck.errors import ModelError
from potluck.planning.groups.even_assignment import even_sizes

__all__ = ["ChannelLayer", "GroupCost", "full_model_cost", "group_cost", "group_widths", "max_trunk_depth", "trunk_end"]

OTHER = 1  # each group has one logit for all classes of other groups


@dataclass(frozen=True)
class ChannelLayer:
    """A layer with weights: `macs` and `weights` per pair of channels, `extras` (such as a bias) per output channel.

    A depthwise layer has as many outputs as inputs, and one pair for each.
    """

    name: str
    inputs: int
    outputs: int
    macs: int
    weights: int
    extras: int = 0
    depthwise: bool = False

    def channel_pairs(self, inputs: int, outputs: int) -> int:
        return outputs if self.depthwise else inputs * outputs


@dataclass(frozen=True)
class GroupCost:
    """MACs of one sample's forward pass, and weights to hold; `*_entry` are the MACs of the first layer."""

    trunk_macs: int
    group_macs: int
    trunk_entry: int
    group_entry: int
    trunk_weights: int
    group_weights: int

    @property
    def macs(self) -> int:
        return self.trunk_macs + self.group_macs

    @property
    def weights(self) -> int:
        return self.trunk_weights + self.group_weights

    def training_macs(self, *, frozen: bool) -> int:
        """MACs of one sample's training step: three times the forward pass, less the gradients that are not needed.

        The first trained layer needs no gradient of its input, and a frozen trunk only runs forward.
        """
        if frozen:
            return self.trunk_macs + 3 * self.group_macs - self.group_entry
        entry = self.trunk_entry if self.trunk_macs else self.group_entry
        return 3 * self.macs - entry


def full_model_cost(layers: Sequence[ChannelLayer]) -> GroupCost:
    """The cost of the whole network, as a trunk without groups."""
    trunk, weights = _sum_costs((layer, layer.inputs, layer.outputs) for layer in layers)
    return GroupCost(
        trunk, 0, layers[0].macs * layers[0].channel_pairs(layers[0].inputs, layers[0].outputs), 0, weights, 0
    )


def group_cost(
    layers: Sequence[ChannelLayer], sizes: Sequence[int], depth: int, chosen: Collection[int] = (0,)
) -> GroupCost:
    """The cost of a trunk of `depth` layers and the chosen groups; `sizes` is the number of classes of each group."""
    end = trunk_end(layers, depth)
    shared = full_model_cost(layers[:end]) if end else GroupCost(0, 0, 0, 0, 0, 0)
    macs, entry, weights = 0, 0, 0
    for group in chosen:
        narrow = list(_narrowed_layers(layers[end:], sizes, group))
        more_macs, more_weights = _sum_costs(narrow)
        first, inputs, outputs = narrow[0]
        macs, weights = macs + more_macs, weights + more_weights
        entry += first.macs * first.channel_pairs(inputs, outputs)
    return GroupCost(shared.trunk_macs, macs, shared.trunk_entry, entry, shared.trunk_weights, weights)


def group_widths(layer: ChannelLayer, groups: int) -> tuple[int, ...]:
    """The width of each group in a layer; ModelError if there are fewer channels than groups."""
    if layer.outputs < groups:
        raise ModelError(f"layer {layer.name!r} has {layer.outputs} channels, too few for {groups} groups; use fewer")
    return even_sizes(layer.outputs, groups)


def max_trunk_depth(layers: Sequence[ChannelLayer]) -> int:
    """The largest depth, at which all but the last layer is shared."""
    return sum(not layer.depthwise for layer in layers) - 1


def trunk_end(layers: Sequence[ChannelLayer], depth: int) -> int:
    """Number of layers in a trunk of `depth`: up to the next layer that mixes channels, including depthwise ones."""
    mixing = [index for index, layer in enumerate(layers) if not layer.depthwise]
    if not 0 <= depth < len(mixing):
        raise ModelError(f"depth {depth} leaves no layer for the groups; choose from 0 to {len(mixing) - 1}")
    return mixing[depth]


def _narrowed_layers(
    layers: Sequence[ChannelLayer], sizes: Sequence[int], group: int
) -> Iterable[tuple[ChannelLayer, int, int]]:
    """The layers of one group with their input and output widths."""
    width = layers[0].inputs
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        outputs = sizes[group] + OTHER if last else group_widths(layer, len(sizes))[group]
        yield layer, width, width if layer.depthwise else outputs
        width = width if layer.depthwise else outputs


def _sum_costs(layers: Iterable[tuple[ChannelLayer, int, int]]) -> tuple[int, int]:
    macs = weights = 0
    for layer, inputs, outputs in layers:
        macs += layer.macs * layer.channel_pairs(inputs, outputs)
        weights += layer.weights * layer.channel_pairs(inputs, outputs) + layer.extras * outputs
    return macs, weights
