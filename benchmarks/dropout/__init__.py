"""`dropout`: the benchmark of DISTREAL: step times with filters left out, exploration, and federated training.

The federated devices change their speed over time; DISTREAL picks a submodel before each mini-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.dropout import dropout_measurements
from benchmarks.dropout.dropout_figures import build_charts, compute_figures, piece_name
from benchmarks.dropout.dropout_tuning import RATES, train_tuned, tuning_pieces
from benchmarks.dropout.dropout_workload import (
    BOUND,
    METHODS,
    OURS,
    SETTINGS,
    TABLE,
    VARIATIONS,
    TrainingPlan,
)
from benchmarks.measured_code import SIMULATED_PACKAGE
from potluck.explore import Exploration
from potluck.settings import encode_settings

__all__ = ["BENCHMARK"]


class _DropoutSize(NamedTuple):
    """How much is measured in a quick or a full run."""

    step_repeats: int
    exploration: Exploration
    rounds: int
    seeds: int | None  # None: as many as the setting asks for
    rates: tuple[float, ...]  # learning rates that tuning tries
    settings: tuple[str, ...]
    variations: tuple[str, ...]
    methods: tuple[str, ...]


_QUICK = _DropoutSize(
    step_repeats=5,
    exploration=Exploration(
        batches=12, warmup=24, held_out=500, repeats=1, population=6, generations=2, uniform=4, static=True
    ),
    rounds=10,
    seeds=1,
    rates=RATES[1:3],
    settings=("cifar10-iid",),
    variations=("between",),
    methods=(OURS, TABLE, "small", "heterofl", BOUND),
)
_FULL = _DropoutSize(
    step_repeats=15,
    exploration=Exploration(
        batches=96,
        warmup=300,
        held_out=3000,
        repeats=4,
        population=24,
        generations=14,
        measure="loss",
        minutes=5.0,
        units="leading",
        static=True,
        highest_rate=0.85,
    ),
    rounds=50,
    seeds=None,
    rates=RATES,
    settings=("cifar10-iid", "cifar10-skewed", "femnist"),
    variations=tuple(VARIATIONS),
    methods=tuple(METHODS),
)


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    size = _QUICK if context.quick else _FULL
    return [*_step_pieces(size), _exploration_piece(size, context), *_training_pieces(size, context)]


def _required_datasets(context: BenchmarkContext) -> list[str]:
    size = _QUICK if context.quick else _FULL
    return list(dict.fromkeys(SETTINGS[setting].data for setting in size.settings))


def _step_pieces(size: _DropoutSize) -> Iterator[BenchmarkPiece]:
    repeats = size.step_repeats
    for name in dropout_measurements.NETWORKS:
        parameters = {
            "network": name,
            "repeats": repeats,
            "batch": dropout_measurements.BATCH,
            "grid": dropout_measurements.GRID,
        }
        measure = partial(dropout_measurements.measure_steps, name, repeats)
        yield BenchmarkPiece(f"step/{name}", parameters, measure, repeats * 1.5)


def _exploration_piece(size: _DropoutSize, context: BenchmarkContext) -> BenchmarkPiece:
    settings, data = size.exploration, context.data
    expected_s = 60 * (settings.minutes or 0.5) + 0.02 * settings.batches * settings.repeats * settings.population
    return BenchmarkPiece(
        "exploration", {"setting": "cifar10-iid", **encode_settings(settings)},
        lambda: dropout_measurements.measure_exploration(SETTINGS["cifar10-iid"], settings, data), expected_s,
    )  # fmt: skip


def _training_pieces(size: _DropoutSize, context: BenchmarkContext) -> Iterator[BenchmarkPiece]:
    """Tuning first, then one seed after the other, so that a stopped benchmark has results of every method."""
    tuning = {
        (setting, method): list(tuning_pieces(setting, method, max(1, size.rounds // 2), context.data, size.rates))
        for setting in size.settings
        for method in size.methods
    }
    for pieces in tuning.values():
        yield from pieces
    counts = {setting: size.seeds or SETTINGS[setting].seeds for setting in size.settings}
    for repeat in range(max(counts.values())):
        for setting in (name for name in size.settings if repeat < counts[name]):
            for variation in size.variations:
                for method in size.methods:
                    if method != BOUND or variation == size.variations[0]:
                        plan = TrainingPlan(setting, variation, method, size.rounds, context.seed + repeat)
                        yield _comparison_piece(plan, tuning[setting, method], context.data)


def _comparison_piece(plan: TrainingPlan, tuning: list[BenchmarkPiece], data: Path | None) -> BenchmarkPiece:
    name = piece_name(plan.setting, plan.variation, plan.method, plan.seed)
    tried = [piece.parameters for piece in tuning]
    return BenchmarkPiece(
        name, {**plan.parameters, "tried": tried}, partial(train_tuned, plan, data),
        plan.rounds * (0.6 if plan.method == BOUND else 0.4), parallel=True,
        needs=tuple(piece.name for piece in tuning),
    )  # fmt: skip


BENCHMARK = Benchmark(
    name="dropout",
    summary=CATALOGUE["dropout"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    datasets=_required_datasets,
    notes=(
        "Step times are CPU time of one thread at batch 32, channels last, including choosing, extracting and"
        " scattering the weights. Channel counts are multiples of 8, as with `submodel.grid = 8`; the recipes keep the"
        " default of 1, where a count between two multiples takes about as long as the next one.",
        "Federated training: 100 devices in groups of speed 1.0, 0.66 and 0.33; 10 per round with 10 mini-batches of"
        " 32 each. A device's speed is uniform in 0.3 to 1.0 of its nominal one and changes every 10 slots (between"
        " rounds) or every 2 slots (within rounds). A slot is the time of a full step on the fastest device.",
        "Methods that decide before a round use each device's mean speed and wait for the slowest; the small network"
        " has the fraction of the MACs that tuning chose. DISTREAL decides before each mini-batch; its ordered variant"
        " is ours and keeps the leading filters instead of random ones, with one rate for all layers.",
        "Every method is tuned alike, for each setting: learning rates 0.025 to 0.2, the size of the small network, and"
        " where classes are skewed a masked loss and momentum of the coordinator, by the accuracy after half of the"
        " rounds with other seeds and other test samples. HeteroFL, FedRolex and FjORD choose from 19 widths.",
        "Networks are sized for two cores: four convolutions of 16 to 64 filters on CIFAR-10 (1.3 MMAC), three of 12"
        " to 48 on FEMNIST (0.67 MMAC). Norm layers use mini-batch statistics in training; for evaluation the"
        " statistics are computed from 1,024 training samples.",
        "Accuracies are on 3,000 test samples; the final accuracy is the mean over the last fifth of the time.",
    ),
    measures=(*SIMULATED_PACKAGE, "!benchmarks/dropout/dropout_figures.py"),
)
