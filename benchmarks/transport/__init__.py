"""`transport`: a 100 MB pull over loopback through a Node, compared with plain Zenoh in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.benchmark_figures import Figure, Goal, bar_series, figure_of_repeats
from benchmarks.measured_code import LIVE_PACKAGE
from benchmarks.transport.pull_speed import CHUNK_BYTES, measure_pulls
from potluck.report.svg_chart import Chart

__all__ = ["BENCHMARK"]

_NBYTES = 100_000_000
_WAYS = {"node": "Potluck", "single": "plain Zenoh, one put", "chunked": "plain Zenoh, one put per MiB"}


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    repeats, times = (2, 3) if context.quick else (7, 8)
    return [
        BenchmarkPiece(f"pull/{repeat}", {"bytes": _NBYTES, "times": times}, lambda: _measure_pulls(times), 8.0 + times)
        for repeat in range(repeats)
    ]


def _measure_pulls(times: int) -> dict[str, Any]:
    """The fastest pull of each kind, since other load on the machine only makes a pull slower."""
    measured = measure_pulls(_NBYTES, times)
    return {
        **{way: _NBYTES / min(getattr(measured, way)) / 1e6 for way in _WAYS},
        "beyond_bytes": measured.growth_bytes - _NBYTES,
    }


def compute_figures(results: Results) -> list[Figure]:
    rates = {way: [float(result[way]) for result in results.values()] for way in _WAYS}
    percentages = [
        100 * node / max(single, chunked)
        for node, single, chunked in zip(rates["node"], rates["single"], rates["chunked"], strict=True)
    ]
    growth = [result["beyond_bytes"] / CHUNK_BYTES for result in results.values()]
    return [
        figure_of_repeats(
            "100 MB pull, throughput relative to the faster kind of plain Zenoh",
            "%",
            percentages,
            goal=Goal("≥", 60.0),
            executed="live",
        ),
        *(figure_of_repeats(f"  {title}", "MB/s", rates[way], executed="live") for way, title in _WAYS.items()),
        figure_of_repeats(
            "memory growth of the puller beyond the model",
            "chunks",
            growth,
            goal=Goal("≤", 2.0),
            note=f"a chunk is {CHUNK_BYTES / 2**20:g} MiB",
            executed="live",
        ),
    ]


def build_charts(results: Results) -> Sequence[Chart]:
    figures = compute_figures(results)[1 : 1 + len(_WAYS)]
    return [
        Chart(
            title="100 MB over loopback",
            y_label="MB/s",
            groups=list(_WAYS.values()),
            series=[bar_series("mean of the repeats, 95 % interval", figures)],
        )
    ]


BENCHMARK = Benchmark(
    name="transport",
    summary=CATALOGUE["transport"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    notes=(
        "Two processes, TCP over loopback, shared memory off on both sides; each repeat measures all three kinds of"
        " pull.",
        "Plain Zenoh checks and acknowledges nothing; our transport has a checksum and an offset for every chunk, and"
        " resends what is missing.",
    ),
    measures=LIVE_PACKAGE,
)
