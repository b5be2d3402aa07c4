"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381), for large images and with smaller strides for 32×32.

It has twenty layers: the first convolution, seventeen inverted residual blocks, the last convolution, the
classifier. The activation is ReLU6; the last convolution of a block has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec
from torch import nn

from potluck.model.zoo.builder_options import Count, Fraction
from potluck.model.zoo.network_blocks import Named, Residual, classifier_head, conv_bn, named_sequential
from potluck.model.zoo.weight_init import init_he_narrow

__all__ = ["build_cifar", "build_imagenet"]

Width = Annotated[float, msgspec.Meta(gt=0, le=4)]


class MobileNetStage(NamedTuple):
    expansion: int
    filters: int
    blocks: int
    stride: int


STAGES = (
    MobileNetStage(1, 16, 1, 1),
    MobileNetStage(6, 24, 2, 2),
    MobileNetStage(6, 32, 3, 2),
    MobileNetStage(6, 64, 4, 2),
    MobileNetStage(6, 96, 3, 1),
    MobileNetStage(6, 160, 3, 2),
    MobileNetStage(6, 320, 1, 1),
)
# 32×32 is halved three times instead of five: neither in the stem nor in the second stage.
STAGES_OF_CIFAR = (STAGES[0], STAGES[1]._replace(stride=1), *STAGES[2:])


def build_imagenet(*, classes: Count, channels: Count, width: Width = 1.0, dropout: Fraction = 0.2) -> nn.Module:
    """Large images; `width` scales all filters."""
    return _build_mobilenet(STAGES, 2, classes=classes, channels=channels, width=width, dropout=dropout)


def build_cifar(*, classes: Count, channels: Count, width: Width = 1.0, dropout: Fraction = 0.2) -> nn.Module:
    """Images of 32×32; `width` scales all filters."""
    return _build_mobilenet(STAGES_OF_CIFAR, 1, classes=classes, channels=channels, width=width, dropout=dropout)


def _build_mobilenet(
    stages: tuple[MobileNetStage, ...], stride: int, *, classes: int, channels: int, width: float, dropout: float
) -> nn.Module:
    first, before_last, last = (
        _round_to_eight(32 * width),
        _round_to_eight(320 * width),
        _round_to_eight(1280 * max(1.0, width)),
    )
    return init_he_narrow(
        named_sequential(
            [
                ("first", conv_bn(channels, first, 3, stride=stride, activation=nn.ReLU6)),
                *_inverted_blocks(first, stages, width),
                ("last", conv_bn(before_last, last, 1, activation=nn.ReLU6)),
                *classifier_head(last, classes, dropout),
            ]
        )
    )


def _inverted_blocks(inputs: int, stages: tuple[MobileNetStage, ...], width: float) -> Iterator[Named]:
    for index, stage in enumerate(stages, start=1):
        for position in range(1, stage.blocks + 1):
            filters = _round_to_eight(stage.filters * width)
            stride = stage.stride if position == 1 else 1
            yield f"block{index}_{position}", _inverted_residual(inputs, filters, stage.expansion, stride)
            inputs = filters


def _inverted_residual(inputs: int, filters: int, expansion: int, stride: int) -> nn.Module:
    inner = inputs * expansion
    layers: list[Named] = [("expand", conv_bn(inputs, inner, 1, activation=nn.ReLU6))] if expansion > 1 else []
    layers += [
        ("depthwise", conv_bn(inner, inner, 3, stride=stride, groups=inner, activation=nn.ReLU6)),
        ("project", conv_bn(inner, filters, 1, activation=None)),
    ]
    return Residual(named_sequential(layers)) if stride == 1 and inputs == filters else named_sequential(layers)


def _round_to_eight(filters: float) -> int:
    """The nearest multiple of eight, at least eight and no more than a tenth below."""
    rounded = max(8, int(filters + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * filters else rounded
