"""Class groups in whole runs: merging, unchanged weights, faults and resuming."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

import potluck
from potluck.data import Dataset, Samples, from_tensors, from_torch
from potluck.errors import SettingError
from potluck.job import load_job as load_job
from potluck.job import make
from potluck.journal import Scalar, Span, read_journal
from potluck.loops.backends import TurnIdentity
from potluck.model.decoupled import (
    Contribution,
    GroupedNetwork,
    GroupLoss,
    channel_graph,
    expected_class_counts,
    load,
    merge_contributions,
    trace_network,
)
from potluck.model.decoupled.group_extractor import GroupExtractor
from potluck.model.layer_chain import trace_layers
from potluck.planning.groups import DeviceBudget, choose_groups, full_model_cost, group_cost
from potluck.run.rounds_setup import RoundsSetup
from tests.model.decoupled.networks import SHAPE, fit, samples, small
from tests.simulation.runs import journal, rounds

HALVES = {"kind": "class-groups", "groups": 2, "depth": 1}
THIRDS = {"kind": "class-groups", "groups": 3, "depth": 1}


def data(number: int = 120) -> Dataset:
    inputs, labels = samples(number, seed=1)
    tests = samples(60, seed=2)
    return from_tensors(inputs, labels, *tests, name="six", classes=tuple("abcdef"))


def make_job(submodel: Any, devices: int | list[dict[str, Any]], **more: Any) -> potluck.Job:
    fleet = [{"name": "pi", "flops": "40 MFLOP/s", "count": devices}] if isinstance(devices, int) else devices
    local = {"kind": "sgd", "lr": 0.05, "momentum": 0.5}
    tables: dict[str, Any] = {
        "task": "tests.simulation.test_decoupled:unused",
        "fleet": {"devices": [{"link": "lan", **device} for device in fleet], **more.pop("fleet", {})},
        "stop": {"rounds": 4},
        "rounds": {"batching": {"size": 20}, "local": local, "submodel": submodel, **more.pop("rounds", {})},
    }
    return make({**tables, **more})


class StreamedSamples(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from zip(*samples(60), strict=True)


def task(norm: bool = False) -> potluck.Task:
    return potluck.Task(small(norm=norm), data())


def run(job: potluck.Job, folder: Path | None = None, norm: bool = False) -> tuple[GroupedNetwork, dict[str, Any]]:
    result = potluck.simulate(job, task=task(norm), folder=folder, threads=0)
    assert result.status == "done", result.reason
    assert isinstance(result.module, GroupedNetwork)
    return result.module, result.summary


def grouped(job: potluck.Job, norm: bool = False) -> GroupedNetwork:
    """The network before training."""
    module = RoundsSetup.from_job(job, task(norm), None).module
    assert isinstance(module, GroupedNetwork)
    return module


def max_difference(first: GroupedNetwork, second: GroupedNetwork, name: str) -> float:
    return float((first.state_dict()[name] - second.state_dict()[name]).abs().max())


def test_the_fraction_of_the_network_that_each_device_trains_is_recorded(tmp_path: Path) -> None:
    job = make_job(HALVES, 2)
    run(job, tmp_path / "run")
    extractor = RoundsSetup.from_job(job, task(), None).extractor
    assert isinstance(extractor, GroupExtractor)
    total_macs = sum(layer.macs for layer in trace_layers(grouped(job), SHAPE).layers)
    recorded = [
        record
        for record in read_journal(tmp_path / "run" / "journal.jsonl")
        if isinstance(record, Scalar) and record.name == "share"
    ]
    assert len(recorded) == 4 * 2
    for scalar in recorded:
        part = trace_layers(grouped(job).build_submodel(extractor.device_groups[scalar.node]), SHAPE)
        assert scalar.value == pytest.approx(sum(layer.macs for layer in part.layers) / total_macs)
        assert 0.3 < scalar.value < 1


# --- equal to central training ----------------------------------------------------------------------------------------


def test_all_groups_on_one_device_are_the_grouped_network_trained_centrally() -> None:
    everything = {"batching": {"size": 120}}
    job = make_job(
        {**THIRDS, "held": {"pi": [0, 1, 2]}}, 1, rounds={**everything, "local": {"kind": "sgd", "lr": 0.05}}
    )
    module, summary = run(job)
    central = grouped(job).build_submodel([0, 1, 2])
    train = data().train
    loss = GroupLoss(central.own_classes, 6, expected_class_counts(train.labels, range(6)))
    fit(central, loss, train.batch(np.arange(120)), 4, 0.05, momentum=0.0)
    for name, tensor in central.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
    assert summary["untrained_groups"] == []
    assert summary["accuracy"] is not None


def test_groups_on_a_frozen_trunk_learn_the_same_together_and_separately() -> None:
    """Both devices have all data, so that each one's negatives are the other's classes."""
    settings = {"batching": {"size": 120}, "local": {"kind": "sgd", "lr": 0.05}}
    frozen = {**HALVES, "trunk": "frozen"}
    separate, _ = run(make_job({**frozen, "held": {"pi-0": [0], "pi-1": [1]}}, 2, split="everything", rounds=settings))
    together, _ = run(make_job({**frozen, "held": {"pi": [0, 1]}}, 1, rounds=settings))
    for name, tensor in together.state_dict().items():
        torch.testing.assert_close(separate.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


def test_a_frozen_trunk_does_not_change_and_an_averaged_one_does() -> None:
    for trunk in ("frozen", "averaged"):
        job = make_job({**HALVES, "trunk": trunk}, 2)
        moved = max_difference(run(job)[0], grouped(job), "trunk.0.weight")
        assert (moved > 0) == (trunk == "averaged")


def test_a_trunk_can_be_trained_first_and_then_frozen() -> None:
    brief = potluck.simulate(make_job("whole", 2, stop={"rounds": 2}), task=task(), threads=0)
    assert brief.module is not None
    pretrained = brief.module.state_dict()["0.weight"].clone()
    assert not torch.equal(pretrained, small(norm=False).state_dict()["0.weight"])
    frozen = make_job({**HALVES, "trunk": "frozen"}, 2)
    result = potluck.simulate(frozen, task=potluck.Task(brief.module, data()), threads=0)
    assert isinstance(result.module, GroupedNetwork)
    assert torch.equal(result.module.state_dict()["trunk.0.weight"], pretrained)


def test_one_long_round_is_merged_once_at_the_end() -> None:
    """Each device trains its submodel for several epochs; the result is their merged groups."""
    assignment = {"pi-0": [0], "pi-1": [1], "pi-2": [2], "pi-3": [0]}
    local = {"local": {"kind": "sgd", "lr": 0.05, "epochs": 4}}
    once: dict[str, Any] = {"split": "everything", "stop": {"rounds": 1}, "rounds": local}
    job = make_job({**THIRDS, "held": assignment}, 4, **once)
    module, summary = run(job)
    assert summary["samples"] == 4 * 4 * 80  # own classes and as many others, for four epochs
    given = []
    for device, (group,) in assignment.items():
        alone, _ = run(
            make_job({**THIRDS, "held": {device: [group]}}, [{"name": device, "flops": "40 MFLOP/s"}], **once)
        )
        given.append(Contribution(device, alone.state_dict(), {group: 40}))
    state, account = merge_contributions(grouped(job), given)
    assert account.trained == {0: {"pi-0": 40, "pi-3": 40}, 1: {"pi-1": 40}, 2: {"pi-2": 40}}
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)
    assert max_difference(module, grouped(job), "trunk.0.weight") > 1e-3


# --- assignment -------------------------------------------------------------------------------------------------------


def test_a_group_that_no_device_holds_is_reported_and_unchanged(tmp_path: Path) -> None:
    job = make_job({**THIRDS, "held": {"pi-0": [0], "pi-1": [2, 0]}}, 2)
    module, summary = run(job, tmp_path / "run")
    assert summary["untrained_groups"] == [1]
    assert module.untrained_groups() == (1,)
    before = grouped(job).state_dict()
    for name, tensor in module.state_dict().items():
        if name.startswith("groups.1."):
            assert torch.equal(tensor, before[name]), name
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["untrained_groups"] == [1]
    list(read_journal(tmp_path / "run" / "journal.jsonl"))  # the loss is infinite, the journal is not


def test_a_device_that_leaves_loses_only_its_own_group() -> None:
    """It dies in the middle of the third round; what it trained before is kept, and the others continue."""
    complete, before = run(make_job(THIRDS, 3, stop={"rounds": 2}))
    faults = [{"kind": "crash", "device": "pi-1", "at": before["time_s"] + 1e-4}]
    left, summary = run(make_job(THIRDS, 3, stop={"rounds": 5}, fleet={"faults": faults}))
    assert summary["untrained_groups"] == []
    assert max_difference(left, complete, "groups.1.stages.2.weight") == 0
    assert max_difference(left, complete, "groups.0.stages.2.weight") > 0
    assert max_difference(left, complete, "groups.2.stages.2.weight") > 0


def test_uneven_devices_with_overlapping_groups_learn(tmp_path: Path) -> None:
    fleet: list[dict[str, Any]] = [
        {"name": "fast", "flops": "400 MFLOP/s"},
        {"name": "slow", "flops": "4 MFLOP/s", "count": 2},
    ]
    assignment = {"fast": [0, 1, 2], "slow-0": [1], "slow-1": [2, 0]}
    module, summary = run(
        make_job({**THIRDS, "held": assignment}, fleet, split="everything", stop={"rounds": 12}, evaluate=0),
        tmp_path / "run",
        norm=True,
    )
    assert summary["accuracy"] > 0.8
    loaded = load(tmp_path / "run" / "assembled.safetensors")
    inputs, _ = data().test.batch(np.arange(60))
    assert torch.equal(loaded(inputs), module.eval()(inputs))


@pytest.mark.parametrize(
    "submodel",
    [
        {**THIRDS, "held": {"pi-0": [0, 2]}},
        {**THIRDS, "held": {"pi-1": [1, 0], "pi-3": [0]}},
        {**THIRDS, "groups": [[5], [0, 2, 4], [1, 3]], "held": {"pi-2": [0, 1, 2]}},
        {**THIRDS, "alike": True},
        {**HALVES, "alike": True, "held": {"pi-3": [1]}},
    ],
)
def test_a_device_has_the_samples_of_the_groups_that_it_trains(submodel: Any) -> None:
    split = {"kind": "class-groups", "rest": 0.5}
    setup = RoundsSetup.from_job(
        make_job(submodel, 4, split=split), potluck.Task(small(norm=False), paired_classes()), None
    )
    extractor, labels = setup.extractor, paired_classes().train.labels
    assert isinstance(extractor, GroupExtractor)
    explicit = submodel.get("held", {})
    for device, shard in setup.shards.items():
        assert extractor.device_groups[device] == tuple(sorted(explicit.get(device, extractor.device_groups[device])))
        own_class = np.isin(labels[shard], extractor.device_classes(device))
        assert set(labels[shard][own_class]) == set(extractor.device_classes(device))
        assert (~own_class).sum() == min(
            round(0.5 * own_class.sum()), (~np.isin(labels, extractor.device_classes(device))).sum()
        )
    trained = [
        shard[np.isin(labels[shard], extractor.device_classes(device))] for device, shard in setup.shards.items()
    ]
    assert len(np.unique(np.concatenate(trained))) == len(labels)  # all groups are held, and all of their samples
    if submodel.get("alike"):
        assert any(own_class[:1] + own_class[-1:] == (0, 5) for own_class in extractor.grouped.spec.groups)


def paired_classes() -> Dataset:
    """Classes 0 and 5 are similar, as are 1 and 4, and 2 and 3."""
    inputs, labels = samples(240, seed=1)
    base = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(5))
    inputs = 0.1 * inputs + base[torch.minimum(labels, 5 - labels)]
    return from_tensors(inputs, labels, inputs[:6], labels[:6], name="pairs", classes=tuple("abcdef"))


def test_whole_networks_can_have_the_same_samples() -> None:
    """So that FedAvg can be compared on the same data as `decoupled`."""
    assignment = {"pi-0": [0, 2], "pi-2": [1]}
    parts = RoundsSetup.from_job(
        make_job({**THIRDS, "held": assignment}, 3, split={"kind": "class-groups"}), task(), None
    )
    split = {"kind": "class-groups", "groups": 3, "held": assignment}
    full = RoundsSetup.from_job(make_job("whole", 3, split=split), task(), None)
    assert all(np.array_equal(parts.shards[name], shard) for name, shard in full.shards.items())


def test_a_group_is_weighted_by_the_samples_of_its_own_classes() -> None:
    assignment = {"pi-0": [0, 1], "pi-1": [1]}
    setup = RoundsSetup.from_job(make_job({**HALVES, "held": assignment}, 2, split={"kind": "power-law"}), task(), None)
    extractor, labels = setup.extractor, data().train.labels
    assert isinstance(extractor, GroupExtractor)
    both, one = (
        extractor.select_submodel(TurnIdentity("pi-0", 0, 0)),
        extractor.select_submodel(TurnIdentity("pi-1", 0, 0)),
    )
    own_samples = [int(np.isin(labels[setup.shards["pi-0"]], group).sum()) for group in extractor.grouped.spec.groups]
    assert [group_weight.weight_fraction for group_weight in both.group_weights] == [
        1.0,
        own_samples[0] / sum(own_samples),
        own_samples[1] / sum(own_samples),
    ]
    assert [group_weight.weight_fraction for group_weight in one.group_weights] == [1.0, 1.0]


def test_a_submodel_has_the_servers_layers_and_costs_only_its_own() -> None:
    setup = RoundsSetup.from_job(make_job(THIRDS, 3), task(norm=True), None)
    assert isinstance(setup.extractor, GroupExtractor)
    part = setup.extractor.select_submodel(TurnIdentity("pi-1", 0, 0))
    paid = group_cost(setup.extractor.grouped.graph, (2, 2, 2), 1, (1,))
    assert part.layout.layer_count == setup.layout.layer_count
    assert sum(part.macs) == paid.macs
    assert sum(part.layout.splits) == setup.layout.layer_count
    assert len(set(part.params.tolist())) == part.layout.param_bounds[-1]


def test_half_of_each_batch_is_from_the_devices_own_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    plain = Samples.batch

    def seen(self: Samples, indices: Any, rng: Any = None) -> Any:
        drawn.append(np.asarray(indices))
        return plain(self, indices, rng)

    job = make_job({**THIRDS, "held": {"pi": [1]}}, 1, stop={"rounds": 3}, evaluate=0)
    monkeypatch.setattr(Samples, "batch", seen)
    potluck.simulate(job, task=task(), threads=0)
    turns = [batch for batch in drawn if len(batch) == 20]
    labels = data().train.labels[np.concatenate(turns)]
    assert len(labels) == 3 * 80
    assert np.isin(labels, (2, 3)).sum() == 3 * 40
    others = [frozenset(batch.tolist()) for batch in np.array_split(np.concatenate(turns), 3)]
    assert len(set(others)) == 3  # drawn again


def test_no_device_trains_on_calibration_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    plain = Samples.batch

    def seen(self: Samples, indices: Any, rng: Any = None) -> Any:
        drawn.append(np.asarray(indices))
        return plain(self, indices, rng)

    monkeypatch.setattr(Samples, "batch", seen)
    for held_out in (True, False):
        drawn.clear()
        submodel = {**THIRDS, "held": {"pi-0": [0, 1, 2]}, "calibration": 37, "held_out": held_out}
        fixed = make_job(submodel, 2, split="everything", evaluate=0, stop={"rounds": 2})
        potluck.simulate(fixed, task=task(), threads=0)
        (calibrating,) = {tuple(batch.tolist()) for batch in drawn if len(batch) == 37}
        trained = np.concatenate([batch for batch in drawn if len(batch) <= 20])
        assert np.isin(calibrating, trained).any() != held_out
        if held_out:
            assert len(np.unique(trained)) == 120 - 37


def test_calibration_may_include_the_last_layers() -> None:
    """A few samples are enough; the layers before the last ones do not change."""
    plain, _ = run(make_job(THIRDS, 3))
    results = {extent: run(make_job(_calibrated(extent), 3)) for extent in ("readout", "heads")}
    for name in plain.state_dict():
        last = name.startswith("groups.") and ".stages.11." in name
        for extent, (module, _) in results.items():
            if "readout." not in name:
                assert (max_difference(module, plain, name) > 0) == (last and extent == "heads"), name
    assert results["heads"][1]["loss"] != results["readout"][1]["loss"]


def _calibrated(extent: str) -> dict[str, Any]:
    return {**THIRDS, "calibration": 60, "held_out": False, "extent": extent}


def test_negatives_are_generated_where_a_device_has_no_other_classes(tmp_path: Path) -> None:
    """Each device has only its own classes; this is refused unless it may generate negatives."""
    only = {"kind": "class-groups", "groups": 3, "rest": 0.0}
    with pytest.raises(SettingError, match="negatives = 'generated'"):
        run(make_job(THIRDS, 3, split=only))
    job = make_job({**THIRDS, "negatives": "generated"}, 3, split=only, stop={"rounds": 30})
    _, summary = run(job, tmp_path / "run", norm=True)
    assert summary["untrained_groups"] == []
    assert summary["samples"] == 30 * 2 * 120  # each with one generated from it
    assert summary["accuracy"] > 0.6  # of six classes


def test_devices_may_train_several_groups_each() -> None:
    job = make_job({**THIRDS, "each": 2}, 3, split={"kind": "class-groups"})
    setup = RoundsSetup.from_job(job, task(), None)
    assert isinstance(setup.extractor, GroupExtractor)
    assert setup.extractor.device_groups == {"pi-0": (0, 1), "pi-1": (1, 2), "pi-2": (0, 2)}
    labels = data().train.labels
    for device, shard in setup.shards.items():
        own = np.isin(labels[shard], setup.extractor.device_classes(device))
        assert own.sum() == 40  # half of each of its groups; another device has the other half
    _, summary = run(job)
    assert summary["untrained_groups"] == []


def test_turns_are_cut_short_to_save_what_the_job_asks_for() -> None:
    """As many mini-batches as fit, of the four passes that the local training asks for."""
    local = {"kind": "sgd", "lr": 0.05, "epochs": 4}
    whole = run(make_job(THIRDS, 3, split={"kind": "class-groups"}, rounds={"local": local}))[1]["samples"]
    assert whole == 4 * 3 * 4 * 80
    for saving in (2.0, 4.0):
        job = make_job({**THIRDS, "saving": saving}, 3, split={"kind": "class-groups"}, rounds={"local": local})
        module, summary = run(job)
        central = 120 * full_model_cost(module.graph).training_macs(frozen=False)
        turn = summary["samples"] / (4 * 3) * group_cost(module.graph, (2, 2, 2), 1).training_macs(frozen=False)
        step = 20 * group_cost(module.graph, (2, 2, 2), 1).training_macs(frozen=False)
        assert turn <= central / saving < turn + step
    with pytest.raises(SettingError, match=r"saving: leaves pi-0 .* samples in a turn, less than a mini-batch of 20"):
        run(make_job({**THIRDS, "saving": 1000.0}, 3, split={"kind": "class-groups"}))


def test_groups_are_trained_on_what_streams_in(tmp_path: Path) -> None:
    """Own classes and others arrive as the split says; the group's loss weighs both the same."""
    stream = {"rate": {"kind": "constant", "per_second": 40.0}}
    parts = {"batching": {"kind": "stream", "cap": 20}, "local": {"kind": "sgd", "lr": 0.05, "momentum": 0.5}}
    more: dict[str, Any] = {"split": {"kind": "class-groups"}, "stream": stream, "rounds": parts}
    job = make_job({**THIRDS, "calibration": 30}, 3, stop={"rounds": 25}, **more)
    module, summary = run(job, tmp_path / "run", norm=True)
    assert summary["untrained_groups"] == []
    assert summary["samples"] == 25 * 3 * 40
    assert summary["accuracy"] > 0.8
    assert summary["time_s"] >= 25  # a turn waits for a second's samples
    again, _ = run(job, norm=True)
    assert all(max_difference(module, again, name) == 0 for name in module.state_dict())


