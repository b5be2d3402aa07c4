"""GoogLeNet (Szegedy et al. 2014, arXiv:1409.4842) with batch norm and optional auxiliary heads.

The branch that the paper gives a 5×5 convolution has 3×3 here, as in the widely used weights;
`largest_kernel=5` is the paper's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor, nn

from potluck.model.zoo.builder_options import Count, Fraction
from potluck.model.zoo.network_blocks import Concat, Named, classifier_head, conv_bn, named_sequential
from potluck.model.zoo.weight_init import init_he

__all__ = ["Headed", "build_googlenet"]

Largest = Literal[3, 5]
EPS = 1e-3


class InceptionWidths(NamedTuple):
    """Filters of one module: 1×1; 3×3 and its reduction; the largest kernel and its reduction; behind the pooling."""

    single: int
    reduce: int
    middle: int
    reduce_largest: int
    largest: int
    pooled: int

    @property
    def filters(self) -> int:
        return self.single + self.middle + self.largest + self.pooled


THIRD = {"3a": InceptionWidths(64, 96, 128, 16, 32, 32), "3b": InceptionWidths(128, 128, 192, 32, 96, 64)}
FOURTH = {
    "4a": InceptionWidths(192, 96, 208, 16, 48, 64),
    "4b": InceptionWidths(160, 112, 224, 24, 64, 64),
    "4c": InceptionWidths(128, 128, 256, 24, 64, 64),
    "4d": InceptionWidths(112, 144, 288, 32, 64, 64),
    "4e": InceptionWidths(256, 160, 320, 32, 128, 128),
}
FIFTH = {"5a": InceptionWidths(256, 160, 320, 32, 128, 128), "5b": InceptionWidths(384, 192, 384, 48, 128, 128)}


class Headed(nn.Module):
    """Three networks in sequence with a head after the first and after the second.

    While training it gives (classifier, second head, first head), otherwise the classifier's output alone.
    """

    def __init__(self, parts: tuple[nn.Module, nn.Module, nn.Module], heads: tuple[nn.Module, nn.Module]) -> None:
        super().__init__()
        self.part1, self.part2, self.part3 = parts
        self.head1, self.head2 = heads

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        early: Tensor = self.part1(x)
        late: Tensor = self.part2(early)
        out: Tensor = self.part3(late)
        return (out, self.head2(late), self.head1(early)) if self.training else out


def build_googlenet(
    *,
    classes: Count,
    channels: Count,
    auxiliary: bool = False,
    largest_kernel: Largest = 3,
    dropout: Fraction = 0.2,
) -> nn.Module:
    """Nine inception modules; with `auxiliary` a `Headed` network."""
    layers = [
        *_stem_layers(channels),
        *_inception_modules(192, largest_kernel),
        *classifier_head(1024, classes, dropout),
    ]
    if not auxiliary:
        return init_he(named_sequential(layers))
    ends = [index for index, (name, _) in enumerate(layers, start=1) if name in ("inception4a", "inception4d")]
    parts = (
        named_sequential(layers[: ends[0]]),
        named_sequential(layers[ends[0] : ends[1]]),
        named_sequential(layers[ends[1] :]),
    )
    return init_he(Headed(parts, (_auxiliary_head(512, classes), _auxiliary_head(528, classes))))


def _stem_layers(channels: int) -> list[Named]:
    return [
        ("first", conv_bn(channels, 64, 7, stride=2, eps=EPS)),
        ("pool1", nn.MaxPool2d(3, stride=2, ceil_mode=True)),
        ("reduce", conv_bn(64, 64, 1, eps=EPS)),
        ("second", conv_bn(64, 192, 3, eps=EPS)),
        ("pool2", nn.MaxPool2d(3, stride=2, ceil_mode=True)),
    ]


def _inception_modules(inputs: int, largest_kernel: Largest) -> list[Named]:
    layers: list[Named] = []
    for name, widths in (THIRD | FOURTH | FIFTH).items():
        if name == "4a":
            layers.append(("pool3", nn.MaxPool2d(3, stride=2, ceil_mode=True)))
        if name == "5a":
            layers.append(("pool4", nn.MaxPool2d(2, stride=2, ceil_mode=True)))
        layers.append((f"inception{name}", _inception_module(inputs, widths, largest_kernel)))
        inputs = widths.filters
    return layers


def _inception_module(inputs: int, widths: InceptionWidths, largest_kernel: Largest) -> Concat:
    reduce, reduce_largest = (conv_bn(inputs, width, 1, eps=EPS) for width in (widths.reduce, widths.reduce_largest))
    return Concat(
        conv_bn(inputs, widths.single, 1, eps=EPS),
        nn.Sequential(reduce, conv_bn(widths.reduce, widths.middle, 3, eps=EPS)),
        nn.Sequential(reduce_largest, conv_bn(widths.reduce_largest, widths.largest, largest_kernel, eps=EPS)),
        nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), conv_bn(inputs, widths.pooled, 1, eps=EPS)),
    )


def _auxiliary_head(inputs: int, classes: int) -> nn.Sequential:
    return named_sequential(
        [
            ("average", nn.AdaptiveAvgPool2d(4)),
            ("reduce", conv_bn(inputs, 128, 1, eps=EPS)),
            ("flatten", nn.Flatten()),
            ("hidden", nn.Linear(128 * 16, 1024)),
            ("relu", nn.ReLU()),
            ("dropout", nn.Dropout(0.7)),
            ("classifier", nn.Linear(1024, classes)),
        ]
    )
