"""Networks that people train on small devices, and those the published comparisons use, by name.

    build("resnet20")                      as published
    build("vgg9", classes=100)             another number of classes or channels
    build("mlp", hidden=[64], side=8)      options of that network

All are made of torch's own modules, each called once, with no in-place operation, and can be traced by torch.fx.
"""

from __future__ import annotations

from torch import nn

from potluck.errors import ModelError
from potluck.model.zoo.catalogue import CATALOGUE, Entry
from potluck.model.zoo.options import Builder, checked, did_you_mean, known_options

__all__ = ["Entry", "build", "entry", "names", "options"]


def build(name: str, *, classes: int | None = None, channels: int | None = None, **options: object) -> nn.Module:
    """The network with fresh weights from torch's global generator; ModelError if the name or an option is wrong."""
    entry, builder = _find(name)
    wanted: dict[str, object] = {
        "classes": entry.classes if classes is None else classes,
        "channels": entry.shape[0] if channels is None else channels,
        **options,
    }
    return builder(**checked(name, builder, wanted))


def entry(name: str) -> Entry:
    """What is known of a network without building it."""
    return _find(name)[0]


def names() -> tuple[str, ...]:
    """All names, in the order of the catalogue."""
    return tuple(CATALOGUE)


def options(name: str) -> tuple[str, ...]:
    """The names of the options that `build` takes for this network."""
    return known_options(_find(name)[1])


def _find(name: str) -> tuple[Entry, Builder]:
    if name not in CATALOGUE:
        raise ModelError(f"no model {name!r}; choose from {', '.join(CATALOGUE)}{did_you_mean(name, CATALOGUE)}")
    return CATALOGUE[name]