def test_an_iterable_data_set_is_refused_by_class_groups() -> None:
    inputs, labels = samples(60)
    streamed = potluck.Task(small(norm=False), from_torch(StreamedSamples(), TensorDataset(inputs, labels)))
    with pytest.raises(SettingError, match="stream: class groups need to know which classes"):
        RoundsSetup.from_job(make_job(THIRDS, 3, stream={}), streamed, None)


# --- automatic cuts ---------------------------------------------------------------------------------------------------

UNEVEN: list[dict[str, Any]] = [
    {"name": "fast", "flops": "400 MFLOP/s"},
    {"name": "slow", "flops": "40 MFLOP/s", "count": 5},
]


def auto(**more: Any) -> dict[str, Any]:
    return {"kind": "class-groups", "groups": "auto", "depth": "auto", **more}


def test_auto_chooses_the_best_cut_that_the_slowest_device_can_afford(tmp_path: Path) -> None:
    module, _ = run(make_job(auto(), UNEVEN, split="everything"), tmp_path / "run")
    steps = trace_network(small(norm=False), SHAPE)
    everything = full_model_cost(channel_graph(steps)).training_macs(frozen=False)
    best = choose_groups(channel_graph(steps), 6, DeviceBudget(macs=everything / 10))
    assert (module.spec.depth, len(module.spec.groups)) == (best.depth, best.groups)
    submodel = load_job(tmp_path / "run" / "job.toml").rounds.submodel
    assert (submodel.depth, submodel.groups) == (best.depth, best.groups)  # type: ignore[attr-defined]


