"""Clients per second, ours and the bare loop's, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import torch

import potluck
from potluck.bench.simulation.bare import bare_loop, clients_of
from potluck.bench.simulation.workload import DEVICES, peers_job

__all__ = ["measure"]

_WARM = 1  # rounds that do not count


class _Mark(NamedTuple):
    """The end of a round: the time, and what all threads of this process have computed so far."""

    wall_s: float
    cpu_s: float


def measure(model: str, rounds: int, repeat: int, seed: int) -> dict[str, float]:
    """Who goes first changes with the repeat, so that neither has the warmer machine."""
    sides: dict[str, Callable[[str, int, int], list[_Mark]]] = {"bare": _bare, "potluck": _potluck}
    order = sorted(sides, reverse=bool(repeat % 2))
    found: dict[str, float] = {}
    for side in order:
        marks = sides[side](model, _WARM + rounds, seed)
        first, last = marks[_WARM - 1], marks[-1]
        found[f"{side}_clients_per_s"] = DEVICES * rounds / (last.wall_s - first.wall_s)
        found[f"{side}_cpu_ms"] = 1e3 * (last.cpu_s - first.cpu_s) / (DEVICES * rounds)
    return found


def _mark() -> _Mark:
    return _Mark(time.perf_counter(), time.process_time())


def _potluck(model: str, rounds: int, seed: int) -> list[_Mark]:
    marks: list[_Mark] = []
    result = potluck.simulate(peers_job(model, rounds, seed), watch=lambda keeper, now: marks.append(_mark()))
    assert result.summary["updates"] == DEVICES * rounds, result.reason
    return marks


def _bare(model: str, rounds: int, seed: int) -> list[_Mark]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_mark() for _ in islice(bare_loop(*clients_of(peers_job(model, 1, seed))), rounds)]
    finally:
        torch.set_num_threads(threads)
