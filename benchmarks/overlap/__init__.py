"""`overlap`: how much of the transfers DynaComm hides behind computation, compared with the published values."""

from __future__ import annotations

from functools import partial

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.measured_code import SIMULATED_PACKAGE
from benchmarks.overlap.overlap_figures import build_charts, compute_figures
from benchmarks.overlap.overlap_forecast import forecast_case, measure_planning, speed_sensitivity
from benchmarks.overlap.overlap_simulation import BATCH, SIMULATED_ROWS, simulate_case
from benchmarks.overlap.overlap_workload import BANDWIDTHS, BATCHES, NETWORKS, RTT_S

__all__ = ["BENCHMARK"]

_QUICKLY_SIMULATED = ("vgg19", "googlenet")
_SECONDS = {"resnet152": 10.0, "inception-v4": 10.0, "googlenet": 4.0, "vgg19": 4.0}  # of a forecast, about


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """Both modes have the same forecasts; a quick run simulates fewer cases and times the planner less often."""
    runs = 300 if context.quick else 5000
    timing = BenchmarkPiece("planning", {"runs": runs}, lambda: measure_planning(runs, context.seed), runs / 1000)
    band = {"bandwidths": list(BANDWIDTHS), "rtt_s": RTT_S}
    other = BenchmarkPiece("other speeds", band, speed_sensitivity, 2.0, parallel=True)
    forecasts = [_forecast_piece(network, batch) for network in NETWORKS for batch in BATCHES]
    return [timing, other, *forecasts, *map(_simulated_piece, _QUICKLY_SIMULATED if context.quick else NETWORKS)]


def _forecast_piece(network: str, batch: int) -> BenchmarkPiece:
    parameters = {"network": network, "batch": batch, "bandwidths": list(BANDWIDTHS), "rtt_s": RTT_S}
    work = partial(forecast_case, network, batch)
    return BenchmarkPiece(f"{network}/{batch}", parameters, work, _SECONDS[network], parallel=True)


def _simulated_piece(network: str) -> BenchmarkPiece:
    parameters = {"network": network, "batch": BATCH, "places": list(SIMULATED_ROWS), "rtt_s": RTT_S}
    work = partial(simulate_case, network)
    return BenchmarkPiece(f"{network}, simulated", parameters, work, 5 * _SECONDS[network], parallel=True)


BENCHMARK = Benchmark(
    name="overlap",
    summary=CATALOGUE["overlap"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    notes=(
        "Times are forecast by the planners from per-layer costs: MACs of each network (backward is twice forward)"
        " and parameters; every segment costs one round trip of 10 ms. Some cases also run in the simulated world.",
        "All networks run at one device speed: the one that centres the eight balance points of communication and"
        " computation in 1 to 5 Gbit/s, where the published gains peak.",
        "8 workers share the links of four servers fairly, each as fast as a worker's; a single worker sends nothing.",
        "The charts cut off at -50 %: strategies that are slower still are drawn there.",
    ),
    measures=(*SIMULATED_PACKAGE, "!benchmarks/overlap/overlap_figures.py"),
)