def test_auto_keeps_explicit_settings() -> None:
    patient = {"rounds": {"slot": "1 s"}}
    assert grouped(make_job(auto(groups=3), UNEVEN, **patient)).spec.depth == 4  # all that can be shared
    assert len(grouped(make_job(auto(depth=0), UNEVEN, **patient)).spec.groups) == 1
    assert grouped(make_job(auto(groups=[[0], [1, 2, 3, 4, 5]]), UNEVEN, **patient)).spec.groups == (
        (0,),
        (1, 2, 3, 4, 5),
    )


def test_auto_names_a_slot_that_would_suffice() -> None:
    with pytest.raises(SettingError, match=r"fits slow-0: a mini-batch takes it .*set `rounds.slot`"):
        grouped(make_job(auto(), UNEVEN, rounds={"slot": "1 us"}))


# --- faults and resuming ----------------------------------------------------------------------------------------------


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    job = make_job({**THIRDS, "calibration": 60}, 3, stop={"rounds": 6}, checkpoint=2)
    uninterrupted = potluck.simulate(job, task=task(norm=True), folder=tmp_path / "whole", threads=0)
    times: list[float] = []
    potluck.simulate(
        job, task=task(norm=True), folder=tmp_path / "cut", threads=0,
        watch=lambda store, now: times.append(now), stopping=lambda: len(times) >= 3,
    )  # fmt: skip
    resumed = potluck.resume(tmp_path / "cut", task=task(norm=True), threads=0)
    assert journal(tmp_path / "whole") == journal(tmp_path / "cut")
    assert uninterrupted.module is not None
    assert resumed.module is not None
    for name, tensor in uninterrupted.module.state_dict().items():
        assert torch.equal(tensor, resumed.module.state_dict()[name]), name


