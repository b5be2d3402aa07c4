"""The methods that are compared, and their fleet: a hundred devices of three speeds that change over time.

Ten devices take part in a round. Methods that decide before a round use each device's mean speed.
Learning rate and options of every method are tuned by one procedure: `dropout_tuning.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from potluck.job import Job, make

__all__ = [
    "BOUND",
    "EXPLORED",
    "METHODS",
    "OURS",
    "PUBLISHED",
    "SETTINGS",
    "TABLE",
    "VARIATIONS",
    "DropoutMethod",
    "DropoutOption",
    "DropoutSetting",
    "TrainingPlan",
    "TunedSettings",
    "dropout_job",
    "rate_table_path",
    "task_table",
]

_FINE = tuple(step / 20 for step in range(2, 21))  # widths; with the five published ones much of a budget is unused


class DropoutOption(NamedTuple):
    """Settings that tuning may choose for a method, in its sub-model and in its rounds."""

    name: str
    submodel: Mapping[str, Any] = {}
    rounds: Mapping[str, Any] = {}


_AS_IT_IS = (DropoutOption("plain"),)
_SMALL_SHARES = tuple(DropoutOption(f"share {share}", {"share": share}) for share in (0.15, 0.21, 0.3, 0.4))
_MASKED = {"skew": {"kind": "restricted", "factor": 0.0}}  # logits of classes that a device lacks do not count
_AVERAGED = {**_MASKED, "average_decay": 0.9}  # and the average of the model over rounds is evaluated
_AGAINST_SKEW = (
    *_AS_IT_IS,
    DropoutOption("masked, averaged", rounds=_AVERAGED),
    DropoutOption("masked, momentum, averaged", rounds={**_AVERAGED, "server": {"kind": "sgd", "momentum": 0.5}}),
)


class DropoutMethod(NamedTuple):
    """A recipe and the settings that this benchmark adds."""

    title: str
    recipe: str
    submodel: Mapping[str, Any]
    full: bool = False  # on a fleet where every device always affords the full model
    options: Sequence[DropoutOption] = _AS_IT_IS  # of which tuning chooses one


_ORDERED = {"kind": "filter-dropout", "units": "leading", "scaled": False, "mean": "trained"}
METHODS: Mapping[str, DropoutMethod] = {
    "distreal-ordered": DropoutMethod("DISTREAL, ordered", "distreal-ordered", _ORDERED),
    "ordered-table": DropoutMethod("ordered with an explored table", "distreal-ordered", _ORDERED),
    "distreal": DropoutMethod("DISTREAL as published", "distreal", {"kind": "filter-dropout"}),
    "uniform-dropout": DropoutMethod("one rate for all layers", "uniform-dropout", {"kind": "uniform-dropout"}),
    "small": DropoutMethod("small network", "small", {"kind": "small"}, options=_SMALL_SHARES),
    "federated-dropout": DropoutMethod("Federated Dropout", "federated-dropout", {"kind": "federated-dropout"}),
    "heterofl": DropoutMethod("HeteroFL", "heterofl", {"kind": "heterofl", "levels": _FINE}),
    "fjord": DropoutMethod("FjORD", "fjord", {"kind": "fjord", "levels": _FINE}),
    "fedrolex": DropoutMethod("FedRolex", "fedrolex", {"kind": "fedrolex", "levels": _FINE}),
    "drop-stragglers": DropoutMethod("FedAvg, half dropped", "drop-stragglers", {"kind": "whole"}),
    "fedavg": DropoutMethod("FedAvg, waiting", "fedavg", {"kind": "whole"}),
    "full": DropoutMethod("FedAvg with full resources", "fedavg", {"kind": "whole"}, full=True),
}
OURS, TABLE, PUBLISHED, BOUND = "distreal-ordered", "ordered-table", "distreal", "full"
EXPLORED = (TABLE, PUBLISHED)  # methods with a table of explored rates

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
    macs: int  # of one sample, forward
    table: str = ""  # of explored rates, stored with the benchmark
    seeds: int = 3
    options: Sequence[DropoutOption] = _AS_IT_IS  # of which tuning chooses one for each method


SETTINGS: Mapping[str, DropoutSetting] = {
    "cifar10-iid": DropoutSetting(
        "CIFAR-10, iid", f"{_NETWORKS}:thin_vgg", "cifar10", "iid", 1_292_800, table="thin-vgg"
    ),
    "cifar10-skewed": DropoutSetting(
        "CIFAR-10, Dirichlet 0.1", f"{_NETWORKS}:thin_vgg", "cifar10", {"kind": "dirichlet", "alpha": 0.1},
        1_292_800, table="thin-vgg", seeds=5, options=_AGAINST_SKEW,
    ),
    "femnist": DropoutSetting(
        "FEMNIST, by writer", f"{_NETWORKS}:thin_cnn", "femnist", "owner", 668_112, table="thin-cnn"
    ),
    "digits": DropoutSetting("digits", f"{_NETWORKS}:thin_digits", "digits", "iid", 23_680),
}  # fmt: skip


def task_table(setting: DropoutSetting) -> dict[str, Any]:
    return {"model": setting.model, "data": setting.data}


def rate_table_path(setting: DropoutSetting, method: str) -> str:
    """The file of rates explored for a method; empty if there is none, which means one rate for all layers."""
    if not setting.table or method not in EXPLORED:
        return ""
    units = METHODS[method].submodel.get("units", "random")
    return str(resources.files("benchmarks.dropout").joinpath("tables", f"{setting.table}-{units}.json"))


class TunedSettings(NamedTuple):
    """What tuning determines: the learning rate, an option of the method and one of the setting."""

    lr: float
    method_option: str = ""  # by default the first one
    setting_option: str = ""


class TrainingPlan(NamedTuple):
    """One federated training: names of the setting, the variation and the method, its length, and the seed."""

    setting: str
    variation: str
    method: str
    rounds: int
    seed: int

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that its result depends on, except what tuning determines."""
        setting = SETTINGS[self.setting]
        known: dict[str, Any] = {
            "setting": list(setting[:6]), "variation": VARIATIONS[self.variation],
            "rounds": self.rounds, "seed": self.seed, "method": list(METHODS[self.method][:4]),
        }  # fmt: skip
        if table := rate_table_path(setting, self.method):
            known["table"] = hashlib.blake2b(Path(table).read_bytes(), digest_size=8).hexdigest()
        return known


