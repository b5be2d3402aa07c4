"""Sub-models in whole runs: what is trained, what it costs, what does not change, faults and resuming."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import potluck
from potluck.data import Dataset, from_tensors
from potluck.errors import SettingError
from potluck.fleet.traces import ConstantTrace, PiecewiseTrace, RandomWalkTrace
from potluck.job import load_job, make
from potluck.journal import Scalar, Span, read_journal
from potluck.model.submodel_interface import SubmodelChoice
from potluck.model.submodels.slimmable_model import trace_slimmable
from potluck.model.submodels.submodel_parts import Submodel
from potluck.model.submodels.width_extractor import WidthExtractor, expected_speed_fraction
from potluck.settings import decode_settings
from potluck.units import Seconds
from tests.simulation.runs import journal, rounds
from tests.simulation.test_fault_sweep import random_job

KINDS = ["filter-dropout", "uniform-dropout", "federated-dropout", "heterofl", "fedrolex", "fjord"]
CHOOSING = ["filter-dropout", "uniform-dropout", "fjord"]
WAVES = {"kind": "random-walk", "low": 0.2, "step": 0.8, "every": "100 ms"}


def small_net(norm: bool = True) -> nn.Module:
    torch.manual_seed(4)
    norms = [nn.BatchNorm2d(8)] if norm else []
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), *norms, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 16, 3),
    )  # fmt: skip


def small_data() -> Dataset:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(120, 1, 6, 6, generator=generator)
    labels = torch.randint(0, 3, (120,), generator=generator)
    return from_tensors(images, labels, images[:30], labels[:30], name="small", classes=("a", "b", "c"))


def make_job(kind: Any, devices: list[dict[str, Any]], **more: Any) -> potluck.Job:
    batches = {"batching": {"size": 10}, "local": {"steps": 4, "lr": 0.05, "momentum": 0.5}, **more.pop("rounds", {})}
    tables: dict[str, Any] = {
        "task": "tests.simulation.test_submodels:unused",
        "fleet": {"devices": devices},
        "stop": {"rounds": 5},
        "rounds": {**batches, "submodel": kind},
    }
    return make({**tables, **more})


def uneven_devices() -> list[dict[str, Any]]:
    """One device that can afford the full network and two that cannot, whose speed changes while they train."""
    slow = {"name": "slow", "flops": "2 MFLOP/s", "count": 2, "link": "lan", "speed": WAVES}
    return [{"name": "fast", "flops": "4 MFLOP/s", "link": "lan"}, slow]


def equal_devices() -> list[dict[str, Any]]:
    return [{"name": "pi", "flops": "4 MFLOP/s", "count": 3, "link": "lan"}]


def run(job: potluck.Job, folder: Path | None = None, net: nn.Module | None = None) -> dict[str, torch.Tensor]:
    result = potluck.simulate(job, task=potluck.Task(net or small_net(), small_data()), folder=folder, threads=0)
    assert result.status == "done", result.reason
    assert result.module is not None
    return result.module.state_dict()


def trained_fractions(folder: Path) -> list[Scalar]:
    scalars = [record for record in read_journal(folder / "journal.jsonl") if isinstance(record, Scalar)]
    return [record for record in scalars if record.name == "share"]


# --- rate 0 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fjord"])
def test_with_enough_capacity_everywhere_it_is_plain_fedavg_bit_for_bit(kind: str) -> None:
    """FjORD draws smaller widths even then, and a static norm trains by another rule."""
    table = {"kind": kind} if kind not in ("heterofl", "fedrolex") else {"kind": kind, "static": False}
    plain, dropped = run(make_job("whole", equal_devices())), run(make_job(table, equal_devices()))
    for name, tensor in plain.items():
        assert torch.equal(tensor, dropped[name]), name


# --- budgets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CHOOSING)
def test_no_mini_batch_costs_more_than_the_device_can_currently_afford(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    asked: list[tuple[float, float]] = []
    choose = WidthExtractor.choose_submodel

    def record_choice(self: WidthExtractor, turn: Any, affordable: float, draws: np.random.Generator) -> SubmodelChoice:
        choice = choose(self, turn, affordable, draws)
        if affordable > 0:  # not the smallest one, which is tried before the run
            asked.append((affordable, choice.cost_fraction))
        return choice

    monkeypatch.setattr(WidthExtractor, "choose_submodel", record_choice)
    part = {"kind": kind, "capacity": "least"} if kind == "fjord" else kind
    run(make_job(part, uneven_devices()), tmp_path / "run")
    smallest = min(fraction for _, fraction in asked)
    assert len(asked) == 5 * 3 * 4
    assert all(fraction <= affordable or fraction == smallest for affordable, fraction in asked)
    assert len({round(affordable, 9) for affordable, _ in asked}) > 5, "the speed did not change"
    recorded = trained_fractions(tmp_path / "run")
    assert len(recorded) == 5 * 3
    assert np.mean([scalar.value for scalar in recorded]) == pytest.approx(np.mean([fraction for _, fraction in asked]))


@pytest.mark.parametrize("kind", ["federated-dropout", "heterofl", "fedrolex"])
def test_a_fraction_fixed_for_a_round_is_recorded_too(tmp_path: Path, kind: str) -> None:
    run(make_job(kind, uneven_devices()), tmp_path / "run")
    recorded = trained_fractions(tmp_path / "run")
    assert len(recorded) == 5 * 3
    scalars = {scalar.node: scalar for scalar in recorded}
    assert scalars["fast"].value == scalars["fast"].fields["least"] == 1.0
    net = trace_slimmable(small_net(), (1, 6, 6))
    sizes = {step.cost_fraction for step in decode_settings(kind, Submodel).create_sampler(net, 0).choices}
    assert scalars["slow-0"].fields["least"] == scalars["slow-0"].fields["most"]
    assert scalars["slow-0"].fields["most"] in {size for size in sizes if size <= 0.5 * 0.6}
    assert scalars["slow-0"].value == pytest.approx(scalars["slow-0"].fields["most"])


@pytest.mark.parametrize("timing_only", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_a_small_network_is_recorded_as_a_fraction_of_the_full_one(
    tmp_path: Path, static: bool, timing_only: bool
) -> None:
    job = make_job({"kind": "small", "share": 0.4, "static": static}, equal_devices(), timing_only=timing_only)
    potluck.simulate(job, task=potluck.Task(small_net(), small_data()), folder=tmp_path / "run", threads=0)
    net = trace_slimmable(small_net(), (1, 6, 6))
    part = decode_settings({"kind": "small", "share": 0.4}, Submodel)
    expected = net.macs_fraction(part.largest_counts(net))  # type: ignore[attr-defined]
    recorded = trained_fractions(tmp_path / "run")
    assert len(recorded) == 5 * 3
    assert [scalar.value for scalar in recorded] == pytest.approx([expected] * 15)
    assert expected <= 0.4


def test_nothing_is_recorded_if_every_device_trains_the_full_network(tmp_path: Path) -> None:
    run(make_job("whole", uneven_devices()), tmp_path / "run")
    assert trained_fractions(tmp_path / "run") == []


def test_turn_time_follows_the_chosen_submodel(tmp_path: Path) -> None:
    """A device at half the speed takes as long as the fast one, because it trains half as much."""
    devices = [{"name": name, "flops": flops, "link": "lan"} for name, flops in (("a", 4e6), ("b", 2e6))]
    run(make_job("uniform-dropout", devices), tmp_path / "run")
    spans = [record for record in read_journal(tmp_path / "run" / "journal.jsonl") if isinstance(record, Span)]
    busy = {
        name: sum(span.end - span.start for span in spans if (span.node, span.name) == (name, "compute"))
        for name in ("a", "b")
    }
    by_name = {scalar.node: scalar for scalar in trained_fractions(tmp_path / "run")}
    assert by_name["a"].value == 1.0
    assert 0.3 < by_name["b"].value <= 0.5
    assert busy["b"] == pytest.approx(busy["a"] * by_name["b"].value * 2)


def test_the_expected_capacity_of_a_changing_speed() -> None:
    wave = PiecewiseTrace(at=(Seconds(0), Seconds(3)), levels=(1.0, 0.2), repeat=Seconds(4))
    assert expected_speed_fraction(wave, "nominal") == 1.0
    assert expected_speed_fraction(wave, "mean") == pytest.approx(0.8)
    assert expected_speed_fraction(wave, "least") == 0.2
    assert expected_speed_fraction(PiecewiseTrace(at=(Seconds(0), Seconds(3)), levels=(1.0, 0.2)), "mean") == 0.2
    assert (
        expected_speed_fraction(ConstantTrace(level=0.7), "mean")
        == expected_speed_fraction(ConstantTrace(level=0.7), "least")
        == 0.7
    )
    assert expected_speed_fraction(RandomWalkTrace(low=0.3, high=1.0, step=0.7), "mean") == pytest.approx(
        0.65, abs=0.02
    )


def test_a_choice_made_ahead_follows_the_capacity_that_is_expected(tmp_path: Path) -> None:
    """Planned by its lowest speed, a device never trains longer than the fast one; by its nominal speed it does."""
    longest = {}
    for capacity in ("nominal", "mean", "least"):
        folder = tmp_path / capacity
        run(make_job({"kind": "federated-dropout", "capacity": capacity}, uneven_devices()), folder)
        longest[capacity] = max(span.end - span.start for span in rounds(folder))
    assert longest["least"] <= longest["mean"] <= longest["nominal"]
    assert longest["least"] < longest["nominal"]


# --- untrained weights ------------------------------------------------------------------------------------------------


def test_weights_that_no_device_trains_do_not_move_with_server_momentum() -> None:
    """All devices can afford at most the leading half: weights outside it, and the server's momentum, do not change."""
    fast = {"name": "fast", "flops": "4 MFLOP/s", "link": "lan", "speed": {"kind": "constant", "level": 0.3}}
    net = small_net(norm=False)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    server = {"kind": "sgd", "lr": 1.0, "momentum": 0.9, "weight_decay": 0.01}
    after = run(make_job("heterofl", [fast], rounds={"server": server}), net=net)
    moved = {name: before[name] != after[name] for name in before}
    assert moved["0.weight"][:4].any()
    assert not moved["0.weight"][4:].any()
    assert moved["2.weight"][:4, :4].any()
    assert not moved["2.weight"][4:].any()
    assert not moved["2.weight"][:, 4:].any()
    assert not moved["5.weight"][:, 64:].any()
    assert moved["5.bias"].all()