@pytest.mark.parametrize(
    ("recipe", "transfer"), [("decoupled", "optimal"), ("fedbuff", "sequential"), ("fedavg-quorum", "optimal")]
)
def test_a_run_with_faults_completes_and_its_journal_is_consistent(tmp_path: Path, recipe: str, transfer: str) -> None:
    faults = [
        {"kind": "crash", "device": "pi-1", "at": 0.05, "restart": "50 ms"},
        {"kind": "slow", "device": "pi-2", "at": 0.0, "factor": 0.1, "lasting": "100 ms"},
    ]
    more = {"rounds": {"transfer": transfer}, "recipe": recipe, "stop": {"rounds": 6}}
    module, summary = run(make_job(THIRDS, 4, fleet={"faults": faults}, **more), tmp_path / "run")
    assert summary["rounds"] == 6
    assert all(isinstance(record, Span) for record in rounds(tmp_path / "run"))
    assert all(tensor.isfinite().all() for tensor in module.state_dict().values())


def test_error_feedback_follows_the_devices_own_submodel() -> None:
    module, _ = run(make_job(THIRDS, 3, rounds={"codec": {"kind": "top-k", "ratio": 0.1}}))
    assert module.untrained_groups() == ()


# --- impossible settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("submodel", "more", "words"),
    [
        ({**THIRDS, "held": {"nobody": [0]}}, {}, "rounds.submodel.held.nobody"),
        ({**THIRDS, "held": {"pi-0": [3]}}, {}, "there is no group 3"),
        (auto(held={"pi-0": [0]}), {}, "set `groups` too"),
        ({**THIRDS, "groups": 7}, {}, "6 classes cannot form 7 groups"),
        ({**THIRDS, "groups": [[0, 1], [2, 3, 4]]}, {}, "class 5 is in no group"),
        (THIRDS, {"split": {"kind": "class-groups", "groups": 3, "rest": 0}}, "nothing to tell them from"),
        ({**THIRDS, "calibration": 61}, {}, "61 of 120 samples are too many to hold out"),
        (THIRDS, {"split": {"kind": "class-groups", "groups": 2}}, "split.groups: devices train 3 groups"),
        (THIRDS, {"rounds": {"transfer": "duplex"}}, "duplex transfers are for whole models"),
        ({**THIRDS, "negatives": "generated"}, {"stream": {}}, "rounds.submodel.negatives: .* with a stream"),
    ],
)
def test_impossible_settings_are_refused_before_the_run(submodel: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words.replace("[", r"\[")):
        RoundsSetup.from_job(make_job(submodel, 3, **more), task(), None)


