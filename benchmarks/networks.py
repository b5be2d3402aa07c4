"""Convolutional networks so small that a hundred devices of them train in a minute on two cores."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from potluck.model.zoo.network_blocks import Named, named_sequential
from potluck.model.zoo.weight_init import init_he

__all__ = ["thin_cnn", "thin_digits", "thin_vgg"]


def thin_vgg(width: int = 16, classes: int = 10) -> nn.Module:
    """Four 3×3 convolutions with batch norm for 32×32 pictures, the first with stride 2."""
    filters = (width, 2 * width, 4 * width, 4 * width)
    convolutions = [
        *_conv_block(1, 3, filters[0], stride=2), ("pool1", nn.MaxPool2d(2)),
        *_conv_block(2, filters[0], filters[1]), ("pool2", nn.MaxPool2d(2)),
        *_conv_block(3, filters[1], filters[2]),
        *_conv_block(4, filters[2], filters[3]),
    ]  # fmt: skip
    return _with_classifier(convolutions, filters[-1], classes)


def thin_cnn(width: int = 12, classes: int = 62) -> nn.Module:
    """Three 3×3 convolutions with batch norm for 28×28 pictures, the first with stride 2."""
    filters = (width, 2 * width, 4 * width)
    convolutions = [
        *_conv_block(1, 1, filters[0], stride=2), ("pool1", nn.MaxPool2d(2)),
        *_conv_block(2, filters[0], filters[1]),
        *_conv_block(3, filters[1], filters[2]),
    ]  # fmt: skip
    return _with_classifier(convolutions, filters[-1], classes)


def thin_digits(width: int = 8, classes: int = 10) -> nn.Module:
    """Two 3×3 convolutions with batch norm for 8×8 pictures."""
    convolutions = [*_conv_block(1, 1, width), ("pool1", nn.MaxPool2d(2)), *_conv_block(2, width, 2 * width)]
    return _with_classifier(convolutions, 2 * width, classes)


def _with_classifier(convolutions: list[Named], filters: int, classes: int) -> nn.Module:
    """The mean over a coarse grid of 2×2, and one linear layer."""
    head = [("average", nn.AdaptiveAvgPool2d(2)), ("flatten", nn.Flatten())]
    return init_he(named_sequential([*convolutions, *head, ("classifier", nn.Linear(4 * filters, classes))]))


def _conv_block(place: int, inputs: int, filters: int, stride: int = 1) -> Iterator[Named]:
    yield f"conv{place}", nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
    yield f"bn{place}", nn.BatchNorm2d(filters)
    yield f"relu{place}", nn.ReLU()