def test_weights_trained_by_one_device_are_averaged_over_that_device() -> None:
    """Only one of two devices can afford the last filters: averaged over both, they would move half as far."""
    devices = [{"name": "fast", "flops": "4 MFLOP/s", "link": "lan"}, {"name": "slow", "flops": "1e6", "link": "lan"}]
    once = {"stop": {"rounds": 1}, "rounds": {"local": {"steps": 1, "lr": 0.05}}}
    start = small_net(norm=False).state_dict()["0.weight"]
    kind = {"kind": "filter-dropout", "units": "leading", "scaled": False}
    everyone, trained = (
        run(make_job({**kind, "mean": mean}, devices, **once), net=small_net(norm=False))["0.weight"] - start
        for mean in ("all", "trained")
    )
    assert trained[7].any()
    torch.testing.assert_close(trained[7], 2 * everyone[7])
    torch.testing.assert_close(trained[0], everyone[0])


def test_averaging_over_trainers_refuses_a_codec_that_leaves_out_entries() -> None:
    kind = {"kind": "filter-dropout", "units": "leading", "mean": "trained"}
    with pytest.raises(SettingError, match="leaves out entries"):
        run(make_job(kind, uneven_devices(), rounds={"codec": "top-k"}))


def test_only_the_sub_model_is_transferred() -> None:
    full, half = (
        potluck.simulate(
            make_job(kind, uneven_devices()), task=potluck.Task(small_net(), small_data()), threads=0
        ).summary["bytes"]
        for kind in ("whole", "heterofl")
    )
    assert half < 0.6 * full


