"""`pipeline`: the benchmark of FTPipeHD: devices that are uneven, change speed and crash; some crashes live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.measured_code import LIVE_PACKAGE
from benchmarks.pipeline.pipeline_crashes import measure_live_crashes
from benchmarks.pipeline.pipeline_experiments import (
    LINKS,
    RECOVERIES,
    measure_adaptation,
    measure_recovery,
    measure_replication,
    measure_slow_link,
    measure_speed,
)
from benchmarks.pipeline.pipeline_figures import build_charts, compute_figures
from benchmarks.pipeline.pipeline_learning import CIFAR, DIGITS, VARIANTS, measure_fill, measure_learning

__all__ = ["BENCHMARK"]

_CAPACITIES = (1, 2, 4, 7, 10, 15, 20)  # of the slowest of three devices
_QUICK_CAPACITIES = (1, 2, 10)


def declare_pieces(context: BenchmarkContext) -> Sequence[BenchmarkPiece]:
    return [
        *_speed_pieces(context),
        _simulated_piece("adaptation", {}, measure_adaptation, 6.0),
        _simulated_piece("slow link", {}, measure_slow_link, 6.0),
        BenchmarkPiece("live crashes", {}, measure_live_crashes, 12.0),
        *_recovery_pieces(context),
        *_learning_pieces(context),
    ]


def _simulated_piece(
    name: str, parameters: Mapping[str, Any], work: Callable[[], Mapping[str, Any]], expected_s: float
) -> BenchmarkPiece:
    return BenchmarkPiece(name, parameters, work, expected_s, parallel=True)


def _speed_pieces(context: BenchmarkContext) -> Iterator[BenchmarkPiece]:
    for k in _QUICK_CAPACITIES if context.quick else _CAPACITIES:
        yield _simulated_piece(f"1:1:{k}", {"k": k}, partial(measure_speed, (1, 1, k)), 15.0)


def _recovery_pieces(context: BenchmarkContext) -> Iterator[BenchmarkPiece]:
    for link in ("lan",) if context.quick else LINKS:
        yield _simulated_piece(f"replication/{link}", {"link": link}, partial(measure_replication, link), 6.0)
        for name in RECOVERIES:
            work = partial(measure_recovery, name, link)
            yield _simulated_piece(f"recovery/{name}/{link}", {"name": name, "link": link}, work, 30.0)


def _learning_pieces(context: BenchmarkContext) -> Iterator[BenchmarkPiece]:
    workload, seeds = (DIGITS, 1) if context.quick else (CIFAR, 3)
    yield _simulated_piece("batches in flight", {"workload": list(workload)}, partial(measure_fill, workload), 15.0)
    for repeat in range(seeds):
        for name, variant in VARIANTS.items():
            parameters = {"workload": list(workload), "way": [*variant[:3], dict(variant.schedule)], "repeat": repeat}
            work = partial(measure_learning, workload, name, context.seed + repeat, context.data)
            yield _simulated_piece(f"learning/{name}/{repeat}", parameters, work, workload.batches / 50)


def _required_datasets(context: BenchmarkContext) -> Sequence[str]:
    return [] if context.quick else [CIFAR.data]


BENCHMARK = Benchmark(
    name="pipeline",
    summary=CATALOGUE["pipeline"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    datasets=_required_datasets,
    notes=(
        "Speed: MobileNetV2 on CIFAR-10 images, batch 128, three devices; timing only, with seconds per layer"
        " measured once on one core of a shared machine, and cuts allowed between any two layers. The planner is not"
        " told these seconds, nor how fast the devices are: it starts from MACs and equal speeds, or from layer times"
        " that the first device measures, and learns the rest from the stages' reports. With known costs it is told"
        " everything, for comparison.",
        "Recovery: of three devices (1:1:1.5) the second or the third crashes after batch 150, at four moments"
        " between two batches; figures are means of these eight. The cost of a crash is how much later batch 168 is"
        " committed than if the new layout had run at its speed since the crash. Checkpoints every 100 batches. As"
        " published: a batch timer of twice the mean, replicas every 100 and 200 batches, without optimizer state,"
        " versions mixed.",
        "Live: four processes on this machine, a small network, devices slowed to 5 MFLOP/s; the three workers are"
        " killed one after another, and the time is measured until the new layout commits its first batch.",
        "Accuracy: a network of four convolutions (1.3 MMAC) on CIFAR-10 for five epochs in batches of 64, momentum"
        " 0.9; three devices of capacities 1:1:2 compared with one of capacity 1. With crashes, each of the workers"
        " crashes and restarts twice.",
    ),
    measures=(*LIVE_PACKAGE, "!benchmarks/pipeline/pipeline_figures.py"),
)
