"""AlexNet in the one-column form (Krizhevsky 2014, arXiv:1404.5997), for large pictures and for 32×32.

Both share the five convolutions; the small one pads its first convolution, pools to a single point and has one
linear layer, since two of 4096 would outweigh the rest by far.
"""

from __future__ import annotations

from torch import nn

from potluck.model.zoo.blocks import Named, classifier, dropout_if, row
from potluck.model.zoo.options import Count, Share
from potluck.model.zoo.weights import he

__all__ = ["cifar", "imagenet"]


def imagenet(*, classes: Count, channels: Count, dropout: Share = 0.5) -> nn.Module:
    """Large pictures (at least 63×63); two hidden layers of 4096."""
    return he(
        row(
            [
                *_convolutions(channels, padding=2, pool=3),
                ("average", nn.AdaptiveAvgPool2d(6)),
                ("flatten", nn.Flatten()),
                *_hidden(1, 256 * 36, dropout),
                *_hidden(2, 4096, dropout),
                ("classifier", nn.Linear(4096, classes)),
            ]
        )
    )


def cifar(*, classes: Count, channels: Count) -> nn.Module:
    """Pictures of 32×32; one linear layer."""
    return he(row([*_convolutions(channels, padding=5, pool=2), *classifier(256, classes)]))


def _convolutions(channels: int, *, padding: int, pool: int) -> list[Named]:
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


def _hidden(index: int, inputs: int, dropout: float) -> list[Named]:
    layers = [*dropout_if(dropout), ("linear", nn.Linear(inputs, 4096)), ("relu", nn.ReLU())]
    return [(f"hidden{index}_{name}", layer) for name, layer in layers]