def test_shapes_are_enough_for_a_timing_only_run() -> None:
    tables = {
        "task": {"model": "alexnet-cifar", "data": "cifar10"},
        "fleet": {"devices": [{"name": "pi", "count": 10, "preset": "pi4"}]},
        "stop": {"rounds": 2}, "timing_only": True, "recipe": "decoupled",
    }  # fmt: skip
    parts = potluck.simulate({**tables, "rounds": {"submodel": {"kind": "class-groups", "groups": 10}}}).summary
    full = potluck.simulate({**tables, "rounds": {"submodel": "whole"}}).summary
    assert parts["time_s"] < full["time_s"] / 6
    assert parts["bytes"] < full["bytes"] / 20


def test_a_timing_only_run_cuts_turns_short_and_counts_a_cache_once() -> None:
    def timed(**submodel: Any) -> dict[str, Any]:
        tables = {
            "task": {"model": "resnet20", "data": "cifar10"},
            "fleet": {"devices": [{"name": "pi", "count": 5, "preset": "pi4"}]},
            "stop": {"rounds": 3}, "timing_only": True, "recipe": "decoupled", "samples": 1000,
            "rounds": {"submodel": {"kind": "class-groups", "groups": 5, **submodel}, "local": {"epochs": 3}},
        }  # fmt: skip
        return potluck.simulate(tables).summary

    plain, saving = timed(), timed(saving=60.0)
    assert saving["samples"] < plain["samples"] / 2
    frozen, cached = timed(trunk="frozen", depth=3), timed(trunk="frozen", depth=3, cache="1 GB")
    assert cached["time_s"] < 0.8 * frozen["time_s"]


def test_the_example_saves_one_network(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples/decoupled/job.toml"
    result = potluck.simulate(load_job(example, ["stop.rounds=5"]), folder=tmp_path / "run", threads=0)
    assert result.summary["accuracy"] > 0.8
    assert load(tmp_path / "run" / "assembled.safetensors").untrained_groups() == ()
