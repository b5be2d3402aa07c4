from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from benchmarks.benchmark import BenchmarkContext
from benchmarks.benchmark_figures import Figure
from benchmarks.live import BENCHMARK as LIVE
from benchmarks.live import kernel_links, live_trial, network_faults
from benchmarks.transport import BENCHMARK as TRANSPORT
from benchmarks.transport.pull_speed import measure_pulls
from potluck.job import make
from potluck.recipes.recipe_catalogue import CATALOGUE as RECIPES

RESULTS: dict[str, dict[str, Any]] = {
    "empty/0": {"measured_s": 0.020},
    "links/resnet20/20/sync-sgd/0": {"seconds": [2.0, 2.2, 1.8]},
    "links/resnet20/20/dynacomm/0": {"seconds": [1.2, 1.3, 1.1]},
    "links/resnet20/20/duplex/0": {"seconds": [1.5, 1.5, 1.5]},
    "faults/rounds/kill/0": {"seconds": 0.5, "redone": 0, "lost": 0, "doubled": 0},
    "faults/rounds/kill/1": {"seconds": 1.5, "redone": 0, "lost": 0, "doubled": 0},
    "faults/rounds/cut/0": {"seconds": 6.9, "redone": 0, "lost": 0, "doubled": 0},
    "faults/pipeline/cut/0": {"seconds": 7.1, "redone": 4, "lost": 0, "doubled": 1},
    "faults/rounds/loss/0": {"rates": [0.5, 0.25], "lost": 0, "doubled": 0},
    "lab/fedavg/0": {"measured_s": 1.05, "predicted_s": 1.0},
    "lab/sync-sgd/0": {"measured_s": 2.0, "predicted_s": 2.5},
}
OTHERS = {
    f"links/resnet20/20/{recipe}/0": {"seconds": [seconds]}
    for recipe, seconds in (("layer-by-layer", 1.6), ("ibatch", 1.25), ("mg-wfbp", 1.3))
}


def _named(figures: object, name: str) -> list[Figure]:
    assert isinstance(figures, list)
    return [figure for figure in figures if name in figure.name]


def test_the_worst_prediction_is_quoted_and_all_are_listed() -> None:
    figures = LIVE.figures(RESULTS)
    worst = _named(figures, "lab against simulated, some recipes: largest error")[0]
    assert (round(worst.measured, 6), worst.meets_goal, worst.note) == (20.0, False, "sync-sgd; all are below")
    assert [round(figure.measured, 6) for figure in figures[-2:]] == [5.0, 20.0]
    assert {figure.executed for figure in figures} == {"live"}
    assert [chart.title for chart in LIVE.charts(RESULTS)][1].startswith("Error of the predicted")


def test_the_quoted_cut_is_of_the_cell_that_was_chosen_beforehand_not_of_the_best() -> None:
    network, mbit, recipe = kernel_links.HEADLINE
    chosen = {
        f"links/{network}/{mbit}/{recipe}/0": {"seconds": [0.9]},
        f"links/{network}/{mbit}/sync-sgd/0": {"seconds": [1.0]},
    }
    figures = list(kernel_links.compute_figures({**RESULTS, **chosen}))
    assert figures[0].measured == pytest.approx(10.0)
    assert "VGG-9, 100 Mbit/s, duplex, which was chosen beforehand" in figures[0].note
    assert [round(figure.measured) for figure in figures[1:]] == [40, 25, 10]
    assert not _named(figures, "best baseline"), "none was measured"


def test_ours_are_compared_with_the_best_baseline_and_the_worst_counts() -> None:
    figures = list(kernel_links.compute_figures({**RESULTS, **OTHERS}))
    worst, dynacomm, duplex = figures[-3:]
    assert worst.name == "kernel-shaped links: iteration time over that of the best baseline, worst of ours"
    assert worst.measured == pytest.approx(1.5 / 1.25)
    assert worst.meets_goal is False
    assert worst.note.startswith("ResNet-20, 20 Mbit/s, duplex; the best baseline is ibatch, 1.25 s")
    assert [dynacomm.measured, duplex.measured] == pytest.approx([1.2 / 1.25, 1.2])
    faster = {"links/resnet20/20/duplex/0": {"seconds": [1.0]}}
    assert list(kernel_links.compute_figures({**RESULTS, **OTHERS, **faster}))[-3].meets_goal
    assert [len(chart.series) for chart in kernel_links.build_charts({**RESULTS, **OTHERS})] == [6]


