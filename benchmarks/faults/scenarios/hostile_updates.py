"""One device's updates are finite and absurd: what they cost in accuracy, and who is blamed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from torch import nn

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
_CHANGES: dict[str, Callable[[Any], Any]] = {
    "3e38": lambda array: np.full_like(array, 3e38),
    "a million times": lambda array: (array.astype(np.float64) * 1e6).astype(array.dtype),
    "NaN": lambda array: np.full_like(array, np.nan),
}
_DEVICE: dict[str, Any] = {"name": "d", "flops": "20 MFLOP/s"}
_BATCH_NORM: dict[str, Any] = {"model": f"{__name__}:batch_norm_network", "data": "digits"}
_FEW: dict[str, dict[str, Any]] = {
    "one device a round": {"rounds": {"devices": 1}},
    "two devices a round": {"rounds": {"devices": 2}},
    "two devices": {"fleet": {"devices": [{**_DEVICE, "count": 2}]}},
}


class _Lie(NamedTuple):
    """What a device sends instead of its updates."""

    change: str
    when: str
    rounds: range
    buffers_only: bool = False
    liar: str | None = _LIAR  # None: the device that finishes first

    def __str__(self) -> str:
        return f"{self.change}{' in buffers' if self.buffers_only else ''}, {self.when}"


class _Case(NamedTuple):
    """A job that is run honestly and with each of the lies."""

    name: str
    job: dict[str, Any]
    lies: Sequence[_Lie]


def batch_norm_network(classes: int = 10) -> nn.Module:
    """For digits of 8×8, with a batch norm behind each hidden layer."""
    hidden = [nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(32, classes))


def _job(count: int, seed: int, **changes: Any) -> dict[str, Any]:
    return {
        "recipe": "fedavg",
        "task": {"model": "mlp", "data": "digits", "options": {"hidden": [32]}},
        "fleet": {"devices": [{**_DEVICE, "count": 6}]},
        "stop": {"rounds": count},
        "evaluate": count,
        "seed": seed,
        **changes,
    }


def _cases(context: ScenarioContext) -> Iterator[_Case]:
    rounds, seed = context.size["rounds"], context.seed
    when = {"once": range(5, 6), "at first": range(3), "always": range(rounds)}
    for method in context.size["methods"]:
        lies = [_Lie(change, *each) for change in ("3e38", "a million times") for each in when.items()]
        yield _Case(method, _job(rounds, seed, **_METHODS[method]), lies)
    rounds = context.size["rounds_of_few"]
    when = {"once": range(5, 6), "at first": range(1)}
    for few in context.size["few"]:
        liar = _LIAR if few == "two devices" else None
        lies = [_Lie(change, *each, True, liar) for change in ("3e38", "a million times") for each in when.items()]
        yield _Case(few, _job(rounds, seed, task=_BATCH_NORM, **_FEW[few]), lies)
    lies = [_Lie("NaN", "always", range(rounds)), _Lie("3e38", "at first", range(3), True)]
    yield _Case("alone for a while", _alone_job(rounds, seed), lies)


def _alone_job(rounds: int, seed: int) -> dict[str, Any]:
    """All devices but one crash in the first round and are back a second later."""
    crashes = [{"kind": "crash", "device": f"d-{number}", "at": "10 ms", "restart": "1 s"} for number in range(1, 6)]
    fleet = {"devices": [{**_DEVICE, "count": 6}], "lease": "200 ms", "faults": crashes}
    return _job(rounds, seed, task=_BATCH_NORM, fleet=fleet)


@contextmanager
def _lying(lie: _Lie) -> Iterator[set[str]]:
    """Within this context a device lies; yields its name once it has."""
    honest, change, liars = LocalTrainingSession.encode, _CHANGES[lie.change], set(filter(None, [lie.liar]))

    def encode(session: LocalTrainingSession, first: int, last: int) -> Payload:
        payload, turn = honest(session, first, last), session._turn
        if turn.round not in lie.rounds or (liars and turn.device not in liars):
            return payload
        liars.add(turn.device)
        *coded, buffers = payload.arrays
        if not lie.buffers_only:
            coded = [change(array) if array.dtype.kind == "f" else array for array in coded]
        return Payload(payload.nbytes, (*coded, change(buffers)))

    with mock.patch.object(LocalTrainingSession, "encode", encode):
        yield liars


def _blamed(folder: Path) -> set[str]:
    """The devices that were refused, scaled down or lost."""
    instants = [record for record in read_journal(folder / "journal.jsonl") if isinstance(record, Instant)]
    return {instant.node for instant in instants if instant.name in ("refused", "clipped", "lost")}


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
    losses, ended, blamed, honest_clipped = [], 0, 0, 0
    for case in _cases(context):
        folder = context.folder / case.name
        honest = simulate(case.job, folder=folder / "honest", threads=0)
        honest_clipped += honest.summary.get("clipped", 0)
        for lie in case.lies:
            context.show(f"{case.name}: {lie}")
            with _lying(lie) as liars:
                run = simulate(case.job, folder=folder / str(lie), threads=0)
            ended += run.status != "done"
            losses.append(honest.summary["accuracy"] - (run.summary["accuracy"] or 0.0))
            blamed += len(_blamed(folder / str(lie)) - _blamed(folder / "honest") - liars)
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
    clause="A device that sends 3e38, a million times the usual length or NaN neither ends nor ruins a run.",
    executed="simulated",
    measure=measure,
    quick={
        "rounds": 16,
        "methods": ["fedavg", "duplex"],
        "rounds_of_few": 30,
        "few": ["one device a round", "two devices"],
    },
    full={"rounds": 60, "methods": list(_METHODS), "rounds_of_few": 60, "few": list(_FEW)},
    quick_s=20.0,
    full_s=250.0,
)
