"""The paper's four sets of stream rates: time to a target compared with the baseline, and buffers until then."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import potluck
from benchmarks.benchmark import BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.streaming import scadles_testbed
from benchmarks.streaming.scadles_testbed import SETS, RateSet
from potluck.job import Job, make
from potluck.journal import Scalar, Span, read_journal
from potluck.report.svg_chart import Chart, ChartSeries

__all__ = [
    "FULL",
    "POLICIES",
    "QUICK",
    "RECIPES",
    "RaceWorkload",
    "buffer_job",
    "build_charts",
    "compute_figures",
    "declare_pieces",
    "measure_buffers",
    "measure_race",
    "race_job",
    "samples_per_round",
    "seconds_to_target",
]


POLICIES = ("persistence", "truncation")


class RaceWorkload(NamedTuple):
    """The training data, the number of epochs and the target accuracy."""

    epochs: float
    target: float
    scores: int = 25  # evaluations during the run
    samples: int = 50_000  # of the training data
    data: str = "cifar10"


FULL = RaceWorkload(epochs=8, target=0.66)
QUICK = RaceWorkload(epochs=1, target=0.2, scores=8, samples=10_000, data=scadles_testbed.SYNTHETIC)


def race_job(
    workload: RaceWorkload,
    recipe: str,
    rates: scadles_testbed.RateSet,
    seed: int,
    lr: float | None = None,
) -> Job:
    """A job with as many rounds as the epochs take, and a learning rate that falls over all of them."""
    tables: dict[str, Any] = {
        "task": scadles_testbed.task_table(data=workload.data),
        "fleet": scadles_testbed.fleet_table(),
        "recipe": recipe,
        "stream": scadles_testbed.stream_table(rates),
        "stop": {"rounds": 1},
        "checkpoint": 0,
        "seed": seed,
        "rounds": {"server": scadles_testbed.server_table(recipe, lr)},
    }
    rounds = max(2, round(workload.epochs * workload.samples / samples_per_round(make(tables))))
    tables["rounds"] = {"schedule": {"kind": "cosine", "rounds": rounds}, **tables["rounds"]}
    return make({**tables, "stop": {"rounds": rounds}, "evaluate": max(1, rounds // workload.scores)})


def samples_per_round(job: Job) -> int:
    """Samples of one round on all devices together, from a timing-only run."""
    timing = msgspec.structs.replace(job, timing_only=True, evaluate=0)
    return int(potluck.simulate(timing).summary["samples"])


def measure_race(
    workload: RaceWorkload, recipe: str, rates: scadles_testbed.RateSet, seed: int, data: Path | None = None
) -> dict[str, Any]:
    """The accuracy over time, the totals of the run, and of ScaDLES the buffers until the target is reached."""
    job = race_job(workload, recipe, rates, seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        result = potluck.simulate(job, folder=folder, data=data, threads=0)
        records = list(read_journal(folder / "journal.jsonl"))
    assert result.status == "done", result.reason
    curve = [(one.at, one.value) for one in records if isinstance(one, Scalar) and one.name == "test_accuracy"]
    ends = [one.end for one in records if isinstance(one, Span) and one.name == "round"]
    reached_s = seconds_to_target(workload.target, curve)
    target_rounds = max(1, sum(end <= reached_s for end in ends))
    totals = {key: result.summary[key] for key in ("time_s", "bytes", "rounds", "samples", "streams")}
    totals |= result.summary["metrics"]
    buffers = {}
    if recipe == "scadles":
        buffers = {policy: measure_buffers(rates, policy, target_rounds, seed) for policy in POLICIES}
    return {**totals, "curve": curve, "target": workload.target, "target_rounds": target_rounds, "buffers": buffers}


def seconds_to_target(target: float, curve: Sequence[Sequence[float]]) -> float:
    """When the accuracy first reaches the target, interpolated between evaluations; infinite if it never does."""
    before = (0.0, 0.0)
    for at, accuracy in curve:
        if accuracy >= target:
            fraction = (target - before[1]) / (accuracy - before[1])
            return before[0] + fraction * (at - before[0])
        before = (at, accuracy)
    return float("inf")


def buffer_job(rates: scadles_testbed.RateSet, policy: str, rounds: int, seed: int) -> Job:
    """ScaDLES with this buffer policy, timing only."""
    return make(
        {
            "task": scadles_testbed.task_table(),
            "fleet": scadles_testbed.fleet_table(),
            "recipe": "scadles",
            "stream": {**scadles_testbed.stream_table(rates), "buffer": policy},
            "stop": {"rounds": rounds},
            "timing_only": True,
            "evaluate": 0,
            "seed": seed,
        }
    )


def measure_buffers(rates: scadles_testbed.RateSet, policy: str, rounds: int, seed: int) -> dict[str, Any]:
    """The largest number of samples that all devices together held at once."""
    summary = potluck.simulate(buffer_job(rates, policy, rounds, seed)).summary
    return {"peak": summary["streams"]["peak"], "time_s": summary["time_s"]}


RECIPES = ("ddl", "scadles", "scadles-plus")


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    """One run per recipe, set and seed."""
    workload, seeds = (QUICK, 1) if context.quick else (FULL, 3)
    return [
        _race_piece(recipe, rates, repeat, workload, context)
        for repeat in range(seeds)
        for rates in SETS
        for recipe in RECIPES
    ]


def _race_piece(
    recipe: str, rates: RateSet, repeat: int, workload: RaceWorkload, context: BenchmarkContext
) -> BenchmarkPiece:
    seed = context.seed + repeat
    server = scadles_testbed.server_table(recipe)
    parameters = {
        "workload": dict(workload._asdict()), "recipe": recipe, "rates": rates, "repeat": repeat, "server": server,
    }  # fmt: skip
    work, expected_s = (
        partial(measure_race, workload, recipe, rates, seed, context.data),
        4.0 if context.quick else 300.0,
    )
    return BenchmarkPiece(f"{recipe}/{rates}/{repeat}", parameters, work, expected_s, parallel=True)


def compute_figures(results: Results) -> list[Figure]:
    """Our recipe with its goals first, then the paper's recipe with the published values."""
    gains = {recipe: {rates: _speed_up(results, recipe, rates) for rates in SETS} for recipe in RECIPES[1:]}
    best = max(gains["scadles-plus"].values())
    target = next(iter(_race_runs(results, "ddl", "S1")))["target"]
    rows = [
        Figure(
            name="scadles-plus: speed-up over ddl to the target, best set",
            unit="x",
            measured=best,
            published=scadles_testbed.published_value(max(scadles_testbed.SPEED_UP.values())),
            goal=Goal("≥", 3.29),
            note=f"target {100 * target:g} % top-1",
            executed="simulated",
        ),
    ]
    for recipe in ("scadles-plus", "scadles"):
        for rates in SETS:
            rows += _set_figures(results, recipe, rates, gains[recipe][rates])
    return [*rows, *_buffer_figures(results)]