def test_every_rate_is_scanned_and_the_middle_one_has_repeats_and_baselines() -> None:
    pieces = [piece for piece in LIVE.pieces(BenchmarkContext(quick=False)) if piece.name.startswith("links/")]
    keys = [tuple(piece.name.split("/")[1:]) for piece in pieces]
    assert len(set(keys)) == len(keys)
    for case in kernel_links.CASES.values():
        repeats = {
            mbit: [sum(key[:3] == (case.network, str(mbit), recipe) for key in keys) for recipe in RECIPES]
            for mbit in case.mbit
        }
        assert sorted(repeats[case.middle_mbit])[-6:] == [3] * 6
        assert all(sum(counts) == (18 if mbit == case.middle_mbit else 3) for mbit, counts in repeats.items())
    headline = [
        piece for piece in pieces if piece.name.startswith("links/" + "/".join(map(str, kernel_links.HEADLINE)))
    ]
    assert [(piece.parameters["rounds"], piece.parameters["warm_up"]) for piece in headline] == [(10, 8)] * 3


def test_recoveries_losses_and_doubles_are_figures() -> None:
    figures = LIVE.figures(RESULTS)
    killed = _named(figures, "kill -9: time to the next round without the device")[0]
    assert (killed.measured, killed.goal_text, killed.meets_goal) == (1.0, "≤ 2 s", True)
    cut = _named(figures, "link down: time to the next")
    assert [(figure.goal_text, figure.meets_goal) for figure in cut] == [("≤ 7 s", True), ("≤ 7 s", False)]
    assert cut[1].note == "longest 7.10 s; at most 4 batches redone"
    assert _named(figures, "2 % of packets dropped")[0].measured == 2.0
    assert [figure.meets_goal for figure in _named(figures, "rounds and batches")] == [True, False]


def test_without_root_the_kernels_links_are_shown_as_skipped() -> None:
    skipped = {
        name: {"skipped": "needs root"} if name.startswith(("links", "faults")) else result
        for name, result in RESULTS.items()
    }
    figures = LIVE.figures(skipped)
    assert [figure.note for figure in _named(figures, "skipped")] == ["needs root", "needs root"]
    assert LIVE.charts(skipped)


def test_every_piece_is_a_job_and_every_recipe_is_measured() -> None:
    full = [piece.name for piece in LIVE.pieces(BenchmarkContext(quick=False))]
    assert {name.split("/")[1] for name in full if name.startswith("lab/")} == set(RECIPES)
    assert len(make(live_trial.empty_job(10, 1)).fleet.members) == 10
    for recipe in RECIPES:
        assert len(make(live_trial.recipe_job(recipe, 2, 0)).fleet.members) == 3
    for case in kernel_links.CASES.values():
        for recipe in ("sync-sgd", "layer-by-layer", "ibatch", "mg-wfbp", "dynacomm", "duplex"):
            assert make(kernel_links.link_job(case, case.mbit[0], recipe)).task is not None


@pytest.mark.parametrize(("recipe", "shortest", "longest"), [("fedavg", 0.5, 5.0), ("ftpipehd", 0.05, 3.0)])
def test_rounds_of_the_lab_are_long_compared_with_their_overhead(recipe: str, shortest: float, longest: float) -> None:
    predicted = live_trial.predict_rounds(live_trial.recipe_job(recipe, 3, 0))
    assert shortest < sum(predicted) / len(predicted) < longest


@pytest.mark.parametrize("loop", ["rounds", "pipeline"])
def test_the_model_under_faults_has_nine_megabytes_and_the_default_lease(loop: str) -> None:
    job = make(network_faults.fault_job(loop))
    assert float(job.fleet.lease) == 5.0
    options = network_faults.fault_job(loop)["task"]["options"]["hidden"]
    inputs = 784 if loop == "rounds" else 256
    widths = [inputs, *options, 10]
    assert 8.5e6 < 4 * sum(a * b for a, b in pairwise(widths)) < 9.5e6


def test_a_pull_is_measured_against_two_plain_transports() -> None:
    result = measure_pulls(2_000_000, 2)
    assert [len(seconds) for seconds in result[:3]] == [2, 2, 2]
    assert min(min(result.node), min(result.single), min(result.chunked)) > 0
    results = {"pull/0": {"node": 80.0, "single": 50.0, "chunked": 100.0, "beyond_bytes": 3 << 20}}
    figures = TRANSPORT.figures(results)
    assert [figure.meets_goal for figure in figures if figure.goal] == [True, False]
    assert figures[0].measured == pytest.approx(80.0)
