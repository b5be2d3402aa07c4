"""The catalogue: a recipe names a composition of parts. What a job says itself goes on top.

A new method is one small file, where it needs new parts, and one entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from potluck.errors import SettingError
from potluck.recipes import fedprox as fedprox  # declares its part

__all__ = ["CATALOGUE", "Recipe", "find"]


class Recipe(NamedTuple):
    """A name for some settings."""

    summary: str
    source: str
    settings: Mapping[str, Any]


_SYNCHRONOUS = {"local": "gradient", "server": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}
_LOCAL = {"kind": "sgd", "lr": 0.05, "epochs": 1}

CATALOGUE: Mapping[str, Recipe] = {
    "sync-sgd": Recipe(
        "one batch per device and round, gradients averaged by samples, everyone waits for everyone",
        "Chen et al. 2016, Revisiting distributed synchronous SGD",
        {"rounds": _SYNCHRONOUS},
    ),
    "dynacomm": Recipe(
        "sync-sgd whose transfers are cut layer-wise so that they hide behind computation, planned anew every time",
        "Cai et al. 2022, Accelerating distributed CNN training through dynamic communication scheduling",
        {"rounds": {**_SYNCHRONOUS, "transfer": "optimal"}},
    ),
    "layer-by-layer": Recipe(
        "sync-sgd with one transfer for every layer",
        "Zhang et al. 2017, Poseidon",
        {"rounds": {**_SYNCHRONOUS, "transfer": "layer-by-layer"}},
    ),
    "ibatch": Recipe(
        "sync-sgd with transfers batched greedily",
        "Wang, Pi and Zhou 2019, Scalable distributed DL training: batching communication and computation",
        {"rounds": {**_SYNCHRONOUS, "transfer": "ibatch"}},
    ),
    "mg-wfbp": Recipe(
        "sync-sgd with gradients merged where that saves a start-up",
        "Shi, Chu and Li 2019, MG-WFBP",
        {"rounds": {**_SYNCHRONOUS, "transfer": "mg-wfbp"}},
    ),
    "fedavg": Recipe(
        "local epochs, models averaged by samples",
        "McMahan et al. 2017, Communication-efficient learning of deep networks from decentralized data",
        {"rounds": {"local": _LOCAL}},
    ),
    "fedavg-quorum": Recipe(
        "fedavg that goes on without whoever is later than the others by far",
        "Bonawitz et al. 2019, Towards federated learning at scale",
        {"rounds": {"local": _LOCAL, "barrier": "quorum"}},
    ),
    "fedprox": Recipe(
        "fedavg with a pull back towards the model that was sent out",
        "Li et al. 2020, Federated optimization in heterogeneous networks",
        {"rounds": {"local": {"kind": "proximal", "lr": 0.05, "mu": 0.01}}},
    ),
    "fedbuff": Recipe(
        "nobody waits: a new model for every few updates, whatever version they started from",
        "Nguyen et al. 2022, Federated learning with buffered asynchronous aggregation",
        {"rounds": {"local": _LOCAL, "barrier": "buffered", "merge": "staleness"}},
    ),
    "fedadam": Recipe(
        "fedavg whose coordinator steps with Adam",
        "Reddi et al. 2021, Adaptive federated optimization",
        {"rounds": {"local": _LOCAL, "server": {"kind": "adam", "lr": 0.01, "epsilon": 0.001}}},
    ),
}


def find(name: str) -> Recipe:
    """The recipe of this name."""
    try:
        return CATALOGUE[name]
    except KeyError:
        raise SettingError("recipe", f"{name!r} is not known; choose from {', '.join(CATALOGUE)}") from None
