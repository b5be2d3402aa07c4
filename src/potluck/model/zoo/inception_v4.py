"""Inception-v4 (Szegedy et al. 2016, arXiv:1602.07261, figures 3 to 9).

A branch is written as its convolutions in order: `3` is 3×3, `(1, 7)` one row of seven; `valid` is not padded.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from potluck.model.zoo.builder_options import Count, Fraction
from potluck.model.zoo.network_blocks import Concat, Kernel, Named, classifier_head, conv_bn, named_sequential
from potluck.model.zoo.weight_init import init_he

__all__ = ["build_inception_v4"]

WIDE, TALL = (1, 7), (7, 1)


class ConvSpec(NamedTuple):
    filters: int
    kernel: Kernel
    stride: int = 1
    valid: bool = False


def build_inception_v4(*, classes: Count, channels: Count, dropout: Fraction = 0.2) -> nn.Module:
    """Stem, four modules A, seven B, three C, with a reduction after A and after B."""
    return init_he(
        named_sequential(
            [
                *_stem_layers(channels),
                *((f"a{index}", _module_a()) for index in range(1, 5)),
                ("reduction_a", _reduction_a()),
                *((f"b{index}", _module_b()) for index in range(1, 8)),
                ("reduction_b", _reduction_b()),
                *((f"c{index}", _module_c()) for index in range(1, 4)),
                *classifier_head(1536, classes, dropout),
            ]
        )
    )


def _stem_layers(channels: int) -> list[Named]:
    last = ConvSpec(96, 3, valid=True)
    return [
        ("first", _conv_branch(channels, ConvSpec(32, 3, 2, valid=True), ConvSpec(32, 3, valid=True), ConvSpec(64, 3))),
        ("halve1", Concat(_halving_pool(), _conv_branch(64, ConvSpec(96, 3, 2, valid=True)))),
        (
            "mix",
            Concat(
                _conv_branch(160, ConvSpec(64, 1), last),
                _conv_branch(160, ConvSpec(64, 1), ConvSpec(64, WIDE), ConvSpec(64, TALL), last),
            ),
        ),
        ("halve2", Concat(_conv_branch(192, ConvSpec(192, 3, 2, valid=True)), _halving_pool())),
    ]


def _module_a() -> Concat:
    return Concat(
        _conv_branch(384, ConvSpec(96, 1)),
        _conv_branch(384, ConvSpec(64, 1), ConvSpec(96, 3)),
        _conv_branch(384, ConvSpec(64, 1), ConvSpec(96, 3), ConvSpec(96, 3)),
        _average_branch(384, 96),
    )


def _reduction_a() -> Concat:
    return Concat(
        _conv_branch(384, ConvSpec(384, 3, 2, valid=True)),
        _conv_branch(384, ConvSpec(192, 1), ConvSpec(224, 3), ConvSpec(256, 3, 2, valid=True)),
        _halving_pool(),
    )


def _module_b() -> Concat:
    return Concat(
        _conv_branch(1024, ConvSpec(384, 1)),
        _conv_branch(1024, ConvSpec(192, 1), ConvSpec(224, WIDE), ConvSpec(256, TALL)),
        _conv_branch(
            1024, ConvSpec(192, 1), ConvSpec(192, TALL), ConvSpec(224, WIDE), ConvSpec(224, TALL), ConvSpec(256, WIDE)
        ),
        _average_branch(1024, 128),
    )


def _reduction_b() -> Concat:
    return Concat(
        _conv_branch(1024, ConvSpec(192, 1), ConvSpec(192, 3, 2, valid=True)),
        _conv_branch(1024, ConvSpec(256, 1), ConvSpec(256, WIDE), ConvSpec(320, TALL), ConvSpec(320, 3, 2, valid=True)),
        _halving_pool(),
    )


def _module_c() -> Concat:
    return Concat(
        _conv_branch(1536, ConvSpec(256, 1)),
        nn.Sequential(_conv_branch(1536, ConvSpec(384, 1)), _forked_convs(384)),
        nn.Sequential(
            _conv_branch(1536, ConvSpec(384, 1), ConvSpec(448, (3, 1)), ConvSpec(512, (1, 3))), _forked_convs(512)
        ),
        _average_branch(1536, 256),
    )


def _forked_convs(inputs: int) -> Concat:
    return Concat(_conv_branch(inputs, ConvSpec(256, (1, 3))), _conv_branch(inputs, ConvSpec(256, (3, 1))))


def _average_branch(inputs: int, filters: int) -> nn.Sequential:
    return nn.Sequential(
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False), _conv_branch(inputs, ConvSpec(filters, 1))
    )


def _halving_pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2)


def _conv_branch(inputs: int, *convs: ConvSpec) -> nn.Sequential:
    layers = []
    for conv in convs:
        layers.append(conv_bn(inputs, conv.filters, conv.kernel, stride=conv.stride, same=not conv.valid, eps=1e-3))
        inputs = conv.filters
    return nn.Sequential(*layers)
