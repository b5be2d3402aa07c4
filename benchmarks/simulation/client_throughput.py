"""Clients per second, ours and the bare loop's, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import torch

import potluck
from benchmarks.simulation.bare_fedavg import clients_of, run_bare_fedavg
from benchmarks.simulation.simulation_workload import DEVICES, peers_job

__all__ = ["measure_throughput"]

_WARM = 1  # rounds that do not count


class _RoundEnd(NamedTuple):
    """The end of a round: the time, and what all threads of this process have computed so far."""

    wall_s: float
    cpu_s: float


def measure_throughput(model: str, rounds: int, repeat: int, seed: int) -> dict[str, float]:
    """Who goes first changes with the repeat, so that neither has the warmer machine."""
    sides: dict[str, Callable[[str, int, int], list[_RoundEnd]]] = {"bare": _run_bare, "potluck": _run_potluck}
    order = sorted(sides, reverse=bool(repeat % 2))
    found: dict[str, float] = {}
    for side in order:
        marks = sides[side](model, _WARM + rounds, seed)
        first, last = marks[_WARM - 1], marks[-1]
        found[f"{side}_clients_per_s"] = DEVICES * rounds / (last.wall_s - first.wall_s)
        found[f"{side}_cpu_ms"] = 1e3 * (last.cpu_s - first.cpu_s) / (DEVICES * rounds)
    return found


def _round_end() -> _RoundEnd:
    return _RoundEnd(time.perf_counter(), time.process_time())


def _run_potluck(model: str, rounds: int, seed: int) -> list[_RoundEnd]:
    marks: list[_RoundEnd] = []
    result = potluck.simulate(peers_job(model, rounds, seed), watch=lambda keeper, now: marks.append(_round_end()))
    assert result.summary["updates"] == DEVICES * rounds, result.reason
    return marks


def _run_bare(model: str, rounds: int, seed: int) -> list[_RoundEnd]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_round_end() for _ in islice(run_bare_fedavg(*clients_of(peers_job(model, 1, seed))), rounds)]
    finally:
        torch.set_num_threads(threads)
