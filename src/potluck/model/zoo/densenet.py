"""DenseNet (Huang et al. 2016, arXiv:1608.06993): DenseNet-40 for CIFAR and DenseNet-121 for large pictures.

Every layer sees all that came before it in its block, so its input is a concatenation that grows by k filters;
norm and activation come before the convolution.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from potluck.model.zoo.blocks import Grow, Named, classifier, dropout_if, row
from potluck.model.zoo.options import Count, Share
from potluck.model.zoo.weights import he

__all__ = ["densenet40", "densenet121"]


def densenet40(*, classes: Count, channels: Count, growth: Count = 12, dropout: Share = 0.0) -> nn.Module:
    """Three blocks of twelve 3×3 layers, without bottleneck and compression."""
    stem: list[Named] = [("conv1", nn.Conv2d(channels, 16, 3, padding=1, bias=False))]
    body, width = _blocks(16, (12, 12, 12), growth, compression=1, bottleneck=False, dropout=dropout)
    return he(row([*stem, *body, *_norm("last", width), *classifier(width, classes)]))


def densenet121(*, classes: Count, channels: Count, growth: Count = 32, dropout: Share = 0.0) -> nn.Module:
    """Four blocks of bottleneck layers, halved in width between them."""
    stem: list[Named] = [
        ("conv1", nn.Conv2d(channels, 2 * growth, 7, stride=2, padding=3, bias=False)),
        ("bn1", nn.BatchNorm2d(2 * growth)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(3, stride=2, padding=1)),
    ]
    body, width = _blocks(2 * growth, (6, 12, 24, 16), growth, compression=2, bottleneck=True, dropout=dropout)
    return he(row([*stem, *body, *_norm("last", width), *classifier(width, classes)]))


def _blocks(
    width: int, blocks: tuple[int, ...], growth: int, *, compression: int, bottleneck: bool, dropout: float
) -> tuple[list[Named], int]:
    """The layers of all blocks with a transition between two of them, and the width at the end."""
    body: list[Named] = []
    for block, layers in enumerate(blocks, start=1):
        if block > 1:
            body.append((f"transition{block - 1}", _transition(width, width // compression)))
            width //= compression
        for layer in range(1, layers + 1):
            body.append((f"layer{block}_{layer}", Grow(_layer(width, growth, bottleneck, dropout))))
            width += growth
    return body, width


def _layer(width: int, growth: int, bottleneck: bool, dropout: float) -> nn.Module:
    layers: list[Named] = []
    if bottleneck:
        layers = [*_norm("reduce", width), ("reduce", nn.Conv2d(width, 4 * growth, 1, bias=False))]
        width = 4 * growth
    layers += [*_norm("conv", width), ("conv", nn.Conv2d(width, growth, 3, padding=1, bias=False))]
    return row([*layers, *dropout_if(dropout)])


def _transition(inputs: int, filters: int) -> nn.Module:
    conv = nn.Conv2d(inputs, filters, 1, bias=False)
    return row([*_norm("conv", inputs), ("conv", conv), ("average", nn.AvgPool2d(2))])


def _norm(before: str, width: int) -> Iterator[Named]:
    yield f"{before}_bn", nn.BatchNorm2d(width)
    yield f"{before}_relu", nn.ReLU()
