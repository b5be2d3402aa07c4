"""AlexNet in the one-column form (Krizhevsky 2014, arXiv:1404.5997), for large images and for 32×32.

Both share the five convolutions; the small one pads its first convolution, pools to a single point and has one
linear layer, since two of 4096 would outweigh the rest by far.
"""

from __future__ import annotations

from torch import nn

from potluck.model.zoo.builder_options import Count, Fraction
from potluck.model.zoo.network_blocks import Named, classifier_head, named_sequential, optional_dropout
from potluck.model.zoo.weight_init import init_he

__all__ = ["build_cifar", "build_imagenet"]


def build_imagenet(*, classes: Count, channels: Count, dropout: Fraction = 0.5) -> nn.Module:
    """Large images (at least 63×63); two hidden layers of 4096."""
    return init_he(
        named_sequential(
            [
                *_conv_layers(channels, padding=2, pool=3),
                ("average", nn.AdaptiveAvgPool2d(6)),
                ("flatten", nn.Flatten()),
                *_hidden_layer(1, 256 * 36, dropout),
                *_hidden_layer(2, 4096, dropout),
                ("classifier", nn.Linear(4096, classes)),
            ]
        )
    )


def build_cifar(*, classes: Count, channels: Count) -> nn.Module:
    """Images of 32×32; one linear layer."""
    return init_he(named_sequential([*_conv_layers(channels, padding=5, pool=2), *classifier_head(256, classes)]))


def _conv_layers(channels: int, *, padding: int, pool: int) -> list[Named]:
    return [
        ("conv1", nn.Conv2d(channels, 64, 11, stride=4, padding=padding)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(pool, stride=2)),
        ("conv2", nn.Conv2d(64, 192, 5, padding=2)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(pool, stride=2)),
        ("conv3", nn.Conv2d(192, 384, 3, padding=1)),
        ("relu3", nn.ReLU()),
        ("conv4", nn.Conv2d(384, 256, 3, padding=1)),
        ("relu4", nn.ReLU()),
        ("conv5", nn.Conv2d(256, 256, 3, padding=1)),
        ("relu5", nn.ReLU()),
        ("pool5", nn.MaxPool2d(pool, stride=2)),
    ]


def _hidden_layer(index: int, inputs: int, dropout: float) -> list[Named]:
    layers = [*optional_dropout(dropout), ("linear", nn.Linear(inputs, 4096)), ("relu", nn.ReLU())]
    return [(f"hidden{index}_{name}", layer) for name, layer in layers]
