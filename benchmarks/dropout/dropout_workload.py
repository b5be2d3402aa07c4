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
    "SMALL_FRACTION",
    "VARIATIONS",
    "DropoutMethod",
    "DropoutSetting",
    "dropout_job",
    "rate_table_path",
    "task_table",
]

SMALL_FRACTION = 0.21  # of the MACs: what the slowest group (0.33) affords at its mean speed (0.65)


class DropoutMethod(NamedTuple):
    """A recipe and the settings that this benchmark adds."""

    title: str
    recipe: str
    submodel: Mapping[str, Any]
    full: bool = False  # on a fleet where every device always affords the full model


METHODS: Mapping[str, DropoutMethod] = {
    "distreal-ordered": DropoutMethod(
        "DISTREAL, ordered",
        "distreal-ordered",
        {"kind": "filter-dropout", "units": "leading", "scaled": False, "mean": "trained"},
    ),
    "distreal": DropoutMethod("DISTREAL as published", "distreal", {"kind": "filter-dropout"}),
    "uniform-dropout": DropoutMethod("one rate for all layers", "uniform-dropout", {"kind": "uniform-dropout"}),
    "small": DropoutMethod("small network", "small", {"kind": "small", "share": SMALL_FRACTION}),
    "federated-dropout": DropoutMethod("Federated Dropout", "federated-dropout", {"kind": "federated-dropout"}),
    "heterofl": DropoutMethod("HeteroFL", "heterofl", {"kind": "heterofl"}),
    "fjord": DropoutMethod("FjORD", "fjord", {"kind": "fjord"}),
    "fedrolex": DropoutMethod("FedRolex", "fedrolex", {"kind": "fedrolex"}),
    "drop-stragglers": DropoutMethod("FedAvg, half dropped", "drop-stragglers", {"kind": "whole"}),
    "fedavg": DropoutMethod("FedAvg, waiting", "fedavg", {"kind": "whole"}),
    "full": DropoutMethod("FedAvg with full resources", "fedavg", {"kind": "whole"}, full=True),
}
OURS, PUBLISHED, BOUND = "distreal-ordered", "distreal", "full"
EXPLORED = (OURS, PUBLISHED)  # methods with a table of explored rates
RIVALS = ("small", "drop-stragglers")  # the strongest baselines, which get as many seeds as ours

GROUPS = ((34, 1.0), (33, 0.66), (33, 0.33))
LOWEST = 0.3  # a device's speed is uniform from this fraction of its nominal one to 1
DEVICES = 10  # in a round
STEPS, BATCH = 10, 32
EVERY = 5  # rounds between two evaluations
SLOT_S = 1.0  # a full step of the fastest device at its nominal speed
VARIATIONS = {"between": float(STEPS), "within": 2.0}  # slots between two changes of speed
_NETWORKS = "benchmarks.networks"


class DropoutSetting(NamedTuple):
    """A network, a dataset, and how it is split over devices."""

    title: str
    model: str
    data: str
    split: Any
    lr: float
    macs: int  # of one sample, forward
    options: Mapping[str, Any] = {}
    table: str = ""  # of explored rates, stored with the benchmark


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
    """The file of rates explored for a method; empty if there is none, which means one rate for all layers."""
    if not setting.table or method not in EXPLORED:
        return ""
    units = METHODS[method].submodel.get("units", "random")
    return str(resources.files("benchmarks.dropout").joinpath("tables", f"{setting.table}-{units}.json"))


def dropout_job(setting: DropoutSetting, variation: str, method: str, rounds: int, seed: int) -> Job:
    """A job that stops after the time of that many rounds without any waiting."""
    chosen = METHODS[method]
    local = {"kind": "sgd", "steps": STEPS, "lr": setting.lr, "momentum": 0.9}
    submodel = {**chosen.submodel, "static": True}  # for all methods: norm statistics are computed for evaluation
    if method in EXPLORED:
        submodel["table"] = rate_table_path(setting, method)
    parts = {"devices": DEVICES, "local": local, "batching": {"size": BATCH}, "submodel": submodel}
    tables = {
        "task": task_table(setting),
        "recipe": chosen.recipe,
        "split": setting.split,
        "fleet": {"devices": _fleet_devices(setting, variation, chosen.full)},
        "rounds": parts,
        "stop": {"time": f"{rounds * STEPS * SLOT_S} s"},
        "evaluate": EVERY,
        "checkpoint": 0,
        "seed": seed,
    }
    return make(tables)


def _fleet_devices(setting: DropoutSetting, variation: str, full: bool) -> list[dict[str, Any]]:
    """Links are fast, so that computation determines the time."""
    fastest = 2 * 3 * setting.macs * BATCH / SLOT_S
    every = f"{VARIATIONS[variation] * SLOT_S} s"
    changing = {"kind": "random-walk", "low": LOWEST, "high": 1.0, "step": 1.0 - LOWEST, "every": every}
    return [
        {
            "name": f"group{index}",
            "count": count,
            "flops": fastest * (1.0 if full else speed),
            "link": "lan",
            "speed": "constant" if full else changing,
        }
        for index, (count, speed) in enumerate(GROUPS)
    ]
