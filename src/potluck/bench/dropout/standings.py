"""Who is where in one setting: final accuracies, and when a method first had a certain accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from potluck.bench.dropout.methods import BOUND, METHODS, OURS, PUBLISHED
from potluck.bench.experiment import Results

__all__ = ["ABLATION", "Run", "Standing", "piece_name", "standings"]

LAST = 0.2  # of the time, whose scores make up a final accuracy
ABLATION = "uniform-dropout"


class Run(NamedTuple):
    """One training."""

    times_s: Sequence[float]
    accuracies: Sequence[float]
    end_s: float  # when all methods had to stop

    @property
    def final(self) -> float:
        """The mean of the scores near the end, or the last one.

        Not of so many scores: who waits has few, and the first of them is that of the untrained model.
        """
        pairs = zip(self.times_s, self.accuracies, strict=True)
        late = [accuracy for at, accuracy in pairs if at >= (1 - LAST) * self.end_s] or self.accuracies[-1:]
        return sum(late) / len(late)

    def reached(self, target: float) -> float:
        """When it first had this accuracy; never is infinite."""
        pairs = zip(self.times_s, self.accuracies, strict=True)
        return next((at for at, accuracy in pairs if accuracy >= target), math.inf)


class Standing(NamedTuple):
    """All trainings of one setting, by method."""

    setting: str
    variation: str
    runs: Mapping[str, Sequence[Run]]

    def final(self, method: str) -> float:
        """The mean over seeds."""
        found = [run.final for run in self.runs[method]]
        return sum(found) / len(found)

    def best(self) -> str:
        """The strongest of the other methods; DISTREAL itself and its ablation have figures of their own."""
        others = [method for method in self.runs if method not in (OURS, PUBLISHED, BOUND, ABLATION)]
        return max(others, key=self.final)

    def speed_up(self, rival: str) -> list[float]:
        """For each seed: the rival's time to its own final accuracy, over ours to the same; 0 if we never have it."""
        found = []
        for place, ours in enumerate(self.runs[OURS]):
            theirs = self.runs[rival][place % len(self.runs[rival])]
            found.append(theirs.reached(theirs.final) / ours.reached(theirs.final))
        return found


def piece_name(setting: str, variation: str, method: str, seed: int) -> str:
    """Full resources do not vary, so that method has one training for both."""
    return f"{setting}/{'steady' if method == BOUND else variation}/{method}/{seed}"


def standings(results: Results) -> list[Standing]:
    """One for each setting and variation, in the order of the pieces."""
    found: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for name, result in results.items():
        if name.count("/") == 3:
            setting, variation, method, _ = name.split("/")
            found.setdefault((setting, variation), {}).setdefault(method, []).append(_run(result))
    bounds = {setting: runs for (setting, variation), runs in found.items() if variation == "steady"}
    return [
        Standing(setting, variation, _in_order({**runs, **bounds.get(setting, {})}))
        for (setting, variation), runs in found.items()
        if variation != "steady"
    ]


def _in_order(runs: Mapping[str, Sequence[Run]]) -> dict[str, Sequence[Run]]:
    return {method: runs[method] for method in METHODS if method in runs}


def _run(result: Mapping[str, Any]) -> Run:
    return Run(result["times_s"], result["accuracies"], result["end_s"])
