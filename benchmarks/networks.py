"""Convolutional networks small enough to train a hundred simulated devices in about a minute on two cores."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from potluck.model.zoo.network_blocks import Named, init_he, named_sequential

__all__ = ["adapted_mlp", "narrow", "slim_vgg", "strided_cnn", "thin_cnn", "thin_digits", "thin_vgg"]

_SLIM_VGG_FILTERS = ((24,), (48,), (96, 96), (192, 192), (192, 192))  # between two pooling layers


def thin_vgg(width: int = 16, classes: int = 10) -> nn.Module:
    """Four 3×3 convolutions with batch norm for 32×32 images, the first with stride 2."""
    filters = (width, 2 * width, 4 * width, 4 * width)
    convolutions = [
        *_conv_block(1, 3, filters[0], stride=2), ("pool1", nn.MaxPool2d(2)),
        *_conv_block(2, filters[0], filters[1]), ("pool2", nn.MaxPool2d(2)),
        *_conv_block(3, filters[1], filters[2]),
        *_conv_block(4, filters[2], filters[3]),
    ]  # fmt: skip
    return _with_classifier(convolutions, filters[-1], classes)


def thin_cnn(width: int = 12, classes: int = 62) -> nn.Module:
    """Three 3×3 convolutions with batch norm for 28×28 images, the first with stride 2."""
    filters = (width, 2 * width, 4 * width)
    convolutions = [
        *_conv_block(1, 1, filters[0], stride=2), ("pool1", nn.MaxPool2d(2)),
        *_conv_block(2, filters[0], filters[1]),
        *_conv_block(3, filters[1], filters[2]),
    ]  # fmt: skip
    return _with_classifier(convolutions, filters[-1], classes)


def thin_digits(width: int = 8, classes: int = 10) -> nn.Module:
    """Two 3×3 convolutions with batch norm for 8×8 images."""
    convolutions = [*_conv_block(1, 1, width), ("pool1", nn.MaxPool2d(2)), *_conv_block(2, width, 2 * width)]
    return _with_classifier(convolutions, 2 * width, classes)


def narrow(width: int = 16, classes: int = 10) -> nn.Module:
    """Three 3×3 convolutions with batch norm for 32×32 images, each with half the resolution and twice the width.

    Global average pooling before the classifier makes it learn at the high rates that large batches ask for.
    """
    blocks: list[nn.Module] = []
    channels = 3
    for index, filters in enumerate((width, 2 * width, 4 * width)):
        stride, pooling = (2, nn.Identity()) if index == 0 else (1, nn.MaxPool2d(2))
        blocks += [
            nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU(), pooling,
        ]  # fmt: skip
        channels = filters
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def strided_cnn(channels: int = 3, classes: int = 10, width: int = 32) -> nn.Module:
    """Four 3×3 convolutions with batch norm, halved three times: 12 million MACs for 32×32 at a width of 32."""
    filters = (width, 2 * width, 4 * width, 4 * width)
    convolutions = [
        *_conv_block(1, channels, filters[0], stride=2),
        *_conv_block(2, filters[0], filters[1]), ("pool2", nn.MaxPool2d(2)),
        *_conv_block(3, filters[1], filters[2]), ("pool3", nn.MaxPool2d(2)),
        *_conv_block(4, filters[2], filters[3]),
    ]  # fmt: skip
    return _with_classifier(convolutions, filters[-1], classes)


def slim_vgg(classes: int = 10) -> nn.Module:
    """VGG-11 with batch norm for 32×32 images and three eighths of the filters: a seventh of the MACs (22 million)."""
    layers: list[nn.Module] = []
    inputs = 3
    for widths in _SLIM_VGG_FILTERS:
        for filters in widths:
            layers += [nn.Conv2d(inputs, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]
            inputs = filters
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, classes))


def _with_classifier(convolutions: list[Named], filters: int, classes: int) -> nn.Module:
    """Average pooling to 2×2 and one linear layer."""
    head = [("average", nn.AdaptiveAvgPool2d(2)), ("flatten", nn.Flatten())]
    return init_he(named_sequential([*convolutions, *head, ("classifier", nn.Linear(4 * filters, classes))]))


def _conv_block(number: int, inputs: int, filters: int, stride: int = 1) -> Iterator[Named]:
    yield f"conv{number}", nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
    yield f"bn{number}", nn.BatchNorm2d(filters)
    yield f"relu{number}", nn.ReLU()


def adapted_mlp(width: int = 256, classes: int = 4) -> nn.Module:
    """Frozen linear layers for 28×28 images with LoRA adapters, named as peft names them."""
    return nn.Sequential(nn.Flatten(), _AdaptedLinear(784, width), nn.ReLU(), _AdaptedLinear(width, classes))


class _AdaptedLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, rank: int = 8) -> None:
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.Linear(inputs, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = self.base_layer(inputs) + self.lora_B(self.lora_A(inputs))
        return adapted
