from __future__ import annotations

from typing import Any

import pytest

from benchmarks.benchmark import BenchmarkContext, Results
from benchmarks.decoupled import BENCHMARK, decoupled_training
from benchmarks.decoupled.decoupled_training import (
    best_rate,
    train_alone,
    train_central,
    train_decoupled,
    train_federated,
    train_without_negatives,
    try_rate,
    turn_saving,
)
from benchmarks.decoupled.decoupled_workload import (
    BUDGET,
    CASES,
    QUICK,
    RATES,
    DecoupledCut,
    decoupled_task,
    tuning_task,
)

TINY = QUICK._replace(rounds=2, samples=400, pretraining_rounds=1)
RATE = {"only": {"lr": 0.05, "accuracy": 0.5}}


def test_every_method_trains_on_the_same_data_and_reports_its_cost() -> None:
    ours, central = train_decoupled(RATE, TINY, None, 0), train_central(RATE, TINY, None, 0)
    others = [train_federated(RATE, TINY, None, 0), train_alone(RATE, TINY, None, 0)]
    samples = len(decoupled_task(TINY, None, 0).data.train)
    assert central["samples"] == 2 * samples
    assert ours["samples"] == pytest.approx(
        2 * 2 * 2 * samples / TINY.cut.groups
    )  # two passes over own classes and as many samples of others
    assert ours["training"] > 1
    assert ours["device_macs"] == ours["samples"] * ours["training_macs"][1]
    assert ours["accuracy"] > others[1]["accuracy"]  # a device trained alone knows only its own classes
    assert others[1]["accuracy"] <= 2 / TINY.cut.groups


def test_a_cached_trunk_is_pretrained_and_counted_once() -> None:
    cut = DecoupledCut(1, 5, "cached", passes=2)
    cached, plain = (train_decoupled(RATE, TINY._replace(cut=cut._replace(trunk=trunk)), None, 0) for trunk in
                     ("cached", "frozen"))  # fmt: skip
    held = 2 * 400 / 5
    assert cached["device_macs"] == cached["samples"] * cached["training_macs"][1] + held * cached["once_macs"]
    assert plain["device_macs"] - cached["device_macs"] == (plain["samples"] - held) * cached["once_macs"] > 0
    assert cached["accuracy"] == pytest.approx(plain["accuracy"], abs=0.02)


def test_the_budget_limits_the_passes_of_a_device() -> None:
    cut = TINY.cut._replace(passes=BUDGET)
    ours, central = train_decoupled(RATE, TINY._replace(cut=cut), None, 0), train_central(RATE, TINY, None, 0)
    saving = central["samples"] * ours["training_macs"][0] / ours["device_macs"]
    assert 11.8 <= saving < 20


def test_the_budget_includes_the_pass_that_fills_a_cache() -> None:
    case = TINY._replace(cut=DecoupledCut(1, 5, "cached"), rounds=4)
    ours, central = train_decoupled(RATE, case, None, 0), train_central(RATE, case, None, 0)
    assert ours["once_macs"] > 0
    saving = central["samples"] * ours["training_macs"][0] / ours["device_macs"]
    assert 11.8 <= saving < 20
    task = decoupled_task(case, None, 0)
    assert turn_saving(case, task, 4) > turn_saving(case, task, 40) > 11.8  # one pass, spread over the rounds
    assert turn_saving(TINY, task, 4) == 11.8


def test_cuts_of_a_case_share_one_pretraining() -> None:
    decoupled_training._pretrained_weights.cache_clear()
    for cut in (DecoupledCut(1, 5, "cached", passes=1), DecoupledCut(1, 5, "frozen", passes=1)):
        train_decoupled(RATE, TINY._replace(cut=cut), None, 0)
    assert decoupled_training._pretrained_weights.cache_info().misses == 1
    train_decoupled(RATE, TINY._replace(cut=cut), None, 1)
    assert decoupled_training._pretrained_weights.cache_info().misses == 2


def test_every_way_can_use_a_cached_trunk() -> None:
    case = TINY._replace(cut=DecoupledCut(1, 5, "cached", passes=2))
    alone, unaided = (train(RATE, case, None, 0)["accuracy"] for train in (train_alone, train_without_negatives))
    assert 0 < alone <= 2 / case.cut.groups
    assert unaided > 0
    assert 0 < try_rate(case, "decoupled", 0.05, None)["accuracy"] <= 1


def test_a_cut_with_fewer_seeds_than_central_training_is_not_the_best() -> None:
    results = dict(_results(0.917, 400.0))
    best = BENCHMARK.figures(results)[-1]
    assert best.measured == 15.0
    results[f"{QUICK.name}/central/1"] = results[f"{QUICK.name}/central/0"]
    assert BENCHMARK.figures(results)[-1].measured == 0.0


def test_rates_are_compared_on_training_samples_that_are_held_out() -> None:
    task = decoupled_task(TINY, None, 0)
    tuned = tuning_task(task)
    assert len(tuned.data.train) + len(tuned.data.test) == len(task.data.train)
    tried = {way: try_rate(TINY, way, 0.05, None)["accuracy"] for way in ("central", "decoupled", "fedavg")}
    assert all(0 < accuracy <= 1 for accuracy in tried.values())
    assert best_rate({"a": {"lr": 0.1, "accuracy": 0.5}, "b": {"lr": 0.02, "accuracy": 0.6}}) == 0.02


def test_the_samples_of_a_case_are_spread_over_its_classes() -> None:
    labels = decoupled_task(QUICK._replace(samples=200), None, 3).data.train.labels.tolist()
    assert len(labels) == 200
    assert {labels.count(label) for label in range(10)} <= {18, 19, 20, 21, 22}


def _results(ours: float, samples: float) -> Results:
    run: dict[str, Any] = {
        "accuracy": ours - 0.01, "calibrated readout": ours, "calibrated heads": ours, "samples": samples,
        "forward": 10.0, "training": 6.0, "training_macs": (60.0, 10.0), "device_macs": samples * 10.0, "lr": 0.05,
    }  # fmt: skip
    central: dict[str, Any] = {"accuracy": 0.92, "samples": 1000.0, "lr": 0.1}
    return {
        f"{QUICK.name}/central/0": central, f"{QUICK.name}/decoupled {QUICK.cut.label}/0": run,
        f"{QUICK.name}/fedavg/0": central, f"{QUICK.name}/alone/0": {"accuracy": 0.2},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "samples", "goals_met"),
    [
        (0.917, 400.0, [True, True, True, True]),
        (0.917, 900.0, [False, True, True, False]),
        (0.90, 400.0, [True, True, False, False]),
    ],
)
def test_goals_are_judged_against_central_training(ours: float, samples: float, goals_met: list[bool]) -> None:
    figures = BENCHMARK.figures(_results(ours, samples))
    assert [figure.meets_goal for figure in figures if figure.goal is not None] == goals_met
    (chart,) = BENCHMARK.charts(_results(ours, samples))
    assert chart.marks == [("central", 92.0)]


def test_pieces_have_their_own_names_and_training_needs_the_tuned_rates() -> None:
    for quick in (True, False):
        pieces = BENCHMARK.pieces(BenchmarkContext(quick=quick))
        names = [piece.name for piece in pieces]
        assert len(set(names)) == len(names)
        for piece in pieces:
            assert len(piece.needs) in (0, len(RATES))
            assert set(piece.needs) <= set(names)


def test_cuts_of_a_case_are_tried_once() -> None:
    for case in CASES:
        assert len({case.cut, *case.others}) == 1 + len(case.others)
        assert len({cut.label for cut in (case.cut, *case.others)}) == 1 + len(case.others)
