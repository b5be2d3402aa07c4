"""`dropout`: what leaving filters out saves, what exploring it finds, and what devices of changing speed gain by it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_catalogue import CATALOGUE
from benchmarks.benchmark_figures import Figure, Goal, figure_of_repeats
from benchmarks.dropout import dropout_measurements
from benchmarks.dropout.dropout_figures import ABLATION, SettingStanding, build_charts, piece_name, setting_standings
from benchmarks.dropout.dropout_workload import (
    BOUND,
    METHODS,
    OURS,
    PUBLISHED,
    RIVALS,
    SETTINGS,
    VARIATIONS,
    rate_table_path,
)
from potluck.explore import Exploration
from potluck.settings import encode_settings

__all__ = ["BENCHMARK"]

FEWEST_MACS = 0.25  # below this share the goal for the step time does not apply


class _DropoutSize(NamedTuple):
    """How much is measured; the least that shows something, or what can be quoted."""

    step_repeats: int
    exploration: Exploration
    rounds: int
    seeds: int
    settings: tuple[str, ...]
    variations: tuple[str, ...]
    methods: tuple[str, ...]


_QUICK = _DropoutSize(
    step_repeats=5,
    exploration=Exploration(
        batches=12, warmup=24, held_out=500, repeats=1, population=6, generations=2, uniform=4, static=True
    ),
    rounds=15,
    seeds=1,
    settings=("cifar10-iid",),
    variations=("between",),
    methods=(OURS, PUBLISHED, "small", "heterofl", BOUND),
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
    seeds=3,
    settings=("cifar10-iid", "cifar10-skewed", "femnist"),
    variations=tuple(VARIATIONS),
    methods=tuple(METHODS),
)


def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    size = _QUICK if context.quick else _FULL
    return [*_step_pieces(size), _exploration_piece(size, context), *_federated_pieces(size, context)]


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
    weight = 60 * (settings.minutes or 0.5) + 0.02 * settings.batches * settings.repeats * settings.population
    return BenchmarkPiece(
        "exploration", {"setting": "cifar10-iid", **encode_settings(settings)},
        lambda: dropout_measurements.measure_exploration(SETTINGS["cifar10-iid"], settings, data), weight,
    )  # fmt: skip


def _federated_pieces(size: _DropoutSize, context: BenchmarkContext) -> Iterator[BenchmarkPiece]:
    """Seed by seed, so that a benchmark that is stopped has compared everything it has."""
    for place in range(size.seeds):
        seed = context.seed + place
        for setting in size.settings:
            for variation in size.variations:
                for method in size.methods:
                    repeated = place == 0 or method in (OURS, PUBLISHED, *RIVALS)
                    once = method != BOUND or variation == size.variations[0]
                    if repeated and once:
                        yield _federated_piece(setting, variation, method, size.rounds, seed, context.data)


def _federated_piece(
    setting: str, variation: str, method: str, rounds: int, seed: int, data: Path | None
) -> BenchmarkPiece:
    parameters: dict[str, Any] = {
        "setting": list(SETTINGS[setting]), "variation": VARIATIONS[variation], "rounds": rounds, "seed": seed,
        "method": list(METHODS[method]),
    }  # fmt: skip
    if table := rate_table_path(SETTINGS[setting], method):
        parameters["table"] = hashlib.blake2b(Path(table).read_bytes(), digest_size=8).hexdigest()
    name, weight = piece_name(setting, variation, method, seed), rounds * (0.6 if method == BOUND else 0.4)
    work = partial(dropout_measurements.measure_training, setting, variation, method, rounds, seed, data)
    return BenchmarkPiece(name, parameters, work, weight, parallel=True)


def compute_figures(results: Results) -> list[Figure]:
    found = [*_step_figures(results), *_exploration_figures(results["exploration"])]
    for standing in setting_standings(results):
        found += _training_figures(standing)
    return found


def _step_figures(results: Results) -> Iterator[Figure]:
    for name, title in dropout_measurements.NETWORKS.items():
        for rate in dropout_measurements.RATES:
            row = results[f"step/{name}"][str(rate)]
            goal = Goal("≤", 1.2) if row["macs"] >= FEWEST_MACS else None
            note = (
                f"{row['time']:.2f} of a whole step of {1e3 * row['whole_s']:.0f} ms for {row['macs']:.2f} of its MACs"
            )
            name_ = f"{title}, rate {rate}: step time against MACs"
            yield Figure(name=name_, unit="x", measured=row["time"] / row["macs"], goal=goal, note=note)


def _exploration_figures(found: Mapping[str, Any]) -> Iterator[Figure]:
    note = f"{found['evaluations']} short trainings in two processes"
    yield Figure(name="exploration", unit="min", measured=found["minutes"], goal=Goal("≤", 20.0), note=note)
    more = 100 * (found["hypervolume"] / found["uniform_hypervolume"] - 1)
    yield Figure(name="  hypervolume above one rate for all layers", unit="%", measured=more, goal=Goal("≥", 0.0))
    yield Figure(
        name="  most that the front is behind one rate", unit="", measured=found["behind"], goal=Goal("≤", 0.0)
    )


def _training_figures(standing: SettingStanding) -> Iterator[Figure]:
    where = f"{SETTINGS[standing.setting].title}, varying {standing.variation} rounds"
    ours = [100 * run.final_accuracy for run in standing.runs[OURS]]
    yield figure_of_repeats(f"{where}: accuracy of DISTREAL, ordered", "%", ours, note=_other_accuracies(standing))
    if PUBLISHED in standing.runs:
        published = [100 * run.final_accuracy for run in standing.runs[PUBLISHED]]
        yield figure_of_repeats("  DISTREAL as published", "%", published)
    best = standing.best_rival()
    yield Figure(
        name="  ahead of the best baseline", unit="pt", measured=_accuracy_lead(standing, best), goal=Goal("≥", 0.0),
        note=METHODS[best].title,
    )  # fmt: skip
    yield figure_of_repeats("  times as fast as it to its accuracy", "x", standing.speed_ups(best), goal=Goal("≥", 1.0))
    if "heterofl" in standing.runs:
        fast = standing.speed_ups("heterofl")
        yield figure_of_repeats("  times as fast as HeteroFL to its accuracy", "x", fast, goal=Goal("≥", 2.0))
    if ABLATION in standing.runs:
        ahead = _accuracy_lead(standing, ABLATION)
        yield Figure(name="  ahead of one rate for all layers", unit="pt", measured=ahead, goal=Goal("≥", 0.0))
    if BOUND in standing.runs:
        behind = -_accuracy_lead(standing, BOUND)
        yield Figure(name="  behind FedAvg with full resources", unit="pt", measured=behind, goal=Goal("≤", 0.5))


def _accuracy_lead(standing: SettingStanding, rival: str) -> float:
    return 100 * (standing.mean_final_accuracy(OURS) - standing.mean_final_accuracy(rival))


def _other_accuracies(standing: SettingStanding) -> str:
    others = [method for method in standing.runs if method != OURS]
    return ", ".join(f"{METHODS[method].title} {100 * standing.mean_final_accuracy(method):.1f}" for method in others)


BENCHMARK = Benchmark(
    name="dropout",
    summary=CATALOGUE["dropout"].summary,
    pieces=declare_pieces,
    figures=compute_figures,
    charts=build_charts,
    datasets=_required_datasets,
    notes=(
        "Step times: processor time of one thread, batch 32, channels last, drawing, gathering and scattering included."
        " Counts are multiples of 8 channels, as with `submodel.grid = 8`; the recipes keep the default of 1, where a"
        " count between two multiples takes about as long as the next one.",
        "Federated: 100 devices in groups of speed 1.0, 0.66 and 0.33, 10 per round, 10 mini-batches of 32 each; a"
        " device's speed is uniform in 0.3 to 1.0 of its own and drawn anew every 10 slots (between rounds) or 2 slots"
        " (within rounds). A slot is a whole step of the fastest device.",
        "Methods that decide ahead of a round go by each device's mean speed and wait for the slowest; the small"
        " network is what the weakest group affords at its mean speed. DISTREAL decides before each mini-batch; its"
        " ordered form is ours and keeps the leading filters instead of random ones.",
        "Networks are sized for two cores: four convolutions of 16 to 64 filters on CIFAR-10 (1.3 MMAC), three of 12 to"
        " 48 on FEMNIST (0.67 MMAC). Norms train by their mini-batch in all methods and get their statistics from 1,024"
        " training samples when the model is scored.",
        "Scores are on 3,000 test samples; a final accuracy is the mean of those in the last fifth of the time.",
    ),
)