def _set_figures(results: Results, recipe: str, rates: str, gain: float) -> Iterator[Figure]:
    ours = recipe == "scadles-plus"
    runs = _race_runs(results, recipe, rates)
    note = (
        f"{_mean_value(runs, 'samples') / _mean_value(runs, 'rounds'):.0f} samples and {_round_s(runs):.2f} s a round"
    )
    yield Figure(
        name=f"{recipe}, {rates}: speed-up over ddl to the target",
        unit="x",
        measured=gain,
        published=scadles_testbed.published_value(scadles_testbed.SPEED_UP[rates]),
        goal=Goal("≥", 1.0) if ours else None,
        better="more",
        note=f"{note}; ddl {_round_s(_race_runs(results, 'ddl', rates)):.2f} s",
        executed="simulated",
    )
    for key, name in (("accuracy", "top-1"), ("top-5", "top-5")):
        lost = 100 * (_mean_value(_race_runs(results, "ddl", rates), key) - _mean_value(runs, key))
        published = scadles_testbed.ACCURACY_LOST[rates] if name == "top-5" else None
        yield Figure(
            name=f"  {name} accuracy lost compared with ddl",
            unit="pt",
            measured=lost,
            published=None if published is None else scadles_testbed.published_value(published),
            goal=Goal("≤", 0.1) if ours and name == "top-1" else None,
            better="less",
            note=f"at {100 * _mean_value(runs, key):.1f} %, mean of {len(runs)}",
            executed="simulated",
        )


def _buffer_figures(results: Results) -> Iterator[Figure]:
    for rates in SETS:
        runs = _race_runs(results, "scadles", rates)
        kept, cut = (statistics.mean(run["buffers"][policy]["peak"] for run in runs) for policy in POLICIES)
        rounds = _mean_value(runs, "target_rounds")
        note = f"{kept:,.0f} and {cut:,.0f} samples on all devices after {rounds:.0f} rounds, when scadles is there"
        yield Figure(
            name=f"buffer, {rates}: peak with persistence over truncation",
            unit="x",
            measured=kept / cut,
            published=scadles_testbed.published_value(scadles_testbed.BUFFER_RATIO[rates]),
            goal=Goal("≥", 800.0),
            note=note,
            executed="simulated",
        )


def _speed_up(results: Results, recipe: str, rates: str) -> float:
    """The ratio of the mean times over seeds; 0 if the target is never reached."""
    seconds = [
        [seconds_to_target(run["target"], run["curve"]) for run in _race_runs(results, name, rates)]
        for name in ("ddl", recipe)
    ]
    ddl, ours = map(statistics.mean, seconds)
    return ddl / ours if ddl < float("inf") else 0.0


def _race_runs(results: Results, recipe: str, rates: str) -> list[Mapping[str, Any]]:
    return [result for name, result in results.items() if name.rpartition("/")[0] == f"{recipe}/{rates}"]


def _mean_value(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.mean(float(run[key]) for run in runs)


def _round_s(runs: Sequence[Mapping[str, Any]]) -> float:
    """Mean seconds of a round."""
    return _mean_value(runs, "time_s") / _mean_value(runs, "rounds")


def build_charts(results: Results) -> list[Chart]:
    series = [
        ChartSeries(name, [_speed_up(results, name, rates) for rates in SETS]) for name in ("scadles", "scadles-plus")
    ]
    paper = ChartSeries("ScaDLES, published", [scadles_testbed.SPEED_UP[rates] for rates in SETS])
    return [
        Chart(
            title="Speed-up over ddl to the target (0: never reached)",
            y_label="times faster than ddl",
            groups=SETS,
            series=[*series, paper],
        ),
        *(_accuracy_chart(results, rates) for rates in ("S1", "S2")),
    ]


def _accuracy_chart(results: Results, rates: str) -> Chart:
    series = []
    for recipe in RECIPES:
        curve = _race_runs(results, recipe, rates)[0]["curve"]
        series.append(ChartSeries(recipe, [100 * score for _, score in curve], [at / 60 for at, _ in curve]))
    return Chart(
        title=f"Rates {rates}, first seed", y_label="test accuracy, %", x_label="simulated minutes", series=series
    )
