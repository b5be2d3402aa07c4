"""Checks of keys that a small simulated run cannot show: each asserts that the value reaches where it acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.errors import SettingError
from potluck.model.layer_chain import trace_layers
from potluck.report.run_folder import RunFolder
from potluck.run.initial_weights import input_spec
from potluck.run.prepared_job import prepare_job
from potluck.run.rounds_setup import RoundsSetup
from tests.every_setting.outcomes import run_outcome
from tests.every_setting.small_jobs import LINK, Tables, rounds
from tests.every_setting.submodel_cases import TABLE, VARYING

__all__ = ["CHECKS"]


def _start(folder: Path) -> None:
    """A run starts from the weights of another."""
    before = rounds("fedavg")
    potluck.simulate(before, folder=folder / "before", threads=0)
    assert run_outcome({**before, "start": str(folder / "before")}) != run_outcome(before)


def _own_samples(folder: Path) -> None:
    """The coordinator counts more of what a device declares; only live devices declare more than their shard."""
    counted = [_sample_limit(own) for own in (0, 100)]
    assert counted[1] == counted[0] + 100


def _sample_limit(own: int) -> int:
    setup = prepare_job(rounds("fedavg", own_samples=own), None, None)
    assert isinstance(setup, RoundsSetup)
    return setup.sizing.sample_limit("slow", 10**6, 0.0, 1.0).counted


# --- files that `potluck profile` and `potluck explore` wrote -------------------------------------------------------


_ONE_LAYER = [{"name": "0", "param_bytes": 8, "output_bytes": 4, "macs": 100, "forward_s": 0.01, "backward_s": 0.02}]


def _profiled(**changes: Any) -> Tables:
    """A job on a device with a profile of its own model; `changes` apply to the profile or to its first layer."""
    layers = _measured_layers()
    for key in set(changes) & set(layers[0]):
        layers[0][key] = changes.pop(key)
    device = {"name": "d", "profile": {"model": "mlp", "batch": 16, "layers": layers, **changes}, "link": LINK}
    return rounds("fedavg", job={"fleet": {"devices": [device]}})


def _measured_layers() -> list[dict[str, Any]]:
    setup = prepare_job(rounds("fedavg"), None, None)
    assert isinstance(setup, RoundsSetup)
    assert setup.module is not None
    assert setup.data is not None
    keys, chain = ("name", "param_bytes", "output_bytes", "macs"), trace_layers(setup.module, input_spec(setup.data))
    return [
        {**{key: getattr(layer, key) for key in keys}, "forward_s": 0.01, "backward_s": 0.02} for layer in chain.layers
    ]


def _replaces_flops(folder: Path) -> None:
    """A device with a profile takes the seconds that were measured."""
    device = {"name": "d", "flops": "1 MFLOP/s", "link": LINK}
    assert run_outcome(_profiled()) != run_outcome(rounds("fedavg", job={"fleet": {"devices": [device]}}))


def _acts_in_profile(key: str, value: Any) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        assert run_outcome(_profiled(**{key: value})) != run_outcome(_profiled())

    return check


def _identifies_profile(key: str, value: Any) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        with pytest.raises(SettingError, match="was made for another model"):
            run_outcome(_profiled(**{key: value}))

    return check


def _names_profile(folder: Path) -> None:
    """Whose profile it is shows where it does not fit."""
    with pytest.raises(SettingError, match=r"another model \(mine"):
        run_outcome(_profiled(model="mine", macs=7))


def _names_table(folder: Path) -> None:
    """Whose table it is shows where it does not fit."""
    table = {**TABLE, "model": "mine", "sets": ["a", "b", "c"]}
    with pytest.raises(SettingError, match=r"another model \(mine\)"):
        run_outcome(rounds("distreal", job=VARYING, submodel={"table": table}))


def _gain(folder: Path) -> None:
    """The report draws what each sub-model gained."""
    potluck.simulate(rounds("distreal", job=VARYING, submodel={"table": TABLE}), folder=folder / "run", threads=0)
    assert [entry["gain"] for entry in RunFolder(folder / "run").pareto_entries()] == [0.5, 0.8]


CHECKS: Mapping[str, Callable[[Path], None]] = {
    "start": _start,
    "rounds.own_samples": _own_samples,
    "rounds.submodel.table.model": _names_table,
    "rounds.submodel.table.entries.*.gain": _gain,
    "fleet.devices.*.profile": _replaces_flops,
    "fleet.devices.*.profile.model": _names_profile,
    "fleet.devices.*.profile.batch": _acts_in_profile("batch", 8),
    "fleet.devices.*.profile.layers": _identifies_profile("layers", _ONE_LAYER),
    "fleet.devices.*.profile.layers.*.name": _identifies_profile("name", "other"),
    "fleet.devices.*.profile.layers.*.param_bytes": _identifies_profile("param_bytes", 8),
    "fleet.devices.*.profile.layers.*.output_bytes": _identifies_profile("output_bytes", 8),
    "fleet.devices.*.profile.layers.*.macs": _identifies_profile("macs", 8),
    "fleet.devices.*.profile.layers.*.forward_s": _acts_in_profile("forward_s", 0.5),
    "fleet.devices.*.profile.layers.*.backward_s": _acts_in_profile("backward_s", 0.5),
}
