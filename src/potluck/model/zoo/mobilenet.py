"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381), for large pictures and with smaller strides for 32×32.

It is a row of twenty: the first convolution, seventeen inverted residual blocks, the last convolution, the
classifier. The activation is ReLU6; the last convolution of a block has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec
from torch import nn

from potluck.model.zoo.blocks import Named, Residual, classifier, conv_bn, row
from potluck.model.zoo.options import Count, Share
from potluck.model.zoo.weights import he_and_narrow

__all__ = ["cifar", "imagenet"]

Width = Annotated[float, msgspec.Meta(gt=0, le=4)]


class Stage(NamedTuple):
    expansion: int
    filters: int
    blocks: int
    stride: int


STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)
# 32×32 is halved three times instead of five: neither in the stem nor in the second stage.
STAGES_OF_CIFAR = (STAGES[0], STAGES[1]._replace(stride=1), *STAGES[2:])


def imagenet(*, classes: Count, channels: Count, width: Width = 1.0, dropout: Share = 0.2) -> nn.Module:
    """Large pictures; `width` scales all filters."""
    return _mobilenet(STAGES, 2, classes=classes, channels=channels, width=width, dropout=dropout)


def cifar(*, classes: Count, channels: Count, width: Width = 1.0, dropout: Share = 0.2) -> nn.Module:
    """Pictures of 32×32; `width` scales all filters."""
    return _mobilenet(STAGES_OF_CIFAR, 1, classes=classes, channels=channels, width=width, dropout=dropout)


def _mobilenet(
    stages: tuple[Stage, ...], stride: int, *, classes: int, channels: int, width: float, dropout: float
) -> nn.Module:
    first, before_last, last = _eights(32 * width), _eights(320 * width), _eights(1280 * max(1.0, width))
    return he_and_narrow(
        row(
            [
                ("first", conv_bn(channels, first, 3, stride=stride, activation=nn.ReLU6)),
                *_blocks(first, stages, width),
                ("last", conv_bn(before_last, last, 1, activation=nn.ReLU6)),
                *classifier(last, classes, dropout),
            ]
        )
    )


def _blocks(inputs: int, stages: tuple[Stage, ...], width: float) -> Iterator[Named]:
    for index, stage in enumerate(stages, start=1):
        for position in range(1, stage.blocks + 1):
            filters = _eights(stage.filters * width)
            stride = stage.stride if position == 1 else 1
            yield f"block{index}_{position}", _inverted(inputs, filters, stage.expansion, stride)
            inputs = filters


def _inverted(inputs: int, filters: int, expansion: int, stride: int) -> nn.Module:
    inner = inputs * expansion
    layers: list[Named] = [("expand", conv_bn(inputs, inner, 1, activation=nn.ReLU6))] if expansion > 1 else []
    layers += [
        ("depthwise", conv_bn(inner, inner, 3, stride=stride, groups=inner, activation=nn.ReLU6)),
        ("project", conv_bn(inner, filters, 1, activation=None)),
    ]
    return Residual(row(layers)) if stride == 1 and inputs == filters else row(layers)


def _eights(filters: float) -> int:
    """The nearest multiple of eight, at least eight, that takes away no more than a tenth."""
    rounded = max(8, int(filters + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * filters else rounded
