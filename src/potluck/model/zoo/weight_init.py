"""Initial weights, drawn from torch's global generator so that `torch.manual_seed` determines them."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

__all__ = ["init_he", "init_he_narrow"]

M = TypeVar("M", bound=nn.Module)


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
