"""How often `RunStore` writes checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from potluck.job import make
from potluck.loops.run_progress import RunOutcome, RunProgress
from potluck.model import weights_file
from potluck.model.model_state import are_finite
from potluck.run import run_store
from potluck.run.run_lock import RunLock
from potluck.run.run_store import RunStore
from tests.simulation.runs import instants

JOB: dict[str, Any] = {
    "task": {"model": "mlp", "data": "synthetic"},
    "fleet": {"devices": [{"name": "a", "flops": "1 GFLOP/s"}]},
    "stop": {"rounds": 100},
}


class _Clock:
    """Advances while a checkpoint is written, and when the test says so."""

    def __init__(self, saving_s: float) -> None:
        self.now = 1000.0
        self._saving_s = saving_s
        self.saved: list[int] = []

    def monotonic(self) -> float:
        return self.now

    def write(self, folder: Path, number: int, *_: object) -> None:
        self.saved.append(number)
        self.now += self._saving_s


def _saved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, often: bool, every: int, saving_s: float, round_s: float
) -> list[int]:
    """The rounds, of forty, that are saved."""
    clock = _Clock(saving_s)
    monkeypatch.setattr(run_store, "time", clock)
    monkeypatch.setattr(weights_file, "write_checkpoint", clock.write)
    folder.mkdir()
    store = RunStore.create_run(make({**JOB, "checkpoint": every}), RunLock(folder), None, lambda: False)
    if often:
        store.save_every_round()
    for number in range(1, 41):
        clock.now += round_s
        store.save_checkpoint(RunProgress(round=number, version=number), clock.now)
    return clock.saved


def test_checkpoints_are_as_frequent_as_the_job_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = _saved(tmp_path / "run", monkeypatch, often=False, every=10, saving_s=0.01, round_s=1.0)
    assert saved == [10, 20, 30, 40]


def test_a_live_run_saves_every_round_if_saving_is_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = _saved(tmp_path / "run", monkeypatch, often=True, every=10, saving_s=0.09, round_s=1.0)
    assert saved == list(range(1, 41))


def test_a_live_run_spends_at_most_a_tenth_of_its_time_on_extra_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = _saved(tmp_path / "run", monkeypatch, often=True, every=10, saving_s=0.5, round_s=1.0)
    assert saved == [1, 6, 10, 15, 20, 25, 30, 35, 40]


def test_a_job_without_checkpoints_saves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _saved(tmp_path / "run", monkeypatch, often=True, every=0, saving_s=0.01, round_s=1.0) == []


def _store(folder: Path) -> RunStore:
    folder.mkdir()
    store = RunStore.create_run(make({**JOB, "checkpoint": 1}), RunLock(folder), None, lambda: False)
    store.attach_tensors(lambda: {"params": torch.ones(3)})
    return store


def _newest(folder: Path) -> str:
    return weights_file.latest_checkpoint(folder / "checkpoints").stem


def test_no_checkpoint_is_written_of_a_model_that_does_not_score_finitely(tmp_path: Path) -> None:
    store = _store(tmp_path / "run")
    for round, finite in enumerate([True, True, False, False, True]):
        store.save_checkpoint(RunProgress(round=round, version=round, scores_finitely=finite), float(round))
        assert _newest(tmp_path / "run") == f"{round if finite else 1:08d}"
    store.finish_run(RunOutcome("done", ""), 1.0)
    skipped = instants(tmp_path / "run", "checkpoint skipped")
    assert [instant.fields["round"] for instant in skipped] == [2, 3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_checkpoint_is_written_of_weights_that_are_not_finite(tmp_path: Path, bad: float) -> None:
    store = _store(tmp_path / "run")
    store.save_checkpoint(RunProgress(round=1, version=1), 1.0)
    store.attach_tensors(lambda: {"params": torch.tensor([1.0, bad]), "counts": torch.ones(2, dtype=torch.int64)})
    store.save_checkpoint(RunProgress(round=2, version=2), 2.0)
    store.finish_run(RunOutcome("failed", ""), 1.0)
    assert _newest(tmp_path / "run") == "00000001"
    assert len(instants(tmp_path / "run", "checkpoint skipped")) == 1


def test_large_weights_whose_sum_overflows_are_finite() -> None:
    assert are_finite([torch.full((4,), 1e308, dtype=torch.float64)])
    assert not are_finite([torch.tensor([float("-inf"), float("inf")])])
