"""Inception-v4 (Szegedy et al. 2016, arXiv:1602.07261, figures 3 to 9).

A branch is written as its convolutions in order: `3` is 3×3, `(1, 7)` one row of seven; `valid` is not padded.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from potluck.model.zoo.blocks import Concat, Kernel, Named, classifier, conv_bn, row
from potluck.model.zoo.options import Count, Share
from potluck.model.zoo.weights import he

__all__ = ["inception_v4"]

WIDE, TALL = (1, 7), (7, 1)


class Conv(NamedTuple):
    filters: int
    kernel: Kernel
    stride: int = 1
    valid: bool = False


def inception_v4(*, classes: Count, channels: Count, dropout: Share = 0.2) -> nn.Module:
    """Stem, four modules A, seven B, three C, with a reduction after A and after B."""
    return he(
        row(
            [
                *_stem(channels),
                *((f"a{index}", _module_a()) for index in range(1, 5)),
                ("reduction_a", _reduction_a()),
                *((f"b{index}", _module_b()) for index in range(1, 8)),
                ("reduction_b", _reduction_b()),
                *((f"c{index}", _module_c()) for index in range(1, 4)),
                *classifier(1536, classes, dropout),
            ]
        )
    )


def _stem(channels: int) -> list[Named]:
    last = Conv(96, 3, valid=True)
    return [
        ("first", _branch(channels, Conv(32, 3, 2, valid=True), Conv(32, 3, valid=True), Conv(64, 3))),
        ("halve1", Concat(_halve(), _branch(64, Conv(96, 3, 2, valid=True)))),
        (
            "mix",
            Concat(
                _branch(160, Conv(64, 1), last),
                _branch(160, Conv(64, 1), Conv(64, WIDE), Conv(64, TALL), last),
            ),
        ),
        ("halve2", Concat(_branch(192, Conv(192, 3, 2, valid=True)), _halve())),
    ]


def _module_a() -> Concat:
    return Concat(
        _branch(384, Conv(96, 1)),
        _branch(384, Conv(64, 1), Conv(96, 3)),
        _branch(384, Conv(64, 1), Conv(96, 3), Conv(96, 3)),
        _averaged(384, 96),
    )


def _reduction_a() -> Concat:
    return Concat(
        _branch(384, Conv(384, 3, 2, valid=True)),
        _branch(384, Conv(192, 1), Conv(224, 3), Conv(256, 3, 2, valid=True)),
        _halve(),
    )


def _module_b() -> Concat:
    return Concat(
        _branch(1024, Conv(384, 1)),
        _branch(1024, Conv(192, 1), Conv(224, WIDE), Conv(256, TALL)),
        _branch(1024, Conv(192, 1), Conv(192, TALL), Conv(224, WIDE), Conv(224, TALL), Conv(256, WIDE)),
        _averaged(1024, 128),
    )


def _reduction_b() -> Concat:
    return Concat(
        _branch(1024, Conv(192, 1), Conv(192, 3, 2, valid=True)),
        _branch(1024, Conv(256, 1), Conv(256, WIDE), Conv(320, TALL), Conv(320, 3, 2, valid=True)),
        _halve(),
    )


def _module_c() -> Concat:
    return Concat(
        _branch(1536, Conv(256, 1)),
        nn.Sequential(_branch(1536, Conv(384, 1)), _fork(384)),
        nn.Sequential(_branch(1536, Conv(384, 1), Conv(448, (3, 1)), Conv(512, (1, 3))), _fork(512)),
        _averaged(1536, 256),
    )


def _fork(inputs: int) -> Concat:
    return Concat(_branch(inputs, Conv(256, (1, 3))), _branch(inputs, Conv(256, (3, 1))))


def _averaged(inputs: int, filters: int) -> nn.Sequential:
    return nn.Sequential(
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False), _branch(inputs, Conv(filters, 1))
    )


def _halve() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2)


def _branch(inputs: int, *convs: Conv) -> nn.Sequential:
    layers = []
    for conv in convs:
        layers.append(conv_bn(inputs, conv.filters, conv.kernel, stride=conv.stride, same=not conv.valid, eps=1e-3))
        inputs = conv.filters
    return nn.Sequential(*layers)
