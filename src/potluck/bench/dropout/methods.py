"""The methods that are compared, all through one code path; who decides ahead of a round goes by mean speeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["BOUND", "METHODS", "OURS", "RIVALS", "SMALL_SHARE", "Method"]

SMALL_SHARE = 0.21  # of the MACs: what the weakest group (0.33) affords at its mean speed (0.65)


class Method(NamedTuple):
    """A recipe and what this benchmark says on top of it."""

    title: str
    recipe: str
    rounds: Mapping[str, Any] = {}
    full: bool = False  # on a fleet where everyone always affords everything


METHODS: Mapping[str, Method] = {
    "distreal": Method("DISTREAL", "distreal"),
    "uniform-dropout": Method("one rate for all layers", "uniform-dropout"),
    "small": Method("small network", "small", {"submodel": {"kind": "small", "share": SMALL_SHARE}}),
    "federated-dropout": Method("Federated Dropout", "federated-dropout"),
    "heterofl": Method("HeteroFL", "heterofl"),
    "fjord": Method("FjORD", "fjord"),
    "fedrolex": Method("FedRolex", "fedrolex"),
    "drop-stragglers": Method("FedAvg, half dropped", "drop-stragglers"),
    "fedavg": Method("FedAvg, waiting", "fedavg"),
    "full": Method("FedAvg with full resources", "fedavg", full=True),
}
OURS, BOUND = "distreal", "full"
RIVALS = ("small", "federated-dropout")  # the strongest of the baselines, which get as many seeds as ours
