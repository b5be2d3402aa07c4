"""The methods that are compared, all through one code path; who decides ahead of a round goes by mean speeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["BOUND", "EXPLORED", "METHODS", "OURS", "PUBLISHED", "RIVALS", "SMALL_SHARE", "DropoutMethod"]

SMALL_SHARE = 0.21  # of the MACs: what the weakest group (0.33) affords at its mean speed (0.65)


class DropoutMethod(NamedTuple):
    """A recipe and what this benchmark says on top of it."""

    title: str
    recipe: str
    submodel: Mapping[str, Any]
    full: bool = False  # on a fleet where everyone always affords everything


METHODS: Mapping[str, DropoutMethod] = {
    "distreal-ordered": DropoutMethod(
        "DISTREAL, ordered",
        "distreal-ordered",
        {"kind": "filter-dropout", "units": "leading", "scaled": False, "mean": "trained"},
    ),
    "distreal": DropoutMethod("DISTREAL as published", "distreal", {"kind": "filter-dropout"}),
    "uniform-dropout": DropoutMethod("one rate for all layers", "uniform-dropout", {"kind": "uniform-dropout"}),
    "small": DropoutMethod("small network", "small", {"kind": "small", "share": SMALL_SHARE}),
    "federated-dropout": DropoutMethod("Federated Dropout", "federated-dropout", {"kind": "federated-dropout"}),
    "heterofl": DropoutMethod("HeteroFL", "heterofl", {"kind": "heterofl"}),
    "fjord": DropoutMethod("FjORD", "fjord", {"kind": "fjord"}),
    "fedrolex": DropoutMethod("FedRolex", "fedrolex", {"kind": "fedrolex"}),
    "drop-stragglers": DropoutMethod("FedAvg, half dropped", "drop-stragglers", {"kind": "whole"}),
    "fedavg": DropoutMethod("FedAvg, waiting", "fedavg", {"kind": "whole"}),
    "full": DropoutMethod("FedAvg with full resources", "fedavg", {"kind": "whole"}, full=True),
}
OURS, PUBLISHED, BOUND = "distreal-ordered", "distreal", "full"
EXPLORED = (OURS, PUBLISHED)  # those with a table
RIVALS = ("small", "drop-stragglers")  # the strongest of the baselines, which get as many seeds as ours
