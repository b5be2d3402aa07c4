"""Small networks: LeNet-5, the two-convolution network of federated learning and MLP for images, DS-CNN for speech.

The linear layers of the first three depend on the size of the image, which is the option `side`.
"""

from __future__ import annotations

from torch import nn

from potluck.errors import ModelError
from potluck.model.zoo.builder_options import Count, Fraction
from potluck.model.zoo.network_blocks import Named, classifier_head, conv_bn, named_sequential, optional_dropout
from potluck.model.zoo.weight_init import init_he

__all__ = ["build_cnn", "build_ds_cnn", "build_lenet", "build_mlp", "require_side"]


def build_lenet(*, classes: Count, channels: Count, side: Count = 28) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling instead of sigmoid and averaging; a 28×28 image is padded to 32."""
    require_side("lenet", side, 12)
    return named_sequential(
        [
            ("conv1", nn.Conv2d(channels, 6, 5, padding=2)),
            ("relu1", nn.ReLU()),
            ("pool1", nn.MaxPool2d(2)),
            ("conv2", nn.Conv2d(6, 16, 5)),
            ("relu2", nn.ReLU()),
            ("pool2", nn.MaxPool2d(2)),
            ("flatten", nn.Flatten()),
            *_linear_layers(16 * ((side // 2 - 4) // 2) ** 2, (120, 84), classes),
        ]
    )


def build_cnn(
    *,
    classes: Count,
    channels: Count,
    side: Count = 28,
    hidden: Count = 128,
    dropout: tuple[Fraction, Fraction] = (0.25, 0.5),
) -> nn.Module:
    """Two 3×3 convolutions, one pooling, one hidden layer; `dropout` is before and after the hidden layer."""
    require_side("cnn", side, 6)
    return named_sequential(
        [
            ("conv1", nn.Conv2d(channels, 32, 3)),
            ("relu1", nn.ReLU()),
            ("conv2", nn.Conv2d(32, 64, 3)),
            ("relu2", nn.ReLU()),
            ("pool", nn.MaxPool2d(2)),
            *_number_layers(optional_dropout(dropout[0]), 1),
            ("flatten", nn.Flatten()),
            ("hidden", nn.Linear(64 * ((side - 4) // 2) ** 2, hidden)),
            ("relu3", nn.ReLU()),
            *_number_layers(optional_dropout(dropout[1]), 2),
            ("classifier", nn.Linear(hidden, classes)),
        ]
    )


def build_mlp(
    *, classes: Count, channels: Count, side: Count = 28, hidden: tuple[Count, ...] = (200, 200)
) -> nn.Module:
    """Linear layers with ReLU between them; without hidden layers it is logistic regression."""
    return named_sequential([("flatten", nn.Flatten()), *_linear_layers(channels * side**2, hidden, classes)])


def build_ds_cnn(
    *, classes: Count, channels: Count, filters: Count = 64, blocks: Count = 4, dropout: Fraction = 0.0
) -> nn.Module:
    """DS-CNN for keyword spotting (Zhang et al. 2017, "Hello Edge", arXiv:1711.07128), the small one of MLPerf Tiny.

    One 10×4 convolution, then depthwise separable blocks of the same width. The input is one channel of
    frames × features: 49×10 MFCC as published, 49×40 log-mel or any other size.
    """
    first: list[Named] = [
        ("conv1", nn.Conv2d(channels, filters, (10, 4), stride=2, padding=(5, 1), bias=False)),
        ("bn1", nn.BatchNorm2d(filters)),
        ("relu1", nn.ReLU()),
    ]
    body = [(f"block{index}", _separable_block(filters)) for index in range(1, blocks + 1)]
    return init_he(named_sequential([*first, *body, *classifier_head(filters, classes, dropout)]))


def require_side(name: str, side: int, least: int) -> None:
    """Raise ModelError if pooling would reduce the image to nothing."""
    if side < least:
        raise ModelError(f"model {name!r}, option 'side': {side} is too small; use at least {least}")


def _linear_layers(inputs: int, hidden: tuple[int, ...], classes: int) -> list[Named]:
    layers: list[Named] = []
    for index, width in enumerate(hidden, start=1):
        layers += [(f"linear{index}", nn.Linear(inputs, width)), (f"linear{index}_relu", nn.ReLU())]
        inputs = width
    return [*layers, ("classifier", nn.Linear(inputs, classes))]


def _number_layers(layers: list[Named], number: int) -> list[Named]:
    return [(f"{name}{number}", layer) for name, layer in layers]


def _separable_block(filters: int) -> nn.Module:
    depthwise = conv_bn(filters, filters, 3, groups=filters)
    return named_sequential([("depthwise", depthwise), ("pointwise", conv_bn(filters, filters, 1))])