# --- faults and resuming ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["distreal", "heterofl", "fjord", "fedrolex", "federated-dropout", "small"])
def test_every_run_with_faults_ends_and_counts_every_update_once(recipe: str) -> None:
    for seed in range(3):
        with tempfile.TemporaryDirectory() as directory:
            result = potluck.simulate(random_job(recipe, seed), folder=Path(directory) / "run")
            committed = rounds(Path(directory) / "run")
        turns = [turn for span in committed for _, turn in span.fields["devices"]]
        assert len(turns) == len(set(turns)), seed
        assert result.status == "done" or "no progress" in result.reason, seed


def faulty_fleet() -> dict[str, Any]:
    faults = [
        {"kind": "crash", "device": "slow-0", "every": "700 ms", "restart": "100 ms"},
        {"kind": "lose", "device": "*", "at": "0 s", "share": 0.1, "lasting": "1 min"},
    ]
    return {"devices": uneven_devices(), "faults": faults, "lease": "300 ms"}


@pytest.mark.parametrize("kind", ["filter-dropout", "heterofl", "fjord", "federated-dropout"])
def test_a_resumed_run_with_faults_equals_the_uninterrupted_one(tmp_path: Path, kind: str) -> None:
    more = {"fleet": faulty_fleet(), "stop": {"rounds": 6}, "checkpoint": 3, "rounds": {"retry": "200 ms"}}
    task = potluck.Task(small_net(), small_data())
    uninterrupted = potluck.simulate(make_job(kind, [], **more), task=task, folder=tmp_path / "whole", threads=0)
    task = potluck.Task(small_net(), small_data())
    stopped = {**more, "stop": {"rounds": 3}}
    potluck.simulate(make_job(kind, [], **stopped), task=task, folder=tmp_path / "parts", threads=0)
    task = potluck.Task(small_net(), small_data())
    parts = potluck.resume(tmp_path / "parts", overrides=["stop.rounds=6"], task=task, threads=0)
    assert uninterrupted.module is not None
    assert parts.module is not None
    for name, tensor in uninterrupted.module.state_dict().items():
        assert torch.equal(tensor, parts.module.state_dict()[name]), name
    assert uninterrupted.summary["time_s"] == parts.summary["time_s"]


