"""`live`: overhead of a live round, accuracy of the simulated world's predictions, and overlap in real processes."""

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
_PEER_RESULTS = Path(__file__).parents[1] / "results" / "peers-live.json"
_PEERS_COMMAND = "python -m benchmarks.peers live"
_FLOWER = f"Flower's SuperLink and 10 SuperNodes on the same machine, by `{_PEERS_COMMAND}`"


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Repeats alternate between jobs, so that other load on the machine affects all of them."""
    repeats, empty, lab, overlap = (1, 20, 6, 4) if context.quick else (2, 200, 30, 12)
    pieces = []
    for repeat in range(repeats):
        pieces.append(
            _live_piece(
                f"empty/{repeat}", {"rounds": empty}, live_trial.empty_job(_DEVICES, empty), emulate_fleet=False
            )
        )
        pieces.append(
            _live_piece(f"lab/{repeat}", {"rounds": lab}, live_trial.uneven_job(lab, context.seed), emulate_fleet=True)
        )
        pieces += [
            _live_piece(
                f"{recipe}/{repeat}",
                {"rounds": overlap},
                live_trial.overlapped_job(recipe, overlap),
                emulate_fleet=True,
            )
            for recipe in _RECIPES
        ]
    return pieces


def _live_piece(
    name: str, parameters: Mapping[str, Any], job: Mapping[str, Any], *, emulate_fleet: bool
) -> BenchmarkPiece:
    def measure_and_predict() -> dict[str, float]:
        times = {"measured_s": statistics.median(measure_rounds(job, emulate_fleet=emulate_fleet))}
        return {**times, "predicted_s": statistics.median(predict_rounds(job))} if emulate_fleet else times

    return BenchmarkPiece(
        name, parameters, measure_and_predict, 10.0 + parameters["rounds"] * (1.5 if emulate_fleet else 0.1)
    )


def compute_figures(results: Results) -> list[Figure]:
    return [*_empty_figures(results), *_lab_figures(results), *_overlap_figures(results)]


def _empty_figures(results: Results) -> list[Figure]:
    ours = [1e3 * seconds for seconds in _piece_values(results, "empty", "measured_s")]
    name = f"round of {_DEVICES} devices, 1 MiB model, almost no training"
    peers = _load_peer_results()
    if peers is None:
        return [figure_of_repeats(name, "ms", ours, note=f"for a comparison with Flower, run `{_PEERS_COMMAND}`")]
    return [
        figure_of_repeats(name, "ms", ours, published=PublishedValue(1e3 * peers.flower_s, _FLOWER)),
        Figure(
            name="  Flower's round over ours, measured in turns",
            unit="x",
            measured=peers.ratio,
            goal=Goal("≥", 10.0),
            note=f"`{_PEERS_COMMAND}`{', a quick run' if peers.quick else ''}",
        ),
    ]


class _PeerResults(NamedTuple):
    """The result of the comparison with Flower."""

    flower_s: float
    ratio: float
    quick: bool


def _load_peer_results() -> _PeerResults | None:
    """None if the comparison has not been run."""
    try:
        document = json.loads(_PEER_RESULTS.read_text())
        measured = {figure["name"]: float(figure["measured"]) for figure in document["figures"]}
        return _PeerResults(
            measured["round: Flower"], measured["round: advantage over Flower"], document["mode"] == "quick"
        )
    except (OSError, ValueError, KeyError):
        return None


def _lab_figures(results: Results) -> list[Figure]:
    return [
        figure_of_repeats("round of 8 uneven devices, shaped links", "s", _piece_values(results, "lab", "measured_s")),
        _deviation_figure("  error of the simulated world's prediction", results, "lab"),
    ]


def _overlap_figures(results: Results) -> list[Figure]:
    figures = []
    for recipe, title in _RECIPES.items():
        name = f"ResNet-20, 2 devices, communication ≈ computation: {title}, iteration"
        figures.append(figure_of_repeats(name, "s", _piece_values(results, recipe, "measured_s")))
        figures.append(_deviation_figure("  error of the prediction", results, recipe))
    figures.append(
        figure_of_repeats(
            "reduction of dynacomm compared with sequential",
            "%",
            _time_reductions(results, "dynacomm"),
            goal=Goal("≥", 35.0),
        )
    )
    figures.append(
        figure_of_repeats("reduction of duplex compared with sequential", "%", _time_reductions(results, "duplex"))
    )
    return figures


def _deviation_figure(name: str, results: Results, piece: str) -> Figure:
    measured, predicted = _piece_values(results, piece, "measured_s"), _piece_values(results, piece, "predicted_s")
    errors = [100 * abs(live / simulated - 1) for live, simulated in zip(measured, predicted, strict=True)]
    return figure_of_repeats(
        name, "%", errors, goal=Goal("≤", 10.0), note=f"predicted {statistics.median(predicted):.4g} s"
    )


def _time_reductions(results: Results, recipe: str) -> list[float]:
    sequential, other = _piece_values(results, "sync-sgd", "measured_s"), _piece_values(results, recipe, "measured_s")
    return [100 * (1 - ours / baseline) for ours, baseline in zip(other, sequential, strict=True)]


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
        "Every device is a process on this machine; links and speeds are emulated by our own transport and throttle,"
        " except in the first figure, where everything runs as fast as the machine can.",
        "Predictions are from the same job in the simulated world. Times are medians over rounds, without the first.",
    ),
)
