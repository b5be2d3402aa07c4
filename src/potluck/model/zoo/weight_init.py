"""First weights, drawn from torch's global generator so that `torch.manual_seed` fixes them."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

__all__ = ["init_he", "init_he_narrow"]

M = TypeVar("M", bound=nn.Module)


def init_he(model: M) -> M:
    """He's normal weights (by fan-out) for the convolutions; linear layers keep torch's own."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def init_he_narrow(model: M) -> M:
    """As `he`, with linear weights of standard deviation 0.01, as VGG and MobileNetV2 are usually started."""
    for layer in init_he(model).modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return model
