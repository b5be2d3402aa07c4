"""`live`: what a round costs by itself, how well the simulated world predicts a lab, and overlap on real processes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from potluck.bench.chart import Chart, Series
from potluck.bench.experiment import Benchmark, Context, Piece, Results
from potluck.bench.figures import Figure, Goal, Published, of_repeats
from potluck.bench.live import jobs
from potluck.bench.live.trial import measure, predict

__all__ = ["BENCHMARK"]

_DEVICES = 10
_RECIPES = {"sync-sgd": "sequential", "dynacomm": "dynacomm", "duplex": "duplex"}
_PEERS = Path("bench/results/peers-live.json")
_COMPARE = "benchmarks/peers/run.py live"
_FLOWER = f"Flower's SuperLink and 10 SuperNodes on the same machine, by {_COMPARE}"


def pieces(context: Context) -> list[Piece]:
    """Repeats take turns, so that what else the machine does falls on all of them alike."""
    repeats, empty, lab, overlap = (1, 20, 6, 4) if context.quick else (2, 200, 30, 12)
    found = []
    for repeat in range(repeats):
        found.append(_piece(f"empty/{repeat}", {"rounds": empty}, jobs.empty(_DEVICES, empty), act_out=False))
        found.append(_piece(f"lab/{repeat}", {"rounds": lab}, jobs.uneven(lab, context.seed), act_out=True))
        found += [
            _piece(f"{recipe}/{repeat}", {"rounds": overlap}, jobs.overlapped(recipe, overlap), act_out=True)
            for recipe in _RECIPES
        ]
    return found


def _piece(name: str, parameters: Mapping[str, Any], job: Mapping[str, Any], *, act_out: bool) -> Piece:
    def take() -> dict[str, float]:
        found = {"measured_s": statistics.median(measure(job, act_out=act_out))}
        return {**found, "predicted_s": statistics.median(predict(job))} if act_out else found

    return Piece(name, parameters, take, 10.0 + parameters["rounds"] * (1.5 if act_out else 0.1))


def figures(results: Results) -> list[Figure]:
    return [*_empty_figures(results), *_lab_figures(results), *_overlap_figures(results)]


def _empty_figures(results: Results) -> list[Figure]:
    ours = [1e3 * seconds for seconds in _of(results, "empty", "measured_s")]
    name = f"a round of {_DEVICES} devices, 1 MiB model, hardly any training"
    peers = _peers()
    if peers is None:
        return [of_repeats(name, "ms", ours, note=f"beside Flower: {_COMPARE}")]
    return [
        of_repeats(name, "ms", ours, published=Published(1e3 * peers.flower_s, _FLOWER)),
        Figure(
            name="  less than Flower's, side by side",
            unit="x",
            measured=peers.ratio,
            goal=Goal("≥", 10.0),
            note=f"{_COMPARE}{', a quick run' if peers.quick else ''}",
        ),
    ]


class _Peers(NamedTuple):
    """What the comparison with peers has found."""

    flower_s: float
    ratio: float
    quick: bool


def _peers() -> _Peers | None:
    """None where that was not run here."""
    try:
        document = json.loads(_PEERS.read_text())
        found = {figure["name"]: float(figure["measured"]) for figure in document["figures"]}
        return _Peers(found["round: Flower"], found["round: Potluck against Flower"], document["mode"] == "quick")
    except (OSError, ValueError, KeyError):
        return None


def _lab_figures(results: Results) -> list[Figure]:
    return [
        of_repeats("8 uneven devices, shaped links: a round", "s", _of(results, "lab", "measured_s")),
        _deviation("  predicted by the simulated world, off by", results, "lab"),
    ]


def _overlap_figures(results: Results) -> list[Figure]:
    found = []
    for recipe, title in _RECIPES.items():
        name = f"ResNet-20, 2 devices, communication ≈ computation: {title}, an iteration"
        found.append(of_repeats(name, "s", _of(results, recipe, "measured_s")))
        found.append(_deviation("  predicted, off by", results, recipe))
    found.append(of_repeats("dynacomm below sequential", "%", _cuts(results, "dynacomm"), goal=Goal("≥", 35.0)))
    found.append(of_repeats("duplex below sequential", "%", _cuts(results, "duplex")))
    return found


def _deviation(name: str, results: Results, piece: str) -> Figure:
    measured, predicted = _of(results, piece, "measured_s"), _of(results, piece, "predicted_s")
    off = [100 * abs(live / paper - 1) for live, paper in zip(measured, predicted, strict=True)]
    return of_repeats(name, "%", off, goal=Goal("≤", 10.0), note=f"predicted {statistics.median(predicted):.4g} s")


def _cuts(results: Results, recipe: str) -> list[float]:
    sequential, other = _of(results, "sync-sgd", "measured_s"), _of(results, recipe, "measured_s")
    return [100 * (1 - less / more) for less, more in zip(other, sequential, strict=True)]


def _of(results: Results, piece: str, key: str) -> list[float]:
    return [float(result[key]) for name, result in results.items() if name.startswith(f"{piece}/")]


def charts(results: Results) -> Sequence[Chart]:
    rows = {"lab": "8 uneven devices", **_RECIPES}
    sides = {"predicted_s": "predicted", "measured_s": "measured"}
    series = [
        Series(title, [statistics.median(_of(results, piece, key)) for piece in rows]) for key, title in sides.items()
    ]
    return [Chart(title="Seconds per round", y_label="s", groups=list(rows.values()), series=series)]


BENCHMARK = Benchmark(
    name="live",
    summary="what a live round costs, and whether the simulated world predicts it",
    pieces=pieces,
    figures=figures,
    charts=charts,
    notes=(
        "Every device is a process of this machine; links and speeds are acted out by our own transport and throttle,"
        " except in the first figure, where everything is as fast as the machine is.",
        "Predicted: the same job in the simulated world. Medians over rounds; the first round does not count.",
    ),
)
