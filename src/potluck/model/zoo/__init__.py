"""Networks by name: those that people train on small devices, and those of the published comparisons.

    build_model("resnet20")                      as published
    build_model("vgg9", classes=100)             another number of classes or channels
    build_model("mlp", hidden=[64], side=8)      options of that network
    build_model("gpt", vocabulary=256)           transformers take whole numbers

All consist of torch's own modules, each called once, without in-place operations, and can be traced by torch.fx.
"""

from __future__ import annotations

from torch import nn

from potluck.errors import ModelError
from potluck.model.zoo.builder_options import Builder, check_options, known_options
from potluck.model.zoo.model_catalogue import CATALOGUE, ModelEntry
from potluck.settings import spelling_hint

__all__ = ["ModelEntry", "build_model", "model_entry", "model_names", "model_options"]


def build_model(name: str, *, classes: int | None = None, channels: int | None = None, **options: object) -> nn.Module:
    """The network, initialised with torch's global generator; ModelError if the name or an option is wrong."""
    entry, builder = _find_model(name)
    known = known_options(builder)
    usual = {"classes": entry.classes, "channels": entry.shape[0]}
    given = {key: value for key, value in (("classes", classes), ("channels", channels)) if value is not None}
    wanted: dict[str, object] = {**{key: usual[key] for key in usual if key in known}, **given, **options}
    return builder(**check_options(name, builder, wanted))


def model_entry(name: str) -> ModelEntry:
    """What is known of a network without building it."""
    return _find_model(name)[0]


def model_names() -> tuple[str, ...]:
    """All names, in the order of the catalogue."""
    return tuple(CATALOGUE)


def model_options(name: str) -> tuple[str, ...]:
    """The names of the options that `build_model` accepts for this network."""
    return known_options(_find_model(name)[1])


def _find_model(name: str) -> tuple[ModelEntry, Builder]:
    if name not in CATALOGUE:
        raise ModelError(f"no model {name!r}; choose from {', '.join(CATALOGUE)}{spelling_hint(name, CATALOGUE)}")
    return CATALOGUE[name]
