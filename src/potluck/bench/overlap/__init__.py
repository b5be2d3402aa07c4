"""`overlap`: how much of the transfers hides behind computation, beside what DynaComm's authors published."""

from __future__ import annotations

from potluck.bench.experiment import Benchmark, Context, Piece
from potluck.bench.overlap.findings import figures
from potluck.bench.overlap.forecast import forecast_case, planning_time, sensitivity
from potluck.bench.overlap.lived import BATCH, PLACES, lived_case
from potluck.bench.overlap.picture import charts
from potluck.bench.overlap.workload import BANDWIDTHS, BATCHES, NETWORKS, RTT_S

__all__ = ["BENCHMARK"]

_QUICKLY_LIVED = ("vgg19", "googlenet")
_SECONDS = {"resnet152": 10.0, "inception-v4": 10.0, "googlenet": 4.0, "vgg19": 4.0}  # of a forecast, about


def pieces(context: Context) -> list[Piece]:
    """The forecasts are the same in both modes; fewer are lived through, and the planner is timed less often."""
    runs = 300 if context.quick else 5000
    timing = Piece("planning", {"runs": runs}, lambda: planning_time(runs, context.seed), runs / 1000)
    other = Piece("other speeds", {"bandwidths": list(BANDWIDTHS), "rtt_s": RTT_S}, sensitivity, 2.0)
    forecasts = [_forecast_piece(network, batch) for network in NETWORKS for batch in BATCHES]
    return [timing, other, *forecasts, *map(_lived_piece, _QUICKLY_LIVED if context.quick else NETWORKS)]


def _forecast_piece(network: str, batch: int) -> Piece:
    parameters = {"network": network, "batch": batch, "bandwidths": list(BANDWIDTHS), "rtt_s": RTT_S}
    return Piece(f"{network}/{batch}", parameters, lambda: forecast_case(network, batch), _SECONDS[network])


def _lived_piece(network: str) -> Piece:
    parameters = {"network": network, "batch": BATCH, "places": list(PLACES), "rtt_s": RTT_S}
    return Piece(f"{network}, lived", parameters, lambda: lived_case(network), 5 * _SECONDS[network])


BENCHMARK = Benchmark(
    name="overlap",
    summary="how much of the transfers hides behind computation (DynaComm)",
    pieces=pieces,
    figures=figures,
    charts=charts,
    notes=(
        "Forecast by the planners, per-layer costs from each network's MACs (backward twice forward) and parameters;"
        " every segment costs one round trip of 10 ms. A sample of the cases also runs in the simulated world.",
        "All networks run on one device speed: the one that centres the eight balance points of communication and"
        " computation in 1 to 5 Gbit/s, where the published gains peak.",
        "8 workers share fairly the links of four servers, each like their own; one alone computes and sends nothing.",
        "In the charts what is worse than 50 % above sequential is drawn at -50 %.",
    ),
)
