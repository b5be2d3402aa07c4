from __future__ import annotations

from typing import Any

import pytest

from benchmarks.benchmark import BenchmarkContext, Results
from benchmarks.decoupled import BENCHMARK
from benchmarks.decoupled.decoupled_training import train_alone, train_central, train_decoupled, train_federated
from benchmarks.decoupled.decoupled_workload import CASES, QUICK, DecoupledCut, decoupled_task

TINY = QUICK._replace(rounds=2, samples=400)


def test_every_method_trains_on_the_same_data_and_reports_its_cost() -> None:
    ours, central = train_decoupled(TINY, None, 0), train_central(TINY, None, 0)
    others = [train_federated(TINY, None, 0), train_alone(TINY, None, 0)]
    samples = len(decoupled_task(TINY, None, 0).data.train)
    assert central["samples"] == 2 * samples
    assert ours["samples"] == pytest.approx(
        2 * 2 * samples / TINY.cut.groups
    )  # own classes and as many samples of others
    assert ours["training"] > 1
    assert ours["accuracy"] > others[1]["accuracy"]  # a device trained alone knows only its own classes
    assert others[1]["accuracy"] <= 2 / TINY.cut.groups


def test_the_samples_of_a_case_are_spread_over_its_classes() -> None:
    labels = decoupled_task(QUICK._replace(samples=200), None, 3).data.train.labels.tolist()
    assert len(labels) == 200
    assert {labels.count(label) for label in range(10)} <= {18, 19, 20, 21, 22}


def _results(ours: float, samples: float) -> Results:
    run: dict[str, Any] = {
        "accuracy": ours - 0.01, "calibrated readout": ours, "calibrated heads": ours, "samples": samples,
        "forward": 10.0, "training": 6.0, "weights": 9.0,
    }  # fmt: skip
    central: dict[str, Any] = {"accuracy": 0.8, "samples": 1000.0}
    cut = f"{QUICK.cut.depth},{QUICK.cut.groups},{QUICK.cut.trunk}"
    return {
        f"{QUICK.name}/central/0": central, f"{QUICK.name}/decoupled {cut}/0": run,
        f"{QUICK.name}/fedavg/0": central, f"{QUICK.name}/alone/0": central,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "samples", "goals_met"),
    [(0.797, 400.0, [True, True, True]), (0.797, 900.0, [True, True, False]), (0.78, 400.0, [True, False, False])],
)
def test_goals_are_judged_against_central_training(ours: float, samples: float, goals_met: list[bool]) -> None:
    figures = BENCHMARK.figures(_results(ours, samples))
    assert [figure.meets_goal for figure in figures if figure.goal is not None] == goals_met
    (chart,) = BENCHMARK.charts(_results(ours, samples))
    assert chart.marks == [("central", 80.0)]


def test_pieces_have_their_own_names() -> None:
    for quick in (True, False):
        names = [piece.name for piece in BENCHMARK.pieces(BenchmarkContext(quick=quick))]
        assert len(set(names)) == len(names)


def test_cuts_of_a_case_are_tried_once() -> None:
    for case in CASES:
        assert len({case.cut, *case.others}) == 1 + len(case.others)
        assert all(isinstance(cut, DecoupledCut) for cut in case.others)
