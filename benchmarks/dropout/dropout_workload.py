"""The methods that are compared, and their fleet: a hundred devices of three speeds that change over time.

Ten devices take part in a round. Methods that decide before a round use each device's mean speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

from potluck.job import Job, make

__all__ = [
    "BOUND",
    "EXPLORED",
    "METHODS",
    "OURS",
    "PUBLISHED",
    "RIVALS",
    "SETTINGS",
    "SMALL_SHARE",
    "VARIATIONS",
    "DropoutMethod",
    "DropoutSetting",
    "dropout_job",
    "rate_table_path",
    "task_table",
]

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


GROUPS = ((34, 1.0), (33, 0.66), (33, 0.33))
LOWEST = 0.3  # a device's speed is uniform from here to 1 of its own nominal one
DEVICES = 10  # in a round
STEPS, BATCH = 10, 32
EVERY = 5  # rounds between two scores
SLOT_S = 1.0  # a whole step of the fastest at its nominal speed
VARIATIONS = {"between": float(STEPS), "within": 2.0}  # slots until the speed is drawn anew
_NETWORKS = "benchmarks.networks"


class DropoutSetting(NamedTuple):
    """A network, data, and who holds what."""

    title: str
    model: str
    data: str
    split: Any
    lr: float
    macs: int  # of one sample, forward
    options: Mapping[str, Any] = {}
    table: str = ""  # the explored rates that come with the benchmark


SETTINGS: Mapping[str, DropoutSetting] = {
    "cifar10-iid": DropoutSetting(
        "CIFAR-10, iid", f"{_NETWORKS}:thin_vgg", "cifar10", "iid", 0.05, 1_292_800, table="thin-vgg"
    ),
    "cifar10-skewed": DropoutSetting(
        "CIFAR-10, Dirichlet 0.1", f"{_NETWORKS}:thin_vgg", "cifar10", {"kind": "dirichlet", "alpha": 0.1},
        0.05, 1_292_800, table="thin-vgg",
    ),
    "femnist": DropoutSetting(
        "FEMNIST, by writer", f"{_NETWORKS}:thin_cnn", "femnist", "owner", 0.05, 668_112, table="thin-cnn"
    ),
    "digits": DropoutSetting("digits", f"{_NETWORKS}:thin_digits", "digits", "iid", 0.1, 23_680),
}  # fmt: skip


def task_table(setting: DropoutSetting) -> dict[str, Any]:
    return {"model": setting.model, "data": setting.data, "options": dict(setting.options)}


def rate_table_path(setting: DropoutSetting, method: str) -> str:
    """The file of rates explored for a method; none where there is none, which means one rate for all layers."""
    if not setting.table or method not in EXPLORED:
        return ""
    units = METHODS[method].submodel.get("units", "random")
    return str(resources.files("benchmarks.dropout").joinpath("tables", f"{setting.table}-{units}.json"))


def dropout_job(setting: DropoutSetting, variation: str, method: str, rounds: int, seed: int) -> Job:
    """A job that ends after the time that so many rounds take if nobody is ever waited for."""
    found = METHODS[method]
    local = {"kind": "sgd", "steps": STEPS, "lr": setting.lr, "momentum": 0.9}
    submodel = {**found.submodel, "static": True}  # all alike: a norm's statistics are taken when it is scored
    if method in EXPLORED:
        submodel["table"] = rate_table_path(setting, method)
    parts = {"devices": DEVICES, "local": local, "batching": {"size": BATCH}, "submodel": submodel}
    tables = {
        "task": task_table(setting),
        "recipe": found.recipe,
        "split": setting.split,
        "fleet": {"devices": _fleet_devices(setting, variation, found.full)},
        "rounds": parts,
        "stop": {"time": f"{rounds * STEPS * SLOT_S} s"},
        "evaluate": EVERY,
        "checkpoint": 0,
        "seed": seed,
    }
    return make(tables)


def _fleet_devices(setting: DropoutSetting, variation: str, full: bool) -> list[dict[str, Any]]:
    """Links are fast, so that it is computing that counts."""
    fastest = 2 * 3 * setting.macs * BATCH / SLOT_S
    every = f"{VARIATIONS[variation] * SLOT_S} s"
    changing = {"kind": "random-walk", "low": LOWEST, "high": 1.0, "step": 1.0 - LOWEST, "every": every}
    return [
        {
            "name": f"group{place}",
            "count": count,
            "flops": fastest * (1.0 if full else speed),
            "link": "lan",
            "speed": "constant" if full else changing,
        }
        for place, (count, speed) in enumerate(GROUPS)
    ]