@pytest.mark.parametrize("kind", ["filter-dropout", "fjord"])
def test_the_same_seed_gives_the_same_journal(tmp_path: Path, kind: str) -> None:
    for name in ("one", "other"):
        run(make_job(kind, uneven_devices()), tmp_path / name)
    assert journal(tmp_path / "one") == journal(tmp_path / "other")


def test_the_example_trains_within_its_slots(tmp_path: Path) -> None:
    job = load_job(Path(__file__).parents[2] / "examples/distreal/job.toml", ["stop.rounds=3", "evaluate=0"])
    result = potluck.simulate(job, folder=tmp_path / "run", threads=0)
    assert result.status == "done"
    assert {scalar.fields["most"] <= 1.0 for scalar in trained_fractions(tmp_path / "run")} == {True}
    assert len({round(scalar.value, 6) for scalar in trained_fractions(tmp_path / "run")}) > 5


# --- the small network ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["whole", "small"])
def test_norms_without_statistics_do_not_change_training(kind: str) -> None:
    """The weights are those of plain training; only the norms' statistics are not kept."""
    plain, static = (run(make_job({"kind": kind, "static": static}, equal_devices())) for static in (False, True))
    for name, tensor in plain.items():
        assert torch.equal(tensor, static[name]) is not name.startswith(("1.running", "1.num")), name


@pytest.mark.parametrize("kind", ["whole", "heterofl", "filter-dropout"])
def test_the_saved_model_has_statistics_and_the_reported_score(kind: str) -> None:
    job = make_job({"kind": kind, "static": True}, uneven_devices())
    data = small_data()
    result = potluck.simulate(job, task=potluck.Task(small_net(), data), threads=0)
    assert result.module is not None
    assert not torch.equal(result.module.state_dict()["1.running_mean"], torch.zeros(8))
    outputs = result.module.eval()(data.test.x)
    right = (outputs.argmax(1) == data.test.y).float().mean()
    assert float(right) == pytest.approx(result.summary["accuracy"])


def test_every_device_trains_the_small_network_and_the_run_returns_it() -> None:
    after = run(make_job({"kind": "small", "share": 0.4}, equal_devices()))
    width = after["0.weight"].shape[0]
    model = trace_slimmable(small_net(), (1, 6, 6))
    assert model.macs_fraction((width, after["3.weight"].shape[0])) <= 0.4
    assert after["3.weight"].shape[1] == width == after["1.running_mean"].shape[0]
