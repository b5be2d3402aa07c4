from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.benchmark import BenchmarkContext
from benchmarks.tasks import BENCHMARK, declare_pieces
from benchmarks.tasks.plain_training import PlainSettings
from benchmarks.tasks.shape_segmentation import ShapeUnet, generate_shapes
from benchmarks.tasks.task_measurements import describe_workload, measure_step_time, measure_training
from benchmarks.tasks.task_workload import CENTRAL, TUNED, WORKLOADS, build_workload_task, method_job
from potluck.report.svg_chart import draw_charts

pytestmark = pytest.mark.usefixtures("one_thread")


def test_pieces_are_unique_and_quick_ones_are_fewer() -> None:
    quick, full = ([piece.name for piece in declare_pieces(BenchmarkContext(quick=quick))] for quick in (True, False))
    assert len(full) == len(set(full)) > len(quick) == len(set(quick))
    assert all(piece.parallel != ("step" in piece.name) for piece in declare_pieces(BenchmarkContext(quick=False)))


def test_every_method_sees_as_many_samples_as_the_central_loop() -> None:
    for workload in WORKLOADS.values():
        for steps in (workload.steps, workload.quick_steps):
            for method in workload.methods:
                if method == TUNED:
                    continue
                job = method_job(workload, method, steps, 0)
                if job.pipeline is not None:
                    per_round = job.pipeline.batch
                else:
                    batches = job.rounds.local.batches_per_turn(10**6) or 1
                    per_round = len(job.fleet.members) * batches * job.rounds.batching.batch_size_for(10**6)
                assert per_round * (job.stop.rounds or 0) == steps * workload.batch, (workload.title, method)


def test_the_learning_rate_of_the_plain_loop_is_that_of_nanogpt() -> None:
    settings = WORKLOADS["gpt"].plain_settings(2000)
    assert settings == PlainSettings(1e-3, (0.9, 0.99), 0.1, 1.0, 12, 2000, 100, 0.1)
    assert settings.lr_at(0) == pytest.approx(1e-3 / 101)
    assert settings.lr_at(100) == pytest.approx(1e-3)
    assert settings.lr_at(1050) == pytest.approx(5.5e-4)
    assert settings.lr_at(2000) == pytest.approx(1e-4)


def test_shapes_are_the_same_every_time_and_fit_the_network() -> None:
    data, again = generate_shapes(6, 2), generate_shapes(6, 2)
    pictures, classes = data.train.batch([0, 5])
    assert torch.equal(pictures, again.train.batch([0, 5])[0])
    assert set(classes.unique().tolist()) == {0, 1, 2}
    assert ShapeUnet(2)(pictures).shape == (2, 3, 32, 32)


def test_central_and_federated_training_are_scored_on_the_same_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "segmentation", WORKLOADS["segmentation"]._replace(local_steps=1))
    central, fedavg = (measure_training("segmentation", method, 16, 0, None) for method in (CENTRAL, "fedavg"))
    assert central["samples"] == fedavg["samples"] == 256
    assert central["bytes"] == 0 < fedavg["bytes"]
    assert central["loss"] < 1.0
    assert 0 < fedavg["metric"] < 1


def test_a_refused_method_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS["segmentation"].rates, "decoupled", 1e-3)
    result = measure_training("segmentation", "decoupled", 40, 0, None)
    assert "a network to decouple" in result["refused"]
    assert "metric" not in result


def test_a_step_is_timed_on_both_sides() -> None:
    timing = measure_step_time("segmentation", 2, 1, 1, None)
    assert 0.2 < timing["potluck_ms"] / timing["plain_ms"] < 5


@pytest.mark.long
def test_adapters_start_from_the_pretrained_model_and_only_they_are_sent() -> None:
    pytest.importorskip("peft")
    module = build_workload_task("lora", None).build_module(0)
    described = describe_workload("lora", None)
    assert described["trained_bytes"] == 4 * sum(p.numel() for n, p in module.named_parameters() if "lora" in n)
    run = measure_training("lora", "fedavg", 40, 0, None)
    assert run["bytes"] <= 1.05 * 2 * described["trained_bytes"] * run["updates"]


# --- figures computed from the results --------------------------------------------------------------------------------


def _results() -> dict[str, dict[str, Any]]:
    run = {"metric": 0.5, "loss": 1.0, "bytes": 2.1e6, "updates": 10, "samples": 100}
    results: dict[str, dict[str, Any]] = {}
    for name, workload in WORKLOADS.items():
        results[f"{name}/described"] = {"trained_bytes": 1e5, "best": 0.4}
        results |= {f"{name}/{method}/{seed}": run for method in (CENTRAL, *workload.methods) for seed in range(2)}
        results |= {f"{name}/step-20/0": {"plain_ms": 10.0, "potluck_ms": 12.0}}
        results |= {f"{name}/step-1/0": {"plain_ms": 10.0, "potluck_ms": 20.0}}
    results["gpt/central/0"] = results["gpt/central/1"] = {**run, "metric": 1.87}
    results["lora/distreal/0"] = {"refused": "rounds.submodel: no; use lora-rank"}
    return results


def test_figures_are_compared_with_their_goals() -> None:
    figures = {figure.name: figure for figure in BENCHMARK.figures(_results())}
    assert figures["GPT, tiny Shakespeare, loss: central"].meets_goal is True
    assert figures["DistilBERT-like classifier, generated topics, accuracy: central"].measured == 50.0
    step = "U-Net, generated shapes: step time of one device over a plain loop, "
    assert figures[f"{step}20 steps in a round"].meets_goal is False
    assert figures[f"{step}one step in a round"].meets_goal is None
    assert figures["  distreal: refused, rounds.submodel: no; use lora-rank"].measured == 0
    adapters = figures["LoRA of a Llama, generated language: bytes of an update over the adapters' size, fedavg"]
    assert adapters.measured == pytest.approx(1.05)
    assert adapters.meets_goal is True
    assert draw_charts(BENCHMARK.charts(_results())).startswith("<svg")
