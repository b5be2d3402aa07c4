"""The `pipeline` benchmark: uneven, changing and dying devices in a pipeline (FTPipeHD), some deaths live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.pipeline.pipeline_crashes import measure_live_crashes
from benchmarks.pipeline.pipeline_experiments import (
    LINKS,
    RECOVERIES,
    measure_adaptation,
    measure_recovery,
    measure_replication,
    measure_speed,
)
from benchmarks.pipeline.pipeline_figures import build_charts, compute_figures
from benchmarks.pipeline.pipeline_learning import CIFAR, DIGITS, WAYS, measure_learning

__all__ = ["BENCHMARK"]

_WORST = (1, 2, 4, 7, 10, 15, 20)
_QUICK_WORST = (1, 4, 10)


def declare_pieces(context: BenchmarkContext) -> Sequence[BenchmarkPiece]:
    worst = _QUICK_WORST if context.quick else _WORST
    links = ("lan",) if context.quick else tuple(LINKS)
    found = [BenchmarkPiece(f"1:1:{k}", {"k": k}, lambda k=k: measure_speed((1, 1, k)), 8.0) for k in worst]  # type: ignore[misc]
    found.append(BenchmarkPiece("adaptation", {}, measure_adaptation, 6.0))
    found.append(BenchmarkPiece("lived deaths", {}, measure_live_crashes, 12.0))
    for link in links:
        found.append(BenchmarkPiece(f"replication/{link}", {"link": link}, partial(measure_replication, link), 6.0))
        for name in RECOVERIES:
            work = lambda name=name, link=link: measure_recovery(name, link)  # noqa: E731
            found.append(BenchmarkPiece(f"recovery/{name}/{link}", {"name": name, "link": link}, work, 30.0))
    return [*found, *_learning_pieces(context)]


def _learning_pieces(context: BenchmarkContext) -> Iterator[BenchmarkPiece]:
    workload, seeds = (DIGITS, 1) if context.quick else (CIFAR, 2)
    for repeat in range(seeds):
        for name, way in WAYS.items():
            parameters = {"workload": list(workload), "way": [*way[:3], dict(way.schedule)], "repeat": repeat}
            work = partial(measure_learning, workload, name, context.seed + repeat, context.data)
            yield BenchmarkPiece(f"learning/{name}/{repeat}", parameters, work, workload.batches / 50, parallel=True)


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
        "MobileNetV2, CIFAR-10 pictures, batch 128, three devices; timing only, with seconds per layer measured once on"
        " one core of a shared machine and cuts between any two layers.",
        "Recovery: of three devices (1:1:1.5) the second or the third dies after batch 150, at four moments between two"
        " batches; means of these eight. What a death costs is how much later batch 168 is committed than if the new"
        " layout had been at its pace from the death on. Checkpoints every 100 batches. As published: batch timer of"
        " twice the mean, copies every 100 and 200 batches, without optimizer state, versions mixed.",
        "Live: four processes on this machine, a small network, devices slowed to 5 MFLOP/s; the three workers are"
        " killed one after another, and the clock runs to the first batch that the new layout commits.",
        "Accuracy: a network of four convolutions (1.3 MMAC) on CIFAR-10 for five epochs in batches of 64, momentum"
        " 0.9; three devices of capacities 1:1:2 against one of capacity 1. With deaths each of the workers dies twice"
        " and comes back.",
    ),
)
