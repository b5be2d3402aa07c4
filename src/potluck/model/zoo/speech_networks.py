"""DS-CNN for keyword spotting (Zhang et al. 2017, "Hello Edge", arXiv:1711.07128), the small one of MLPerf Tiny.

The input is one channel of frames × features: 49×10 MFCC as published, 49×40 log-mel or any other size, since
the average at the end takes what comes.
"""

from __future__ import annotations

from torch import nn

from potluck.model.zoo.builder_options import Count, Share
from potluck.model.zoo.network_blocks import Named, classifier_head, conv_bn, named_sequential
from potluck.model.zoo.weight_init import init_he

__all__ = ["build_ds_cnn"]


def build_ds_cnn(
    *, classes: Count, channels: Count, filters: Count = 64, blocks: Count = 4, dropout: Share = 0.0
) -> nn.Module:
    """One 10×4 convolution, then depthwise separable blocks of the same width."""
    first: list[Named] = [
        ("conv1", nn.Conv2d(channels, filters, (10, 4), stride=2, padding=(5, 1), bias=False)),
        ("bn1", nn.BatchNorm2d(filters)),
        ("relu1", nn.ReLU()),
    ]
    body = [(f"block{index}", _separable_block(filters)) for index in range(1, blocks + 1)]
    return init_he(named_sequential([*first, *body, *classifier_head(filters, classes, dropout)]))


def _separable_block(filters: int) -> nn.Module:
    depthwise = conv_bn(filters, filters, 3, groups=filters)
    return named_sequential([("depthwise", depthwise), ("pointwise", conv_bn(filters, filters, 1))])
