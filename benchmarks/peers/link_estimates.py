"""What devices believe of links that the kernel shapes: against the truth, and after it has dropped to a tenth.

link_estimates WORKERS ROUNDS RATE RECIPE [DROP_AFTER]

Prints, as one line of JSON, the median seconds of a round before and after the drop, the ratio of the estimated to the
true rate, and how many rounds after the drop all estimates were within a quarter of the truth.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import shaped_network
from benchmarks.peers import potluck_commands
from benchmarks.peers.potluck_links import shaped_job, ten_times
from benchmarks.peers.process_group import ProcessGroup, wait_for

_CLOSE = 0.25  # of the truth
_FACTOR = 0.1


def main(workers: int, rounds: int, rate: str, recipe: str, drop_after: int | None) -> None:
    if missing := shaped_network.missing_requirement():
        raise SystemExit(f"skipped: {missing}")
    with tempfile.TemporaryDirectory() as folder:
        _run_rounds(Path(folder), workers, rounds, rate, recipe, drop_after)
        ends = [committed.end for committed in potluck_commands.read_rounds(Path(folder))]
        estimates = read_estimates(Path(folder))
    print(json.dumps({"recipe": recipe, "rate": rate, **summarize(ends, estimates, rate, drop_after)}))


def _run_rounds(folder: Path, workers: int, rounds: int, rate: str, recipe: str, drop_after: int | None) -> None:
    job = shaped_job(workers, rounds, rate, recipe)
    with (
        shaped_network.ShapedNetwork([rate] * workers + [ten_times(rate)]) as network,
        ProcessGroup(folder, {"OMP_NUM_THREADS": "1"}) as group,
    ):
        address = f"{network.address(workers)}:7447"
        coordinator, token = potluck_commands.start_serve(
            group, job, folder, address, partial(network.command_on, workers)
        )
        for number in range(workers):
            potluck_commands.start_join(group, number, address, token, partial(network.command_on, number))
        limit_s = 120 + 15 * rounds
        if drop_after is not None:
            wait_for(lambda: len(potluck_commands.read_rounds(folder)) >= drop_after, "the drop", limit_s)
            for number in range(workers):
                network.change_rate(number, f"{_FACTOR * _mbit(rate):g}mbit")
        wait_for(lambda: coordinator.poll() is not None, "Potluck's rounds", limit_s)


def read_estimates(folder: Path) -> dict[int, list[tuple[float, float]]]:
    """By round: what each device believed after it, in bytes per second down and up."""
    estimates: dict[int, list[tuple[float, float]]] = {}
    for line in (folder / "run" / "journal.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("name") == "bandwidth":
            fields = record["fields"]
            estimates.setdefault(fields["round"], []).append((record["value"], fields["up"]))
    return estimates


def summarize(
    ends: list[float], estimates: dict[int, list[tuple[float, float]]], rate: str, drop_after: int | None
) -> dict[str, Any]:
    durations = [after - before for before, after in pairwise(ends)]
    last = len(durations) if drop_after is None else drop_after - 1
    true_rate = _mbit(rate) * 1e6 / 8
    figures: dict[str, Any] = {"iteration_s": statistics.median(durations[1:last]), "low_s": min(durations[1:last])}
    figures["estimated_to_true"] = _ratios([estimates.get(index, []) for index in range(2, last)], true_rate)
    if drop_after is not None:
        after = [estimates.get(index, []) for index in range(drop_after, len(ends))]
        slow_rate = _FACTOR * true_rate
        close = [bool(each) and all(_is_close(value, slow_rate) for pair in each for value in pair) for each in after]
        figures["slow_iteration_s"] = statistics.median(durations[drop_after + 1 :])
        figures["rounds_to_follow"] = close.index(True) + 1 if True in close else None
        figures["after_the_drop"] = [_ratios([each], slow_rate) for each in after[:8]]
    return figures


def _ratios(rounds: list[list[tuple[float, float]]], true_rate: float) -> dict[str, list[float]]:
    """The least, the median and the largest ratio in each direction."""
    return {
        name: [round(figure / true_rate, 3) for figure in (min(values), statistics.median(values), max(values))]
        for index, name in enumerate(("down", "up"))
        if (values := [pair[index] for each in rounds for pair in each])
    }


def _is_close(value: float, truth: float) -> bool:
    return abs(value / truth - 1) <= _CLOSE


def _mbit(rate: str) -> float:
    return float(rate.removesuffix("mbit"))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]) if len(sys.argv) > 5 else None)
