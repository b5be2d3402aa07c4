"""Tunes every method by one procedure: learning rate and options with the highest accuracy after a short training.

Each candidate is trained for half of the rounds on the fleet whose speeds vary between rounds, with seeds and test
samples that the comparison does not use. A learning rate is one of `RATES`; the options are those of the method (the
size of the small network) and of the setting (corrections against skew, for all methods alike).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import BenchmarkPiece, Results
from benchmarks.dropout.dropout_measurements import measure_training
from benchmarks.dropout.dropout_workload import METHODS, SETTINGS, TrainingPlan, TunedSettings, dropout_job
from potluck.settings import encode_settings

__all__ = ["RATES", "SEEDS", "best_settings", "train_tuned", "try_candidate", "tuning_name", "tuning_pieces"]

RATES = (0.025, 0.05, 0.1, 0.2)
VARIATION = "between"
SEEDS = (100, 101)  # as many as needed; not those that are compared
_PREFIX = "tuning"


def tuning_candidates(setting: str, method: str, rates: tuple[float, ...] = RATES) -> Iterator[TunedSettings]:
    for lr in rates:
        for of_method in METHODS[method].options:
            for of_setting in SETTINGS[setting].options:
                yield TunedSettings(lr, of_method.name, of_setting.name)


def tuning_seeds(setting: str) -> tuple[int, ...]:
    """Skewed classes vary more from seed to seed."""
    return SEEDS if SETTINGS[setting].seeds > 3 else SEEDS[:1]


def tuning_name(setting: str, method: str, tuned: TunedSettings, seed: int) -> str:
    return f"{_PREFIX}/{setting}/{method}/{tuned.lr:g}, {tuned.method_option}, {tuned.setting_option}/{seed}"


def tuning_pieces(
    setting: str, method: str, rounds: int, data: Path | None, rates: tuple[float, ...] = RATES
) -> Iterator[BenchmarkPiece]:
    for tuned in tuning_candidates(setting, method, rates):
        for seed in tuning_seeds(setting):
            plan = TrainingPlan(setting, VARIATION, method, rounds, seed)
            name, parameters = tuning_name(setting, method, tuned, seed), {**plan.parameters, **_describe(plan, tuned)}
            yield BenchmarkPiece(
                name, parameters, partial(try_candidate, plan, tuned, data), 0.4 * rounds, parallel=True
            )


def _describe(plan: TrainingPlan, tuned: TunedSettings) -> dict[str, Any]:
    """The candidate with the contents of its options, so that changed options are another piece."""
    return {"lr": tuned.lr, "rounds part": encode_settings(dropout_job(plan, tuned).rounds)}


def try_candidate(plan: TrainingPlan, tuned: TunedSettings, data: Path | None) -> dict[str, Any]:
    """The final accuracy on the validation samples; 0 if the training diverged."""
    result = measure_training(plan, tuned, data, validation=True)
    return {"tuned": list(tuned), "accuracy": result["accuracies"][-1] if result["accuracies"] else 0.0}


def train_tuned(plan: TrainingPlan, data: Path | None, tried: Results) -> dict[str, Any]:
    """Trains with the best of the candidates that were tried, which the result names."""
    tuned = best_settings(tried)
    return {**measure_training(plan, tuned, data), "tuned": list(tuned)}


def best_settings(tried: Results) -> TunedSettings:
    """The candidate with the highest mean accuracy over its seeds; the first of equal ones."""
    accuracies: dict[TunedSettings, list[float]] = {}
    for result in tried.values():
        accuracies.setdefault(TunedSettings(*result["tuned"]), []).append(float(result.get("accuracy", 0.0)))
    means: Mapping[TunedSettings, float] = {tuned: statistics.mean(values) for tuned, values in accuracies.items()}
    return max(means, key=lambda tuned: means[tuned])
