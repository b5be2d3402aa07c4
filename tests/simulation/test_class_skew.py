"""`rounds.skew` in whole runs: each device's own class frequencies adjust its loss and are never sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import potluck
from potluck.data.samples import Indices
from potluck.errors import SettingError
from potluck.job import make
from potluck.model.class_skew import (
    LogitAdjustment,
    NoSkewCorrection,
    RestrictedSoftmax,
    SkewCorrection,
    class_frequencies,
)
from potluck.run.rounds_setup import RoundsSetup
from tests.simulation.runs import SMALL, simulate

_NAMES = ("d0", "d1", "d2")
_TABLES: dict[str, Any] = {
    **SMALL,
    "fleet": {"devices": [{"name": name, "preset": "laptop"} for name in _NAMES]},
    "split": {"kind": "classes", "per_device": 4},
    "stop": {"rounds": 1},
    "rounds": {"batching": {"kind": "fixed", "size": 10_000}, "server": {"kind": "sgd", "lr": 0.1}},
}
_WORDS = {"none": NoSkewCorrection(), "adjusted": LogitAdjustment(), "restricted": RestrictedSoftmax()}


def _one_step(setup: RoundsSetup, skew: SkewCorrection, batches: list[Indices], lr: float) -> nn.Module:
    """One step on the mean, over all samples, of each device's adjusted loss."""
    assert setup.data is not None
    assert setup.module is not None
    module, train, total = setup.module, setup.data.train, sum(map(len, batches))
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for ids in batches:
        x, y = train.batch(ids)
        loss = skew.corrected_loss(cross_entropy, class_frequencies(train.labels[ids], 10))
        (loss(module(x), y) * len(ids) / total).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return module


def _distance(first: nn.Module | None, second: nn.Module) -> float:
    assert first is not None
    return max(
        float((a - b).detach().abs().max()) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


@pytest.mark.parametrize("kind", _WORDS)
def test_a_device_with_stored_data_uses_the_class_frequencies_of_all_of_it(kind: str) -> None:
    tables = {**_TABLES, "recipe": "sync-sgd", "rounds": {**_TABLES["rounds"], "skew": kind}}
    trained = potluck.simulate(tables).module
    for skew in _WORDS.values():
        setup = RoundsSetup.from_job(make(tables), None, None)
        distance = _distance(trained, _one_step(setup, skew, [setup.shards[name] for name in _NAMES], 0.1))
        assert distance < 1e-6 if skew == _WORDS[kind] else distance > 1e-4, skew


def test_a_device_with_streamed_data_uses_the_class_frequencies_of_its_batch() -> None:
    rounds = {"server": {"kind": "sgd", "lr": 0.1}, "skew": {"kind": "adjusted", "strength": 1.0}, "scaling": "none"}
    stream = {"rate": {"kind": "scadles", "set": "S1"}}
    tables = {**_TABLES, "recipe": "scadles-weighted", "rounds": rounds, "stream": stream}
    setup = RoundsSetup.from_job(make(tables), None, None)
    assert setup.feeds is not None
    feeds = [(setup.feeds(name), size) for name, size in zip(_NAMES, (50, 38, 12), strict=True)]
    batches = [feed.take_samples(size, feed.ready_at(size, 0.0)) for feed, size in feeds]
    expected = _one_step(setup, LogitAdjustment(strength=1.0), batches, 0.1)
    assert _distance(potluck.simulate(tables).module, expected) < 1e-6


def test_skew_adjustment_works_with_segments_submodels_and_local_steps(tmp_path: Path) -> None:
    job: dict[str, Any] = {"recipe": "fedavg", "split": {"kind": "classes", "per_device": 4}, "stop": {"rounds": 2}}
    for index, parts in enumerate(({"transfer": "layer-by-layer"}, {"submodel": "filter-dropout"})):
        plain = simulate(tmp_path / f"{index}", **job, rounds=parts)
        adjusted = simulate(tmp_path / f"{index}-bent", **job, rounds={**parts, "skew": "adjusted"})
        assert adjusted.summary["bytes"] == plain.summary["bytes"], "nothing more is sent"
        assert adjusted.summary["loss"] != plain.summary["loss"]
        assert np.isfinite(adjusted.summary["loss"])


def test_skew_adjustment_is_refused_with_class_groups_or_without_classes() -> None:
    groups = {**SMALL, "recipe": "decoupled", "task": {"model": "lenet", "data": "synthetic:shape=1x28x28,train=400"}}
    with pytest.raises(SettingError, match=r"rounds\.skew: class groups"):
        RoundsSetup.from_job(make({**groups, "rounds": {"skew": "adjusted"}}), None, None)
    regression = potluck.Task(lambda: nn.Linear(3, 1), _regression_data(), nn.functional.mse_loss)
    with pytest.raises(SettingError, match=r"rounds\.skew: needs classes"):
        RoundsSetup.from_job(make({**SMALL, "rounds": {"skew": "adjusted"}}), regression, None)


def _regression_data() -> Any:
    from potluck.data import from_tensors

    x, y = torch.randn(40, 3), torch.randn(40, 1)
    return from_tensors(x, y, x, y)
