"""ResNet (He et al. 2015, arXiv:1512.03385): the wide ones of four stages, and the thin ones of three for CIFAR.

Where a block changes the width its shortcut is a 1×1 convolution with batch norm (the paper's option B)
everywhere. For the thin ones the paper also describes option A, which pads with zeros and has no weights
(269,722 in all for ResNet-20): a sum over padded channels cannot be cut filter by filter, so it is not here.
The bottleneck strides in its 3×3 convolution, as is usual today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from torch import nn

from potluck.model.zoo.builder_options import Count
from potluck.model.zoo.network_blocks import Named, Residual, classifier_head, conv_bn, named_sequential
from potluck.model.zoo.weight_init import init_he

__all__ = ["build_cifar", "build_imagenet", "build_thin"]

Depth = Literal[18, 50, 152]
Block = Callable[[int, int, int], Residual]


def build_imagenet(depth: Depth, /, *, classes: Count, channels: Count) -> nn.Module:
    """Large images: a 7×7 convolution and a pooling bring them to a quarter first."""
    stem: list[Named] = [
        ("conv1", nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)),
        ("bn1", nn.BatchNorm2d(64)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(3, stride=2, padding=1)),
    ]
    return _build_wide(depth, stem, classes)


def build_cifar(depth: Depth, /, *, classes: Count, channels: Count) -> nn.Module:
    """Small images: the same four stages behind one 3×3 convolution."""
    return _build_wide(depth, _small_stem(channels, 64), classes)


def build_thin(depth: int, /, *, classes: Count, channels: Count) -> nn.Module:
    """Small images: 16, 32 and 64 filters, depth 6n + 2."""
    assert depth % 6 == 2, depth
    stages = _stage_blocks(_basic_block, 16, ((16, depth // 6), (32, depth // 6), (64, depth // 6)))
    return init_he(named_sequential([*_small_stem(channels, 16), *stages, *classifier_head(64, classes)]))


def _build_wide(depth: Depth, stem: list[Named], classes: int) -> nn.Module:
    block, blocks = BLOCKS[depth]
    expansion = 1 if block is _basic_block else 4
    widths = (64 * expansion, 128 * expansion, 256 * expansion, 512 * expansion)
    stages = _stage_blocks(block, 64, tuple(zip(widths, blocks, strict=True)))
    return init_he(named_sequential([*stem, *stages, *classifier_head(widths[-1], classes)]))


def _small_stem(channels: int, filters: int) -> list[Named]:
    return [
        ("conv1", nn.Conv2d(channels, filters, 3, padding=1, bias=False)),
        ("bn1", nn.BatchNorm2d(filters)),
        ("relu1", nn.ReLU()),
    ]


def _stage_blocks(block: Block, inputs: int, stages: tuple[tuple[int, int], ...]) -> Iterator[Named]:
    for stage, (width, count) in enumerate(stages, start=1):
        for position in range(1, count + 1):
            stride = 2 if stage > 1 and position == 1 else 1
            yield f"block{stage}_{position}", block(inputs, width, stride)
            inputs = width


def _basic_block(inputs: int, width: int, stride: int) -> Residual:
    branch: list[Named] = [
        ("first", conv_bn(inputs, width, 3, stride=stride)),
        ("second", conv_bn(width, width, 3, activation=None)),
    ]
    return Residual(named_sequential(branch), _projection_shortcut(inputs, width, stride), nn.ReLU())


def _bottleneck_block(inputs: int, width: int, stride: int) -> Residual:
    narrow = width // 4
    branch: list[Named] = [
        ("reduce", conv_bn(inputs, narrow, 1)),
        ("middle", conv_bn(narrow, narrow, 3, stride=stride)),
        ("expand", conv_bn(narrow, width, 1, activation=None)),
    ]
    return Residual(named_sequential(branch), _projection_shortcut(inputs, width, stride), nn.ReLU())


def _projection_shortcut(inputs: int, width: int, stride: int) -> nn.Module | None:
    if stride == 1 and inputs == width:
        return None
    return conv_bn(inputs, width, 1, stride=stride, activation=None)


BLOCKS: dict[Depth, tuple[Block, tuple[int, int, int, int]]] = {
    18: (_basic_block, (2, 2, 2, 2)),
    50: (_bottleneck_block, (3, 4, 6, 3)),
    152: (_bottleneck_block, (3, 8, 36, 3)),
}
