"""A device profile sets compute times in plans, simulated runs and explorations, and is saved with the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from potluck import resume, simulate
from potluck.errors import SettingError
from potluck.explore import slowest_profile
from potluck.explore.candidate_evaluator import CandidateEvaluator
from potluck.explore.exploration_run import ProfiledCost
from potluck.explore.settings import Exploration
from potluck.job import dump_job, load_job
from potluck.journal import Span, read_journal
from potluck.loops.backends import TurnIdentity
from potluck.model.model_profile import load_profile
from potluck.run.rounds_setup import RoundsSetup
from potluck.task import build_task
from tests.cli.calling import Shell

BATCH = 8
PROFILED = '[[devices]]\nname = "pi"\nprofile = "pi.json"\ncount = 2\n[[devices]]\npreset = "pi4"\n'


def _save_profile(potluck: Shell, path: Path, model: str = "job.toml") -> None:
    """A profile not proportional to the MACs: layer i takes i + 1 ms forward and 5 ms backward."""
    assert potluck("profile", model, "--batch", str(BATCH), "--out", path).code == 0
    profile = load_profile(path)
    layers = [
        msgspec.structs.replace(layer, forward_s=1e-3 * (index + 1), backward_s=5e-3)
        for index, layer in enumerate(profile.layers)
    ]
    msgspec.structs.replace(profile, layers=tuple(layers)).save(path)


@pytest.fixture
def profiled(potluck: Shell, folder: Path) -> Path:
    (folder / "fleet.toml").write_text(PROFILED)
    _save_profile(potluck, folder / "pi.json")
    return folder


def test_layer_times_are_the_measured_ones_scaled_to_the_batch(profiled: Path) -> None:
    job = load_job(profiled / "job.toml", ["timing_only=true"])
    setup = RoundsSetup.from_job(job, None, None)
    for samples in (BATCH, 3 * BATCH):
        costs = setup.turn_costs(TurnIdentity("pi-1", 0, 0))
        expected = [1e-3 * (layer + 1) * samples / BATCH for layer in range(costs.layer_count)]
        assert [costs.forward_s(layer, samples) for layer in range(costs.layer_count)] == pytest.approx(expected)
        backward = [costs.backward_s(layer, samples) for layer in range(costs.layer_count)]
        assert backward == pytest.approx([5e-3 * samples / BATCH] * costs.layer_count)
        assert setup.whole_model_costs("pi-0").step_s(samples) == pytest.approx(sum(expected) + sum(backward))
    assert setup.turn_costs(TurnIdentity("pi4", 0, 0)).flops == pytest.approx(12e9)
    assert setup.sizing.expected_turn_s("pi-0") > setup.sizing.expected_turn_s("pi4")


def test_sub_models_scale_every_layer_with_its_macs(profiled: Path) -> None:
    overrides = ["recipe=heterofl", "task.options.hidden=[16, 16]", "timing_only=true"]
    with pytest.raises(SettingError, match=r"fleet.devices\[0\].profile: was made for another model"):
        RoundsSetup.from_job(load_job(profiled / "job.toml", overrides), None, None)
    overrides.remove("task.options.hidden=[16, 16]")
    setup = RoundsSetup.from_job(load_job(profiled / "job.toml", overrides), None, None)
    full, narrow = setup.whole_model_costs("pi-0"), setup.turn_costs(TurnIdentity("pi-0", 0, 0))
    assert narrow.layer_count == full.layer_count
    assert 0 < narrow.step_s(1) < full.step_s(1)
    nominal = setup.sizing._submodel_costs(setup.extractor.select_submodel(TurnIdentity("pi-0", 0, 0)))  # type: ignore[union-attr, arg-type]
    for layer in range(full.layer_count):
        kept_fraction = nominal.forward_flop[layer] / setup.costs.forward_flop[layer]
        assert narrow.forward_s(layer, 1) == pytest.approx(kept_fraction * full.forward_s(layer, 1))


@pytest.mark.parametrize("recipe", ["sync-sgd", "fedavg"])
def test_the_planned_time_equals_the_simulated_time(potluck: Shell, profiled: Path, recipe: str) -> None:
    (profiled / "fleet.toml").write_text(PROFILED.partition("count")[0])
    recipe = f"recipe={recipe}"
    (row,) = potluck("plan", "job.toml", "--json", "--set", recipe).json["devices"]
    run = potluck("run", "job.toml", "--timing-only", "--json", "--set", "stop.rounds=50", "--set", recipe).json
    assert run["time_s"] / run["rounds"] == pytest.approx(row["round_s"]["sequential"], rel=0.01)


def test_devices_with_and_without_a_profile_are_planned_separately(potluck: Shell, profiled: Path) -> None:
    rows = potluck("plan", "job.toml", "--json").json["devices"]
    assert [row["devices"] for row in rows] == [["pi-0", "pi-1"], ["pi4"]]


def test_a_resumed_run_does_not_need_the_profile_file(profiled: Path) -> None:
    def spans(folder: Path) -> list[Any]:
        return [record for record in read_journal(folder / "journal.jsonl") if isinstance(record, Span)]

    job = load_job(profiled / "job.toml", ["stop.rounds=4", "checkpoint=2"])
    simulate(job, folder=profiled / "whole", threads=0)
    simulate(load_job(profiled / "job.toml", ["stop.rounds=2"]), folder=profiled / "part", threads=0)
    (profiled / "pi.json").unlink()
    resume(profiled / "part", overrides=["stop.rounds=4"], threads=0)
    assert spans(profiled / "part") == spans(profiled / "whole")
    copy = profiled / "elsewhere.toml"
    copy.write_text(dump_job(job))
    assert load_job(copy) == job


def test_a_pipeline_is_planned_and_run_with_measured_times(potluck: Shell, profiled: Path) -> None:
    arguments = ("--set", "recipe=ftpipehd", "--json")
    plan = potluck("plan", "job.toml", *arguments).json
    assert potluck("profile", "job.toml", "--batch", str(BATCH), "--out", profiled / "pi.json").code == 0
    assert potluck("plan", "job.toml", *arguments).json != plan
    assert potluck("run", "job.toml", "--timing-only", *arguments).code == 0


def test_a_profile_of_another_model_is_refused_in_one_line(potluck: Shell, profiled: Path) -> None:
    _save_profile(potluck, profiled / "pi.json", "lenet")
    for command in ("plan", "run", "explore"):
        result = potluck(command, "job.toml")
        assert result.code == 2
        assert result.err.count("\n") == 1
        assert "profile: was made for another model (lenet" in result.err


@pytest.mark.parametrize(
    ("fleet", "problem"),
    [
        ('[[devices]]\nname = "pi"\nprofile = "none.json"\n', "cannot read the profile"),
        ('[[devices]]\nname = "pi"\nprofile = "job.toml"\n', "is not a profile"),
        ('[[devices]]\nname = "pi"\nprofile = "pi.json"\nflops = "1 GFLOP/s"\n', "not both"),
    ],
)
def test_a_bad_profile_is_refused(potluck: Shell, profiled: Path, fleet: str, problem: str) -> None:
    (profiled / "fleet.toml").write_text(fleet)
    result = potluck("plan", "job.toml")
    assert result.code == 2
    assert problem in result.err
    assert "fleet.devices[0]" in result.err


def test_task_costs_and_a_profile_are_mutually_exclusive(potluck: Shell, profiled: Path) -> None:
    assert "cannot be combined with `task.costs`" in potluck("plan", "job.toml", "--set", "task.costs=lenet").err


def test_exploration_weighs_layers_by_the_slowest_profile(profiled: Path) -> None:
    job = load_job(profiled / "job.toml")
    profile = slowest_profile(job)
    assert profile is not None
    settings = Exploration(batches=1, warmup=0, held_out=10)
    slimmable = CandidateEvaluator(build_task(job.task, None), settings).slimmable
    cost = ProfiledCost(slimmable, profile)
    half = tuple(max(1, count // 2) for count in slimmable.full_counts)
    assert cost.cost_fraction(slimmable.full_counts) == pytest.approx(1.0)
    assert cost.cost_fraction(half) == pytest.approx(0.5)


def test_an_explored_table_has_costs_in_seconds(potluck: Shell, profiled: Path) -> None:
    options = ("population=4", "generations=1", "uniform=2", "batches=1", "warmup=1", "repeats=1", "processes=0")
    arguments = [argument for option in options for argument in ("--with", option)]
    assert potluck("explore", "job.toml", "--json", "--out", profiled / "t.json", *arguments).code == 0
    assert '"cost": "seconds"' in (profiled / "t.json").read_text()
