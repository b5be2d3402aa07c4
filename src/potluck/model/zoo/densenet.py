"""DenseNet (Huang et al. 2016, arXiv:1608.06993): DenseNet-40 for CIFAR and DenseNet-121 for large images.

Every layer sees all that came before it in its block, so its input is a concatenation that grows by k filters;
norm and activation come before the convolution.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from potluck.model.zoo.builder_options import Count, Fraction
from potluck.model.zoo.network_blocks import DenseConcat, Named, classifier_head, named_sequential, optional_dropout
from potluck.model.zoo.weight_init import init_he

__all__ = ["build_densenet40", "build_densenet121"]


def build_densenet40(*, classes: Count, channels: Count, growth: Count = 12, dropout: Fraction = 0.0) -> nn.Module:
    """Three blocks of twelve 3×3 layers, without bottleneck and compression."""
    stem: list[Named] = [("conv1", nn.Conv2d(channels, 16, 3, padding=1, bias=False))]
    body, width = _dense_blocks(16, (12, 12, 12), growth, compression=1, bottleneck=False, dropout=dropout)
    return init_he(named_sequential([*stem, *body, *_norm_relu("last", width), *classifier_head(width, classes)]))


def build_densenet121(*, classes: Count, channels: Count, growth: Count = 32, dropout: Fraction = 0.0) -> nn.Module:
    """Four blocks of bottleneck layers, halved in width between them."""
    stem: list[Named] = [
        ("conv1", nn.Conv2d(channels, 2 * growth, 7, stride=2, padding=3, bias=False)),
        ("bn1", nn.BatchNorm2d(2 * growth)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(3, stride=2, padding=1)),
    ]
    body, width = _dense_blocks(2 * growth, (6, 12, 24, 16), growth, compression=2, bottleneck=True, dropout=dropout)
    return init_he(named_sequential([*stem, *body, *_norm_relu("last", width), *classifier_head(width, classes)]))


def _dense_blocks(
    width: int, blocks: tuple[int, ...], growth: int, *, compression: int, bottleneck: bool, dropout: float
) -> tuple[list[Named], int]:
    """The layers of all blocks with a transition between two of them, and the width at the end."""
    body: list[Named] = []
    for block, layers in enumerate(blocks, start=1):
        if block > 1:
            body.append((f"transition{block - 1}", _transition_layer(width, width // compression)))
            width //= compression
        for layer in range(1, layers + 1):
            body.append((f"layer{block}_{layer}", DenseConcat(_dense_layer(width, growth, bottleneck, dropout))))
            width += growth
    return body, width


def _dense_layer(width: int, growth: int, bottleneck: bool, dropout: float) -> nn.Module:
    layers: list[Named] = []
    if bottleneck:
        layers = [*_norm_relu("reduce", width), ("reduce", nn.Conv2d(width, 4 * growth, 1, bias=False))]
        width = 4 * growth
    layers += [*_norm_relu("conv", width), ("conv", nn.Conv2d(width, growth, 3, padding=1, bias=False))]
    return named_sequential([*layers, *optional_dropout(dropout)])


def _transition_layer(inputs: int, filters: int) -> nn.Module:
    conv = nn.Conv2d(inputs, filters, 1, bias=False)
    return named_sequential([*_norm_relu("conv", inputs), ("conv", conv), ("average", nn.AvgPool2d(2))])


def _norm_relu(before: str, width: int) -> Iterator[Named]:
    yield f"{before}_bn", nn.BatchNorm2d(width)
    yield f"{before}_relu", nn.ReLU()
