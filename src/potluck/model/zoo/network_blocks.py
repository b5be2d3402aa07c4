"""Building blocks of the networks: a sequence of named layers, a residual sum, a concatenation.

A network consists of torch's own modules, each called once, so that code that splits it (by tracing, by hooks,
channel by channel) only has to deal with layers, `+` and `torch.cat` along the channels.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = [
    "Concat",
    "DenseConcat",
    "Kernel",
    "M",
    "Named",
    "Residual",
    "classifier_head",
    "conv_bn",
    "init_he",
    "init_he_narrow",
    "named_sequential",
    "optional_dropout",
]


Kernel = int | tuple[int, int]
Named = tuple[str, nn.Module]

M = TypeVar("M", bound=nn.Module)


class Residual(nn.Module):
    """`after(branch(x) + shortcut(x))`; without a shortcut the input itself is added."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.branch(x) + (x if self.shortcut is None else self.shortcut(x))
        return total if self.after is None else self.after(total)


class Concat(nn.Module):
    """Concatenates the outputs of several branches."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class DenseConcat(nn.Module):
    """Concatenates the input and the branch's output."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], dim=1)


def named_sequential(layers: Iterable[Named]) -> nn.Sequential:
    """The named layers in sequence."""
    return nn.Sequential(OrderedDict(layers))


def conv_bn(
    inputs: int,
    filters: int,
    kernel: Kernel,
    *,
    stride: int = 1,
    same: bool = True,
    groups: int = 1,
    eps: float = 1e-5,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution, batch norm, activation; `same` pads to keep the size at stride 1, otherwise there is no padding."""
    layers: list[Named] = [
        ("conv", nn.Conv2d(inputs, filters, kernel, stride, _conv_padding(kernel, same), groups=groups, bias=False)),
        ("bn", nn.BatchNorm2d(filters, eps=eps)),
    ]
    if activation is not None:
        layers.append(("relu", activation()))
    return named_sequential(layers)


def optional_dropout(rate: float) -> list[Named]:
    """A dropout layer, or no layer if the rate is zero."""
    return [("dropout", nn.Dropout(rate))] if rate > 0 else []


def classifier_head(inputs: int, classes: int, dropout: float = 0.0) -> list[Named]:
    """The usual head: average over the image, then one linear layer."""
    return [
        ("average", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
        *optional_dropout(dropout),
        ("classifier", nn.Linear(inputs, classes)),
    ]


def _conv_padding(kernel: Kernel, same: bool) -> Kernel:
    if not same:
        return 0
    return kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)


def init_he(model: M) -> M:
    """He initialisation (normal, fan-out) for the convolutions; linear layers keep torch's default."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def init_he_narrow(model: M) -> M:
    """As `init_he`, with linear weights of standard deviation 0.01, as usual for VGG and MobileNetV2."""
    for layer in init_he(model).modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return model
