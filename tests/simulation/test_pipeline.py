"""A pipeline computes what a plain loop computes with gradients delayed by its windows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import potluck
from potluck.journal import Scalar
from potluck.model.indexed_dataset import MicroBatches
from tests.planning.weight_versions import version_used
from tests.simulation.pipelines import (
    PipelineJournal,
    assert_same_weights,
    data_of,
    deep_net,
    delayed_sgd,
    job_of,
    plain_loop,
    plain_sgd,
    small_net,
)

BATCHES, BATCH = 14, 12


pytestmark = pytest.mark.usefixtures("one_thread")


def run(folder: Path | None, net: nn.Module, devices: int = 3, **settings: Any) -> potluck.Result:
    shape = (1, 4, 4) if isinstance(net[0], nn.Conv2d) else (5,)  # type: ignore[index]
    result = potluck.simulate(
        job_of(devices, **settings), task=potluck.Task(net, data_of(shape)), folder=folder, threads=0
    )
    assert result.status == "done", result.reason
    return result


@pytest.mark.parametrize("schedule", ["single", "1f1b", {"kind": "gpipe", "micro_batches": 1}])
def test_one_stage_is_plain_sgd_bit_for_bit(schedule: Any) -> None:
    net = small_net()
    reference = plain_sgd(net, data_of((1, 4, 4)), BATCHES, BATCH)
    assert_same_weights(run(None, net, devices=1, pipeline={"schedule": schedule}).module, reference)


def test_gpipe_with_one_micro_batch_is_plain_sgd_on_any_number_of_stages() -> None:
    net = small_net()
    reference = plain_sgd(net, data_of((1, 4, 4)), BATCHES, BATCH)
    cuts = {"schedule": {"kind": "gpipe", "micro_batches": 1}, "partition": {"kind": "cuts", "after": [0, 2]}}
    assert_same_weights(run(None, net, pipeline=cuts).module, reference)


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [
        ({"kind": "adamw", "lr": 0.01}, torch.optim.AdamW),
        ({"kind": "optimizer", "name": "torch.optim.RMSprop", "lr": 0.01}, torch.optim.RMSprop),
    ],
)
def test_other_optimizers_on_stages_are_a_plain_loop_bit_for_bit(optimizer: dict[str, Any], kind: Any) -> None:
    net, data = small_net(), data_of((1, 4, 4))
    reference = copy.deepcopy(net)
    plain_loop(reference, kind(reference.parameters(), lr=0.01), data, MicroBatches(len(data.train), BATCH), BATCHES)
    cuts = {"schedule": {"kind": "gpipe", "micro_batches": 1}, "partition": {"kind": "cuts", "after": [0, 2]}}
    assert_same_weights(run(None, net, pipeline={**cuts, "optimizer": optimizer}).module, reference)


def test_gpipe_micro_batches_add_up_to_the_batch() -> None:
    net = deep_net()
    reference = plain_sgd(net, data_of((5,)), BATCHES, BATCH)
    parts = {"schedule": {"kind": "gpipe", "micro_batches": 3}, "partition": {"kind": "cuts", "after": [1, 3]}}
    actual = run(None, net, pipeline=parts).module
    assert actual is not None
    for parameter, expected_parameter in zip(actual.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected_parameter, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("vertical", [True, False], ids=["vertical", "own version"])
@pytest.mark.parametrize("aggregate", [0, 3])
@pytest.mark.parametrize("predict", [False, True], ids=["", "predicted"])
@pytest.mark.parametrize("net", [small_net, deep_net])
def test_stages_are_the_delayed_gradient_loop_bit_for_bit(
    tmp_path: Path, net: Any, predict: bool, vertical: bool, aggregate: int
) -> None:
    module, cuts, windows = net(), [1, 2], (3, 2, 1)
    shape = (1, 4, 4) if net is small_net else (5,)

    def stage(layer: int) -> int:
        return sum(layer > cut for cut in cuts)

    def version(batch: int, layer: int) -> int:
        return version_used(batch, stage(layer), windows, vertical=vertical)

    def average(new: int, layer: int) -> int:
        return min(windows[stage(layer)], new + 1) if aggregate and new % aggregate == 0 else 1

    reference = delayed_sgd(module, data_of(shape), BATCHES, BATCH, version, average, predict=predict)
    timing = {"kind": "1f1b", "fill": "published"}
    schedule = {**timing, "vertical_sync": vertical, "aggregate": aggregate, "predict": predict}
    actual = run(
        tmp_path / "run", module, pipeline={"schedule": schedule, "partition": {"kind": "cuts", "after": cuts}}
    ).module
    assert_same_weights(actual, reference)
    PipelineJournal(tmp_path / "run").check_schedules()


@pytest.mark.parametrize("vertical", [True, False], ids=["vertical", "own version"])
@pytest.mark.parametrize("micro_batches", [2, 3])
def test_micro_batches_in_flight_are_the_delayed_gradient_loop_bit_for_bit(
    tmp_path: Path, micro_batches: int, vertical: bool
) -> None:
    """Three micro-batches in flight are at most two batches, so that no gradient is older than one step."""
    net, data = deep_net(), data_of((5,))
    schedule = {"kind": "1f1b", "fill": "published", "micro_batches": micro_batches, "vertical_sync": vertical}
    cuts = {"kind": "cuts", "after": [1, 2]}
    settings = {"schedule": {**schedule, "predict": True}, "partition": cuts}
    actual = run(tmp_path / "run", copy.deepcopy(net), pipeline=settings).module
    versions = PipelineJournal(tmp_path / "run").versions(micro_batches)
    assert_same_weights(actual, delayed_sgd(net, data, BATCHES, BATCH, versions, micro_batches=micro_batches))
    delays = {number // micro_batches - versions(number, 0) for number in range(BATCHES * micro_batches)}
    assert delays == {0, 1}


def test_micro_batches_on_one_stage_add_up_to_the_batch() -> None:
    net = deep_net()
    reference = plain_sgd(net, data_of((5,)), BATCHES, BATCH)
    actual = run(None, net, 1, pipeline={"schedule": {"kind": "1f1b", "micro_batches": 3}}).module
    assert actual is not None
    for parameter, expected_parameter in zip(actual.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected_parameter, rtol=1e-4, atol=1e-6)


def test_wider_windows_are_longer_delays(tmp_path: Path) -> None:
    net, data = deep_net(), data_of((5,))
    slow = {"latency": "200 ms"}
    devices = [{"name": f"d{index}", "flops": "1 MFLOP/s", "link": slow} for index in range(3)]
    job = job_of(
        devices,
        pipeline={"schedule": {"kind": "1f1b", "fill": "filling"}, "partition": {"kind": "cuts", "after": [1, 3]}},
    )
    result = potluck.simulate(job, task=potluck.Task(copy.deepcopy(net), data), folder=tmp_path / "run", threads=0)
    journal = PipelineJournal(tmp_path / "run")
    journal.check_schedules()
    assert_same_weights(result.module, delayed_sgd(net, data, BATCHES, BATCH, journal.versions()))


def test_an_evaluation_drains_and_refills_the_pipeline(tmp_path: Path) -> None:
    """With an evaluation every five batches the pipeline drains and refills: the delays start again at zero."""
    net, data = deep_net(), data_of((5,))
    schedule = {"kind": "1f1b", "fill": "published", "vertical_sync": True}
    cuts = {"partition": {"kind": "cuts", "after": [1, 3]}, "schedule": schedule}
    result = run(tmp_path / "run", copy.deepcopy(net), evaluate=5, pipeline=cuts)
    windows = (3, 2, 1)
    reference = delayed_sgd(
        net, data, BATCHES, BATCH,
        lambda batch, layer: batch // 5 * 5 + version_used(batch, 0, windows, start=batch // 5 * 5),
    )  # fmt: skip
    assert_same_weights(result.module, reference)
    journal = PipelineJournal(tmp_path / "run")
    journal.check_schedules()
    scores = [record for record in journal.records if isinstance(record, Scalar) and record.name == "test_accuracy"]
    assert [score.fields["round"] for score in scores] == [0, 5, 10, 14]
    losses = [record for record in journal.records if isinstance(record, Scalar) and record.name == "loss"]
    assert [loss.fields["round"] for loss in losses] == list(range(1, 15))


def test_the_same_seed_gives_the_same_pipeline_journal(tmp_path: Path) -> None:
    net = deep_net()
    for name in ("a", "b"):
        run(tmp_path / name, copy.deepcopy(net), pipeline={"partition": "equal"})
    assert (tmp_path / "a" / "journal.jsonl").read_bytes() == (tmp_path / "b" / "journal.jsonl").read_bytes()


def test_a_run_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    net, data = deep_net(), data_of((5,))
    cuts = {"partition": {"kind": "cuts", "after": [1, 3]}}
    uninterrupted = run(None, copy.deepcopy(net), evaluate=5, pipeline=cuts)
    job = job_of(3, evaluate=5, pipeline=cuts, checkpoint=5)
    rounds: list[int] = []
    task = potluck.Task(copy.deepcopy(net), data)
    first = potluck.simulate(
        job, task=task, folder=tmp_path / "run", threads=0,
        watch=lambda store, now: rounds.append(store.progress.round), stopping=lambda: len(rounds) >= 7,
    )  # fmt: skip
    assert first.status == "interrupted"
    assert 7 <= first.summary["rounds"] < BATCHES
    resumed = potluck.resume(tmp_path / "run", task=potluck.Task(copy.deepcopy(net), data), threads=0)
    assert resumed.status == "done"
    assert PipelineJournal(tmp_path / "run").committed() != []
    assert uninterrupted.module is not None
    assert resumed.module is not None


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_stages_evaluate_the_model_as_the_coordinator_does(tmp_path: Path, loss: float) -> None:
    """Held-out batches pass through the stages and take time; lost ones are evaluated again."""
    net, shape = small_net(), (1, 4, 4)
    link = {"latency": "1 ms", "loss": loss}
    devices = [{"name": f"d{index}", "flops": "10 MFLOP/s", "link": link} for index in range(3)]
    scores = {}
    for where in ("coordinator", "pipeline"):
        pipeline = {"partition": {"kind": "cuts", "after": [0, 2]}, "evaluation": where, "retry": "100 ms"}
        job = job_of(devices, evaluate=5, pipeline=pipeline)
        task = potluck.Task(copy.deepcopy(net), data_of(shape))
        result = potluck.simulate(job, task=task, folder=tmp_path / where, threads=0)
        assert result.status == "done"
        journal = PipelineJournal(tmp_path / where)
        scalars = [
            record for record in journal.records if isinstance(record, Scalar) and record.name.startswith("test_")
        ]
        scores[where] = (
            [(record.name, record.fields["round"]) for record in scalars],
            [record.value for record in scalars],
        )
        assert bool(journal.spans("examine")) == (where == "pipeline")
    assert scores["pipeline"][0] == scores["coordinator"][0]
    assert scores["pipeline"][1] == pytest.approx(scores["coordinator"][1], rel=1e-5)
