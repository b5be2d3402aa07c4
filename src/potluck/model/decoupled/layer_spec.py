"""Describes a layer by its torch class and options, so that a network can be saved in a file and rebuilt.

Only the kinds that this module lists are ever built: a description cannot name code.
"""

from __future__ import annotations

from typing import Any

import msgspec
from torch import nn

from potluck.errors import ModelError
from potluck.model.decoupled.joining_layers import (
    AddTensors,
    ConcatenateChannels,
    MultiplyTensors,
    SelectChannels,
    SpatialMean,
)

__all__ = ["LayerSpec", "describe_layer"]

Option = int | float | bool | str | list[int] | None

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_MEAN_POOL = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

KINDS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "Conv1d": (nn.Conv1d, _CONVOLUTION),
    "Conv2d": (nn.Conv2d, _CONVOLUTION),
    "Linear": (nn.Linear, ("in_features", "out_features")),
    "BatchNorm1d": (nn.BatchNorm1d, _NORM),
    "BatchNorm2d": (nn.BatchNorm2d, _NORM),
    "GroupNorm": (nn.GroupNorm, ("num_groups", "num_channels", "eps", "affine")),
    "ReLU": (nn.ReLU, ()),
    "ReLU6": (nn.ReLU6, ()),
    "LeakyReLU": (nn.LeakyReLU, ("negative_slope",)),
    "ELU": (nn.ELU, ("alpha",)),
    "SELU": (nn.SELU, ()),
    "GELU": (nn.GELU, ("approximate",)),
    "SiLU": (nn.SiLU, ()),
    "Mish": (nn.Mish, ()),
    "Hardswish": (nn.Hardswish, ()),
    "Hardsigmoid": (nn.Hardsigmoid, ()),
    "Tanh": (nn.Tanh, ()),
    "Sigmoid": (nn.Sigmoid, ()),
    "Identity": (nn.Identity, ()),
    "Dropout": (nn.Dropout, ("p",)),
    "Dropout2d": (nn.Dropout2d, ("p",)),
    "Flatten": (nn.Flatten, ("start_dim", "end_dim")),
    "MaxPool1d": (nn.MaxPool1d, _MAX_POOL),
    "MaxPool2d": (nn.MaxPool2d, _MAX_POOL),
    "AvgPool2d": (nn.AvgPool2d, _MEAN_POOL),
    "AdaptiveAvgPool1d": (nn.AdaptiveAvgPool1d, ("output_size",)),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d, ("output_size",)),
    "AdaptiveMaxPool2d": (nn.AdaptiveMaxPool2d, ("output_size",)),
    "AddTensors": (AddTensors, ()),
    "MultiplyTensors": (MultiplyTensors, ()),
    "ConcatenateChannels": (ConcatenateChannels, ()),
    "SelectChannels": (SelectChannels, ("channels",)),
    "SpatialMean": (SpatialMean, ("keepdim",)),
}
_LAYERS = [kind for kind, (layer, _) in KINDS.items() if layer.__module__.startswith("torch.")]
_BIASED = ("Conv1d", "Conv2d", "Linear")


class LayerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layer of a network, with its name there and the names of the layers that it reads.

    Without names it reads the layer before it; the empty name is the network's input.
    """

    name: str
    kind: str
    options: dict[str, Option] = {}
    inputs: tuple[str, ...] = ()

    def with_widths(self, inputs: int, outputs: int) -> LayerSpec:
        """The same layer with other widths; a layer without weights is unchanged."""
        widths: dict[str, Option] = {}
        if self.kind in ("Conv1d", "Conv2d"):
            groups = self.options["groups"]
            if groups != 1:
                groups = inputs // (self._count("in_channels") // self._count("groups"))
            widths = {"in_channels": inputs, "out_channels": outputs, "groups": groups}
        elif self.kind == "Linear":
            widths = {"in_features": inputs, "out_features": outputs}
        elif self.kind in ("BatchNorm1d", "BatchNorm2d"):
            widths = {"num_features": outputs}
        elif self.kind == "GroupNorm":
            run = self._count("num_channels") // self._count("num_groups")
            widths = {"num_channels": outputs, "num_groups": outputs // run}
        return msgspec.structs.replace(self, options={**self.options, **widths})

    def _count(self, key: str) -> int:
        value = self.options[key]
        assert isinstance(value, int)
        return value

    def build_layer(self) -> nn.Module:
        """The layer with torch's default initialisation; ModelError if its kind or an option is unknown."""
        if self.kind not in KINDS:
            raise ModelError(f"layer {self.name!r} is a {self.kind!r}, not one of {', '.join(KINDS)}")
        layer, known = KINDS[self.kind]
        allowed = (*known, "bias") if self.kind in _BIASED else known
        unknown = [key for key in self.options if key not in allowed]
        if unknown:
            raise ModelError(f"layer {self.name!r}: {self.kind} has no option {unknown[0]!r}")
        try:
            return layer(**self.options)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelError(f"layer {self.name!r} cannot be built: {str(error).splitlines()[0]}") from None


def describe_layer(name: str, layer: nn.Module) -> LayerSpec:
    """The description of a layer; ModelError if it is of a kind that cannot be decoupled."""
    kind = type(layer).__name__
    if KINDS.get(kind, (None,))[0] is not type(layer):
        raise ModelError(f"layer {name!r} is a {kind}; a network to decouple may only contain {', '.join(_LAYERS)}")
    options: dict[str, Any] = {key: _plain_value(getattr(layer, key)) for key in KINDS[kind][1]}
    if kind in _BIASED:
        options["bias"] = layer.bias is not None
    return LayerSpec(name, kind, options)


def _plain_value(value: object) -> object:
    return [_plain_value(item) for item in value] if isinstance(value, tuple | list) else value
