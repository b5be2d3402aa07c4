"""Made-up results of all pieces of a full run, from which a benchmark computes every figure that it can show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, Results
from benchmarks.benchmark_catalogue import benchmark_names, find_benchmark
from benchmarks.benchmark_figures import Figure
from benchmarks.dropout.dropout_measurements import RATES
from benchmarks.overlap.overlap_simulation import BATCH
from benchmarks.overlap.overlap_workload import BANDWIDTHS
from benchmarks.peers.peer_catalogue import COMPARISONS
from benchmarks.peers.peer_comparison import comparison_benchmark
from benchmarks.pipeline.pipeline_experiments import LAYOUTS
from benchmarks.result_files import BenchmarkResult, named_figures
from benchmarks.streaming.rate_race import POLICIES
from potluck.planning.segments import STRATEGIES

__all__ = ["benchmarks_with_figures", "full_figures", "full_results"]

_SECONDS = dict.fromkeys(STRATEGIES, 1.0)
_ROWS = [
    {"gbit_s": rate / 1e9, "iteration_s": _SECONDS, "together_s": _SECONDS, "duplex_s": 0.8} for rate in BANDWIDTHS
]
_SIMULATED_ROWS = [
    {"recipe": recipe, "gbit_s": rate, "workers": workers, "simulated_s": 1.0, "forecast_s": 1.0}
    for rate in (1.0, 2.0)
    for recipe, workers in (("sync-sgd", 1), ("dynacomm", 1), ("duplex", 1), ("dynacomm", 8))
]
_LAYOUT = {"period_s": 1.0, "cuts": [1, 2], "order": ["a", "b"], "moves": 1, "found_after": 10}
_RECOVERY = {
    "seconds": 1.0, "flows_s": 1.0, "cost_s": 1.0, "rolled_back": 1.0, "period_before_s": 1.0, "period_after_s": 1.0,
}  # fmt: skip
_LEARNED = {"accuracy": 0.5, "time_s": 9.0, "times_s": [9.0], "accuracies": [0.5], "layouts": 1, "deaths": 0}
_RACE = {
    "accuracy": 0.7, "top-5": 0.9, "time_s": 90.0, "rounds": 10, "samples": 100, "target": 0.6,
    "curve": [(0, 0.1), (90, 0.7)], "target_rounds": 8, "buffers": {policy: {"peak": 10} for policy in POLICIES},
}  # fmt: skip
_CODED = {
    "accuracy": 0.7, "time_s": 9.0, "pushed_bytes": 10.0, "dense_bytes": 1000.0, "pulled_bytes": 10.0,
    "dense_pulled_bytes": 1000.0, "cnc": 1.0,
}  # fmt: skip
_GROUPED = {
    "accuracy": 0.9, "calibrated readout": 0.9, "calibrated heads": 0.9, "samples": 100.0, "forward": 10.0,
    "training": 6.0, "training_macs": (60.0, 10.0), "device_macs": 500.0, "lr": 0.05,
}  # fmt: skip
_SPEEDS = {"bare_clients_per_s": 1.0, "potluck_clients_per_s": 1.0, "bare_cpu_ms": 1.0, "potluck_cpu_ms": 1.0}
_MEMORY = {"rounds": 500, "warm_rounds": 100, "warm_bytes": 100, "end_bytes": 94, "series": [[1, 90.0]]}
_TASK = {"metric": 0.5, "loss": 1.0, "bytes": 2.1e6, "updates": 10, "samples": 100}

# By benchmark: patterns of pieces' names, the first of which decides.
_RESULTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "simulation": {
        "mlp/.*|cnn/.*": _SPEEDS,
        "1.*": {"start_s": 2.0, "rounds_per_s": 19.0, "virtual_s": 4.0},
        "memory": _MEMORY,
    },
    "overlap": {
        "planning": {"milliseconds": [1.0, 2.0]},
        "other speeds": {"slowest": 0.1, "fastest": 0.1, "flops": [1e9, 2e9]},
        ".*, simulated": {"simulated": "{0}", "batch": BATCH, "rows": _SIMULATED_ROWS},
        ".*": {
            "network": "{0}", "batch": BATCH, "rows": _ROWS, "largest_layer_share": 0.1, "device_flops": 1e9,
            "compute_s": 1.0, "balance_gbit_s": 2.0,
        },
    },
    "pipeline": {
        "1:1:.*": {"capacities": [1, 1, 2], "bound_s": 1.0, **dict.fromkeys(LAYOUTS, _LAYOUT)},
        "adaptation": {"before_s": 1.0, "adapted_s": 1.0, "static_s": 1.0, "best_s": 1.0, "series": [1.0]},
        "slow link": {"before_s": 1.0, "adapted_s": 1.0, "nominal_s": 1.0, "batches": 5, "order": []},
        "live crashes": {"seconds": [1.0], "notice_s": [1.0], "flows_s": [1.0], "rolled_back": 1, "batches": 80},
        "replication/.*": {"none": 1.0, "incremental": 1.0, "incremental stride": 1},
        "recovery/.*": _RECOVERY,
        "batches in flight": {"default_s": 1.0, "unlimited_s": 1.0},
        "learning/.*": _LEARNED,
    },
    "dropout": {
        "step/.*": {str(rate): {"time": 0.5, "macs": 0.5, "whole_s": 0.1} for rate in RATES},
        "exploration": {"minutes": 5.0, "evaluations": 9, "hypervolume": 1.0, "uniform_hypervolume": 1.0, "behind": 0},
        ".*": {"times_s": [1.0, 2.0], "accuracies": [0.1, 0.5], "end_s": 2.0},
    },
    "decoupled": {".*": _GROUPED},
    "transport": {".*": {"node": 80.0, "single": 50.0, "chunked": 100.0, "beyond_bytes": 3 << 20}},
    "live": {
        "empty/.*": {"measured_s": 0.02},
        "links/.*": {"seconds": [1.0]},
        "faults/.*/loss/.*": {"rates": [1.0, 1.0], "lost": 0, "doubled": 0},
        "faults/.*": {"seconds": 0.5, "redone": 0, "lost": 0, "doubled": 0},
        "lab/.*": {"measured_s": 1.0, "predicted_s": 1.0},
    },
    "streaming": {
        "tuning/.*": {"accuracy": 0.5},
        "bare loop": {"accuracy": 0.5, "lr": 0.1, "batch": 10},
        "skew/.*": {"accuracy": 0.5, "top-5": 0.75, "shared": 10, "trained": 10, "time_s": 1.0},
        "speed": {"ours_s": [1.0, 2.0], "reference_s": [1.0, 1.0]},
        "(ddl|scadles|scadles-plus)/.*": _RACE,
        ".*": _CODED,
    },
    "tasks": {
        ".*/described": {"trained_bytes": 1e5, "best": 0.4},
        ".*/step-.*": {"plain_ms": 10.0, "potluck_ms": 12.0},
        ".*": _TASK,
    },
}  # fmt: skip


def benchmarks_with_figures() -> dict[str, Benchmark]:
    """All that `potluck bench` and `python -m benchmarks.peers` measure, but `faults`, whose pieces return figures."""
    benchmarks = [find_benchmark(name) for name in benchmark_names() if name != "faults"]
    return {each.name: each for each in (*benchmarks, *map(comparison_benchmark, COMPARISONS.values()))}


def full_results(benchmark: Benchmark) -> Results:
    pieces = benchmark.pieces(BenchmarkContext(quick=False))
    if benchmark.name.startswith("peers-"):
        keys = ("clients_per_s", "moved", "round_s", "iteration_s", "recovery_s")
        return {piece.name: {"figures": dict.fromkeys(keys, 1.0)} for piece in pieces}
    return {piece.name: _made_up_result(benchmark.name, piece.name) for piece in pieces}


def _made_up_result(benchmark: str, piece: str) -> Mapping[str, Any]:
    """Where a result names its network, that is the first word of the piece's name."""
    result = next(result for pattern, result in _RESULTS[benchmark].items() if re.fullmatch(pattern, piece))
    network = re.split("[/,]", piece)[0]
    return {key: network if value == "{0}" else value for key, value in result.items()}


def full_figures(benchmark: Benchmark) -> dict[str, Figure]:
    """All figures of a full run by their full names."""
    figures = tuple(benchmark.figures(full_results(benchmark)))
    result = BenchmarkResult(name=benchmark.name, summary="", mode="full", command="", date="", figures=figures)
    return {named.name: named.figure for named in named_figures(result)}
