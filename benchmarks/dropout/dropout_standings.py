"""Who is where in one setting: final accuracies, and when a method first had a certain accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.benchmark import Results
from benchmarks.dropout.dropout_methods import BOUND, METHODS, OURS, PUBLISHED

__all__ = ["ABLATION", "DropoutRun", "SettingStanding", "piece_name", "setting_standings"]

LAST = 0.2  # of the time, whose scores make up a final accuracy
ABLATION = "uniform-dropout"


class DropoutRun(NamedTuple):
    """One training."""

    times_s: Sequence[float]
    accuracies: Sequence[float]
    end_s: float  # when all methods had to stop

    @property
    def final_accuracy(self) -> float:
        """The mean of the scores near the end, or the last one.

        Not of so many scores: who waits has few, and the first of them is that of the untrained model.
        """
        pairs = zip(self.times_s, self.accuracies, strict=True)
        late = [accuracy for at, accuracy in pairs if at >= (1 - LAST) * self.end_s] or self.accuracies[-1:]
        return sum(late) / len(late)

    def time_to_accuracy(self, target: float) -> float:
        """When it first had this accuracy; never is infinite."""
        pairs = zip(self.times_s, self.accuracies, strict=True)
        return next((at for at, accuracy in pairs if accuracy >= target), math.inf)


class SettingStanding(NamedTuple):
    """All trainings of one setting, by method."""

    setting: str
    variation: str
    runs: Mapping[str, Sequence[DropoutRun]]

    def mean_final_accuracy(self, method: str) -> float:
        """The mean over seeds."""
        found = [run.final_accuracy for run in self.runs[method]]
        return sum(found) / len(found)

    def best_rival(self) -> str:
        """The strongest of the other methods; DISTREAL itself and its ablation have figures of their own."""
        others = [method for method in self.runs if method not in (OURS, PUBLISHED, BOUND, ABLATION)]
        return max(others, key=self.mean_final_accuracy)

    def speed_ups(self, rival: str) -> list[float]:
        """For each seed: the rival's time to its own final accuracy, over ours to the same; 0 if we never have it."""
        found = []
        for place, ours in enumerate(self.runs[OURS]):
            theirs = self.runs[rival][place % len(self.runs[rival])]
            found.append(theirs.time_to_accuracy(theirs.final_accuracy) / ours.time_to_accuracy(theirs.final_accuracy))
        return found


def piece_name(setting: str, variation: str, method: str, seed: int) -> str:
    """Full resources do not vary, so that method has one training for both."""
    return f"{setting}/{'steady' if method == BOUND else variation}/{method}/{seed}"


def setting_standings(results: Results) -> list[SettingStanding]:
    """One for each setting and variation, in the order of the pieces."""
    found: dict[tuple[str, str], dict[str, list[DropoutRun]]] = {}
    for name, result in results.items():
        if name.count("/") == 3:
            setting, variation, method, _ = name.split("/")
            found.setdefault((setting, variation), {}).setdefault(method, []).append(_parse_run(result))
    bounds = {setting: runs for (setting, variation), runs in found.items() if variation == "steady"}
    return [
        SettingStanding(setting, variation, _in_method_order({**runs, **bounds.get(setting, {})}))
        for (setting, variation), runs in found.items()
        if variation != "steady"
    ]


def _in_method_order(runs: Mapping[str, Sequence[DropoutRun]]) -> dict[str, Sequence[DropoutRun]]:
    return {method: runs[method] for method in METHODS if method in runs}


def _parse_run(result: Mapping[str, Any]) -> DropoutRun:
    return DropoutRun(result["times_s"], result["accuracies"], result["end_s"])
