"""`live`: what a round costs by itself, how well the simulated world predicts a lab, and overlap on real processes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.benchmark_figures import Figure, Goal, PublishedValue, figure_of_repeats
from benchmarks.live import live_trial
from benchmarks.live.live_trial import measure_rounds, predict_rounds
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["BENCHMARK"]

_DEVICES = 10
_RECIPES = {"sync-sgd": "sequential", "dynacomm": "dynacomm", "duplex": "duplex"}
_PEERS = Path("benchmarks/results/peers-live.json")
_COMPARE = "benchmarks/peers/run.py live"
_FLOWER = f"Flower's SuperLink and 10 SuperNodes on the same machine, by {_COMPARE}"


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Repeats take turns, so that what else the machine does falls on all of them alike."""
    repeats, empty, lab, overlap = (1, 20, 6, 4) if context.quick else (2, 200, 30, 12)
    found = []
    for repeat in range(repeats):
        found.append(
            _live_piece(f"empty/{repeat}", {"rounds": empty}, live_trial.empty_job(_DEVICES, empty), act_out=False)
        )
        found.append(
            _live_piece(f"lab/{repeat}", {"rounds": lab}, live_trial.uneven_job(lab, context.seed), act_out=True)
        )
        found += [
            _live_piece(
                f"{recipe}/{repeat}", {"rounds": overlap}, live_trial.overlapped_job(recipe, overlap), act_out=True
            )
            for recipe in _RECIPES
        ]
    return found


def _live_piece(name: str, parameters: Mapping[str, Any], job: Mapping[str, Any], *, act_out: bool) -> BenchmarkPiece:
    def measure_and_predict() -> dict[str, float]:
        found = {"measured_s": statistics.median(measure_rounds(job, act_out=act_out))}
        return {**found, "predicted_s": statistics.median(predict_rounds(job))} if act_out else found

    return BenchmarkPiece(
        name, parameters, measure_and_predict, 10.0 + parameters["rounds"] * (1.5 if act_out else 0.1)
    )


def compute_figures(results: Results) -> list[Figure]:
    return [*_empty_figures(results), *_lab_figures(results), *_overlap_figures(results)]


def _empty_figures(results: Results) -> list[Figure]:
    ours = [1e3 * seconds for seconds in _piece_values(results, "empty", "measured_s")]
    name = f"a round of {_DEVICES} devices, 1 MiB model, hardly any training"
    peers = _load_peer_results()
    if peers is None:
        return [figure_of_repeats(name, "ms", ours, note=f"beside Flower: {_COMPARE}")]
    return [
        figure_of_repeats(name, "ms", ours, published=PublishedValue(1e3 * peers.flower_s, _FLOWER)),
        Figure(
            name="  less than Flower's, side by side",
            unit="x",
            measured=peers.ratio,
            goal=Goal("≥", 10.0),
            note=f"{_COMPARE}{', a quick run' if peers.quick else ''}",
        ),
    ]


class _PeerResults(NamedTuple):
    """What the comparison with peers has found."""

    flower_s: float
    ratio: float
    quick: bool


def _load_peer_results() -> _PeerResults | None:
    """None where that was not run here."""
    try:
        document = json.loads(_PEERS.read_text())
        found = {figure["name"]: float(figure["measured"]) for figure in document["figures"]}
        return _PeerResults(found["round: Flower"], found["round: Potluck against Flower"], document["mode"] == "quick")
    except (OSError, ValueError, KeyError):
        return None


def _lab_figures(results: Results) -> list[Figure]:
    return [
        figure_of_repeats("8 uneven devices, shaped links: a round", "s", _piece_values(results, "lab", "measured_s")),
        _deviation_figure("  predicted by the simulated world, off by", results, "lab"),
    ]


def _overlap_figures(results: Results) -> list[Figure]:
    found = []
    for recipe, title in _RECIPES.items():
        name = f"ResNet-20, 2 devices, communication ≈ computation: {title}, an iteration"
        found.append(figure_of_repeats(name, "s", _piece_values(results, recipe, "measured_s")))
        found.append(_deviation_figure("  predicted, off by", results, recipe))
    found.append(
        figure_of_repeats("dynacomm below sequential", "%", _time_reductions(results, "dynacomm"), goal=Goal("≥", 35.0))
    )
    found.append(figure_of_repeats("duplex below sequential", "%", _time_reductions(results, "duplex")))
    return found


def _deviation_figure(name: str, results: Results, piece: str) -> Figure:
    measured, predicted = _piece_values(results, piece, "measured_s"), _piece_values(results, piece, "predicted_s")
    off = [100 * abs(live / paper - 1) for live, paper in zip(measured, predicted, strict=True)]
    return figure_of_repeats(
        name, "%", off, goal=Goal("≤", 10.0), note=f"predicted {statistics.median(predicted):.4g} s"
    )


def _time_reductions(results: Results, recipe: str) -> list[float]:
    sequential, other = _piece_values(results, "sync-sgd", "measured_s"), _piece_values(results, recipe, "measured_s")
    return [100 * (1 - less / more) for less, more in zip(other, sequential, strict=True)]


def _piece_values(results: Results, piece: str, key: str) -> list[float]:
    return [float(result[key]) for name, result in results.items() if name.startswith(f"{piece}/")]


def build_charts(results: Results) -> Sequence[Chart]:
    rows = {"lab": "8 uneven devices", **_RECIPES}
    sides = {"predicted_s": "predicted", "measured_s": "measured"}
    series = [
        ChartSeries(title, [statistics.median(_piece_values(results, piece, key)) for piece in rows])
        for key, title in sides.items()
    ]
    return [Chart(title="Seconds per round", y_label="s", groups=list(rows.values()), series=series)]


BENCHMARK = Benchmark(
    name="live",
    summary=CATALOGUE["live"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    notes=(
        "Every device is a process of this machine; links and speeds are acted out by our own transport and throttle,"
        " except in the first figure, where everything is as fast as the machine is.",
        "Predicted: the same job in the simulated world. Medians over rounds; the first round does not count.",
    ),
)
