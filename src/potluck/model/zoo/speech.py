"""DS-CNN for keyword spotting (Zhang et al. 2017, "Hello Edge", arXiv:1711.07128), the small one of MLPerf Tiny.

The input is one channel of frames × features: 49×10 MFCC as published, 49×40 log-mel or any other size, since
the average at the end takes what comes.
"""

from __future__ import annotations

from torch import nn

from potluck.model.zoo.blocks import Named, classifier, conv_bn, row
from potluck.model.zoo.options import Count, Share
from potluck.model.zoo.weights import he

__all__ = ["ds_cnn"]


def ds_cnn(
    *, classes: Count, channels: Count, filters: Count = 64, blocks: Count = 4, dropout: Share = 0.0
) -> nn.Module:
    """One 10×4 convolution, then depthwise separable blocks of the same width."""
    first: list[Named] = [
        ("conv1", nn.Conv2d(channels, filters, (10, 4), stride=2, padding=(5, 1), bias=False)),
        ("bn1", nn.BatchNorm2d(filters)),
        ("relu1", nn.ReLU()),
    ]
    body = [(f"block{index}", _separable(filters)) for index in range(1, blocks + 1)]
    return he(row([*first, *body, *classifier(filters, classes, dropout)]))


def _separable(filters: int) -> nn.Module:
    depthwise = conv_bn(filters, filters, 3, groups=filters)
    return row([("depthwise", depthwise), ("pointwise", conv_bn(filters, filters, 1))])