def dropout_job(plan: TrainingPlan, tuned: TunedSettings) -> Job:
    """A job that stops after the time of that many rounds without any waiting."""
    setting, method = SETTINGS[plan.setting], plan.method
    chosen = METHODS[method]
    options = _find_option(chosen.options, tuned.method_option), _find_option(setting.options, tuned.setting_option)
    local = {"kind": "sgd", "steps": STEPS, "lr": tuned.lr, "momentum": 0.9}
    submodel = {**chosen.submodel, "static": True}  # for all methods: norm statistics are computed for evaluation
    parts: dict[str, Any] = {"devices": DEVICES, "local": local, "batching": {"size": BATCH}}
    for option in options:
        submodel |= option.submodel
        parts |= option.rounds
    if method in EXPLORED:
        submodel["table"] = rate_table_path(setting, method)
    tables = {
        "task": task_table(setting),
        "recipe": chosen.recipe,
        "split": setting.split,
        "fleet": {"devices": _fleet_devices(setting, plan.variation, chosen.full)},
        "rounds": {**parts, "submodel": submodel},
        "stop": {"time": f"{plan.rounds * STEPS * SLOT_S} s"},
        "evaluate": EVERY,
        "checkpoint": 0,
        "seed": plan.seed,
    }
    return make(tables)


def _find_option(options: Sequence[DropoutOption], name: str) -> DropoutOption:
    return next(option for option in options if name in ("", option.name))


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
