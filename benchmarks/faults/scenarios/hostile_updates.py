"""One device's updates are finite and absurd: what they cost in accuracy, and who is blamed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from potluck.journal import Instant, read_journal
from potluck.loops.norm_bound import NormBound, NormHistory
from potluck.model.codecs.array_checks import vector_norm
from potluck.model.training_session import LocalTrainingSession
from potluck.model.update_merging import UpdateNorm
from potluck.payload import Payload
from potluck.run import simulate

__all__ = ["SCENARIO"]

_LIAR = "d-0"
_METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"recipe": "fedavg"},
    "sync-sgd": {"recipe": "sync-sgd"},
    "duplex": {"recipe": "duplex"},
    "fedbuff": {"recipe": "fedbuff"},
    "top-k": {"recipe": "fedavg", "rounds": {"codec": {"kind": "top-k", "ratio": 0.2}}},
    "heterofl": {"recipe": "heterofl"},
}
_LIES: dict[str, Callable[[Any], Any]] = {
    "3e38": lambda array: np.full_like(array, 3e38),
    "a million times": lambda array: (array.astype(np.float64) * 1e6).astype(array.dtype),
}


def _job(method: str, context: ScenarioContext) -> dict[str, Any]:
    return {
        "task": {"model": "mlp", "data": "digits", "options": {"hidden": [32]}},
        "fleet": {"devices": [{"name": "d", "count": 6, "flops": "20 MFLOP/s"}]},
        "stop": {"rounds": context.size["rounds"]},
        "evaluate": context.size["rounds"],
        "seed": context.seed,
        **_METHODS[method],
    }


@contextmanager
def _lying(lie: Callable[[Any], Any], rounds: range) -> Iterator[None]:
    """Within this context one device lies in some rounds."""
    honest = LocalTrainingSession.encode

    def encode(session: LocalTrainingSession, first: int, last: int) -> Payload:
        payload = honest(session, first, last)
        if session._turn.device != _LIAR or session._turn.round not in rounds:
            return payload
        lied = tuple(lie(array) if array.dtype.kind == "f" else array for array in payload.arrays)
        return Payload(payload.nbytes, lied)

    with mock.patch.object(LocalTrainingSession, "encode", encode):
        yield


def _blamed(folder: Path, *names: str) -> set[str]:
    records = read_journal(folder / "journal.jsonl")
    return {record.node for record in records if isinstance(record, Instant) and record.name in names}


def _seconds_per_update(size: int) -> float:
    """What measuring and judging one update takes."""
    update, bound = np.random.default_rng(0).standard_normal(size).astype(np.float32), NormBound(50.0, NormHistory())
    model = UpdateNorm(vector_norm(update), 0.0)
    bound.judge_updates([("a", UpdateNorm(vector_norm(update), 0.0))], model)
    began = time.perf_counter()
    for _ in range(20):
        bound.judge_update("a", UpdateNorm(vector_norm(update), 0.0), model)
    return (time.perf_counter() - began) / 20


def measure(context: ScenarioContext) -> list[Figure]:
    losses, ended, blamed, honest_clipped, rounds = [], 0, 0, 0, context.size["rounds"]
    for method in context.size["methods"]:
        folder = context.folder / method
        honest = simulate(_job(method, context), folder=folder / "honest", threads=0)
        honest_clipped += honest.summary.get("clipped", 0)
        for name, lie in _LIES.items():
            for when, lied in {"once": range(5, 6), "at first": range(3), "always": range(rounds)}.items():
                context.show(f"{method}: {name}, {when}")
                with _lying(lie, lied):
                    run = simulate(_job(method, context), folder=folder / f"{name} {when}", threads=0)
                ended += run.status != "done"
                losses.append(honest.summary["accuracy"] - (run.summary["accuracy"] or 0.0))
                blamed += len(_blamed(run.folder or Path(), "refused", "clipped", "lost") - {_LIAR})
    return [
        Figure(name="runs that ended early", unit="", measured=ended, goal=Goal("≤", 0), executed="simulated"),
        Figure(name="honest devices blamed", unit="", measured=blamed, goal=Goal("≤", 0), executed="simulated"),
        Figure(
            name="updates scaled down in honest runs",
            unit="",
            measured=honest_clipped,
            goal=Goal("≤", 0),
            executed="simulated",
        ),
        Figure(
            name="accuracy lost, worst run",
            unit="points",
            measured=100 * max(losses),
            goal=Goal("≤", 5.0),
            executed="simulated",
        ),
        Figure(
            name="accuracy lost, median run",
            unit="points",
            measured=100 * float(np.median(losses)),
            executed="simulated",
        ),
        Figure(
            name="time to measure and judge an update of 10 million values",
            unit="ms",
            measured=1000 * _seconds_per_update(10_000_000),
            executed="simulated",
        ),
    ]


SCENARIO = FaultScenario(
    title="absurd updates",
    clause="One finite update of 3e38 or a million times the usual length neither ends nor ruins a run.",
    executed="simulated",
    measure=measure,
    quick={"rounds": 16, "methods": ["fedavg", "duplex"]},
    full={"rounds": 60, "methods": list(_METHODS)},
    quick_s=7.0,
    full_s=200.0,
)
