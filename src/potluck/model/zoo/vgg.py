"""VGG (Simonyan & Zisserman 2014, arXiv:1409.1556) with and without batch norm, for large images and for 32×32.

The large forms with batch norm keep the biases of their convolutions, although the norm takes them out again,
because the published ones have them; `bias=False` leaves them out. The 32×32 forms have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from torch import nn

from potluck.model.zoo.builder_options import Count, Fraction
from potluck.model.zoo.network_blocks import Named, classifier_head, named_sequential, optional_dropout
from potluck.model.zoo.small_networks import require_side
from potluck.model.zoo.weight_init import init_he, init_he_narrow

__all__ = ["build_cifar", "build_imagenet", "build_vgg9"]

Depth = Literal[11, 16, 19]
Groups = tuple[tuple[int, ...], ...]

# The filters between two poolings.
GROUPS: dict[Depth, Groups] = {
    11: ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    16: ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    19: ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}
GROUPS_OF_VGG9: Groups = ((32, 64), (128, 128), (256, 256))


def build_imagenet(
    depth: Depth, bn: bool, /, *, classes: Count, channels: Count, dropout: Fraction = 0.5, bias: bool = True
) -> nn.Module:
    """Large images (at least 32×32); two hidden layers of 4096."""
    return init_he_narrow(
        named_sequential(
            [
                *_conv_layers(channels, GROUPS[depth], bn=bn, bias=bias or not bn),
                ("average", nn.AdaptiveAvgPool2d(7)),
                ("flatten", nn.Flatten()),
                *_hidden_layer(1, 512 * 49, 4096, dropout),
                *_hidden_layer(2, 4096, 4096, dropout),
                ("classifier", nn.Linear(4096, classes)),
            ]
        )
    )


def build_cifar(
    depth: Depth, /, *, classes: Count, channels: Count, dropout: Fraction = 0.0, bias: bool = False
) -> nn.Module:
    """Images of 32×32, with batch norm; one linear layer."""
    convolutions = _conv_layers(channels, GROUPS[depth], bn=True, bias=bias)
    return init_he_narrow(named_sequential([*convolutions, *classifier_head(512, classes, dropout)]))


def build_vgg9(*, classes: Count, channels: Count, side: Count = 32, dropout: Fraction = 0.0) -> nn.Module:
    """Six convolutions and three linear layers without batch norm, as federated learning uses it."""
    require_side("vgg9", side, 8)
    return init_he(
        named_sequential(
            [
                *_conv_layers(channels, GROUPS_OF_VGG9, bn=False, bias=True),
                ("flatten", nn.Flatten()),
                *_hidden_layer(1, 256 * (side // 8) ** 2, 512, dropout),
                *_hidden_layer(2, 512, 512, dropout),
                ("classifier", nn.Linear(512, classes)),
            ]
        )
    )


def _conv_layers(inputs: int, groups: Groups, *, bn: bool, bias: bool) -> Iterator[Named]:
    for group, widths in enumerate(groups, start=1):
        for position, filters in enumerate(widths, start=1):
            suffix = f"{group}_{position}"
            yield f"conv{suffix}", nn.Conv2d(inputs, filters, 3, padding=1, bias=bias)
            if bn:
                yield f"bn{suffix}", nn.BatchNorm2d(filters)
            yield f"relu{suffix}", nn.ReLU()
            inputs = filters
        yield f"pool{group}", nn.MaxPool2d(2)


def _hidden_layer(index: int, inputs: int, width: int, dropout: float) -> list[Named]:
    layers = [("linear", nn.Linear(inputs, width)), ("relu", nn.ReLU()), *optional_dropout(dropout)]
    return [(f"hidden{index}_{name}", layer) for name, layer in layers]
