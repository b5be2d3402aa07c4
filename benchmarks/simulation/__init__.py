"""`simulation`: clients per second compared with a bare loop, rounds per second and start of a large fleet, memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.benchmark_figures import Figure, Goal, bar_series, figure_of_repeats
from benchmarks.measured_code import SIMULATED_PACKAGE
from benchmarks.simulation import client_throughput, fleet_scale
from benchmarks.simulation.simulation_workload import DEVICES, MODELS
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = ["BENCHMARK"]

_RATIO_GOALS = {"mlp": 0.7, "cnn": 1.8}


class _SimulationSize(NamedTuple):
    """How much is measured in a quick or a full run."""

    repeats: int
    rounds: dict[str, int]
    fleet_rounds: int
    starts: int
    memory_rounds: int


_QUICK = _SimulationSize(repeats=2, rounds={"mlp": 15, "cnn": 1}, fleet_rounds=40, starts=1, memory_rounds=100)
_FULL = _SimulationSize(repeats=9, rounds={"mlp": 60, "cnn": 4}, fleet_rounds=300, starts=3, memory_rounds=500)


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Repeats alternate between models, so that other load on the machine affects all of them."""
    size = _QUICK if context.quick else _FULL
    pieces = []
    for repeat in range(size.repeats):
        pieces += [_throughput_piece(model, size.rounds[model], repeat, context) for model in MODELS]
        pieces.append(_fleet_piece(10_000, size.fleet_rounds, repeat, context))
    pieces += [_fleet_piece(100_000, 1, repeat, context) for repeat in range(size.starts)]
    rounds, seed = size.memory_rounds, context.seed
    pieces.append(
        BenchmarkPiece(
            "memory", {"rounds": rounds}, lambda: fleet_scale.measure_memory_in_child(rounds, seed), rounds / 6 + 15
        )
    )
    return pieces


def _throughput_piece(model: str, rounds: int, repeat: int, context: BenchmarkContext) -> BenchmarkPiece:
    parameters = {"model": model, "devices": DEVICES, "rounds": rounds, "repeat": repeat}
    expected_s = (rounds + 1) * (12.0 if model == "cnn" else 0.2)
    return BenchmarkPiece(
        f"{model}/{repeat}",
        parameters,
        lambda: client_throughput.measure_throughput(model, rounds, repeat, context.seed),
        expected_s,
    )


def _fleet_piece(devices: int, rounds: int, repeat: int, context: BenchmarkContext) -> BenchmarkPiece:
    parameters = {"devices": devices, "rounds": rounds, "repeat": repeat}
    expected_s = devices / 10_000 + rounds / 20
    return BenchmarkPiece(
        f"{devices}/{repeat}", parameters, lambda: fleet_scale.measure_fleet(devices, rounds, context.seed), expected_s
    )


def compute_figures(results: Results) -> list[Figure]:
    return [
        *(figure for model in MODELS for figure in _throughput_figures(model, results)),
        figure_of_repeats(
            "10,000 devices, 100 per round, timing only",
            "rounds/s",
            _piece_values(results, "10000/", "rounds_per_s"),
            goal=Goal("≥", 20.0),
            executed="measured",
        ),
        figure_of_repeats(
            "10,000 devices, time to the first committed round",
            "s",
            _piece_values(results, "10000/", "start_s"),
            executed="measured",
        ),
        figure_of_repeats(
            "100,000 devices, time to the first committed round",
            "s",
            _piece_values(results, "100000/", "start_s"),
            goal=Goal("≤", 10.0),
            executed="measured",
        ),
        _memory_figure(results["memory"]),
        Figure(
            name="10,000 devices, simulated time of the first 40 rounds",
            unit="s",
            measured=_piece_values(results, "10000/", "virtual_s")[0],
            note="simulated time: the same on every machine",
            executed="simulated",
        ),
    ]


def _throughput_figures(model: str, results: Results) -> list[Figure]:
    goal = _RATIO_GOALS[model]
    title = MODELS[model].title
    ours, bare = (
        _piece_values(results, f"{model}/", "potluck_clients_per_s"),
        _piece_values(results, f"{model}/", "bare_clients_per_s"),
    )
    ratios = [mine / plain for mine, plain in zip(ours, bare, strict=True)]
    return [
        figure_of_repeats(
            f"{title}: clients per second relative to a bare loop",
            "x",
            ratios,
            goal=Goal("≥", goal),
            executed="measured",
        ),
        figure_of_repeats(
            f"{title}: CPU time per client relative to a bare loop",
            "x",
            _cpu_ratios(model, results),
            executed="measured",
        ),
        figure_of_repeats(f"{title}: clients per second", "/s", ours, executed="measured"),
        figure_of_repeats(
            f"{title}: clients per second, bare PyTorch loop in one thread", "/s", bare, executed="measured"
        ),
    ]


def _cpu_ratios(model: str, results: Results) -> list[float]:
    """CPU time, which other load on the machine hardly affects."""
    ours, bare = (
        _piece_values(results, f"{model}/", "potluck_cpu_ms"),
        _piece_values(results, f"{model}/", "bare_cpu_ms"),
    )
    return [mine / plain for mine, plain in zip(ours, bare, strict=True)]


def _memory_figure(result: Any) -> Figure:
    growth = 100 * abs(result["end_bytes"] / result["warm_bytes"] - 1)
    note = f"{result['warm_bytes'] / 2**20:.0f} MiB after {result['warm_rounds']} warm-up rounds"
    name = f"memory: change over {result['rounds']} rounds"
    return Figure(name=name, unit="%", measured=growth, goal=Goal("≤", 5.0), note=note, executed="measured")


def _piece_values(results: Results, prefix: str, key: str) -> list[float]:
    return [float(result[key]) for name, result in results.items() if name.startswith(prefix)]


def build_charts(results: Results) -> Sequence[Chart]:
    ratios = [figure for figure in compute_figures(results) if figure.name.endswith("second relative to a bare loop")]
    relative = Chart(
        title="Clients per second, relative to a bare loop",
        y_label="times the bare loop",
        groups=[model.title for model in MODELS.values()],
        series=[bar_series("Potluck, 95 % interval", ratios)],
        marks=[("bare loop", 1.0)],
    )
    growth = results["memory"]["series"]
    held = Chart(
        title="Memory over a run",
        y_label="MiB",
        x_label="round",
        series=[ChartSeries("resident", [mib for _, mib in growth], [number for number, _ in growth])],
    )
    return [relative, held]


BENCHMARK = Benchmark(
    name="simulation",
    summary=CATALOGUE["simulation"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    notes=(
        "The bare loop has one model, one thread and the data of each client in memory; it models no time, links or"
        " devices.",
        "Potluck uses every core and models devices and links; each repeat measures both, one after the other.",
        "Rounds and clients per second exclude the start of the run, which has its own figures.",
        "Other systems with the same workload: `python -m benchmarks.peers simulation`.",
    ),
    measures=SIMULATED_PACKAGE,
)
