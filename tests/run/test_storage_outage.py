"""What a store of a live run holds while its folder cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from potluck.errors import StorageError
from potluck.job import make
from potluck.journal import Instant, Span, read_journal
from potluck.loops.run_progress import RunOutcome, RunProgress
from potluck.model import weights_file
from potluck.run import run_store
from potluck.run.resume_point import CheckpointMetadata
from potluck.run.run_lock import RunLock
from potluck.run.run_store import RunStore
from tests.run.test_run_store import JOB


class Outage:
    """No byte can be written while it lasts; the clock moves on so that everything is tried again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lasts = False
        self._open, self._write = os.open, os.write
        monkeypatch.setattr(os, "open", self._opened)
        monkeypatch.setattr(os, "write", self._written)
        monkeypatch.setattr("potluck.run.storage_monitor.StorageMonitor.is_retry_due", lambda self: True)

    def _opened(self, path: Any, flags: int, mode: int = 0o777) -> int:
        if self.lasts and flags & os.O_CREAT and not str(path).startswith("/dev/shm"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._open(path, flags, mode)

    def _written(self, handle: int, data: Any) -> int:
        if self.lasts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(handle, data)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    return Outage(monkeypatch)


def _live_store(folder: Path, checkpoint: int = 1) -> RunStore:
    folder.mkdir()
    store = RunStore.create_run(make({**JOB, "checkpoint": checkpoint}), RunLock(folder), None, lambda: False)
    store.outlive_outages()
    return store


def _train(store: RunStore, rounds: int) -> None:
    progress = store.progress
    for _ in range(rounds):
        store.journal.write_record(Span("a", "compute", progress.round, progress.round + 0.5))
        store.journal.write_record(Span("coordinator", "round", progress.round, progress.round + 1.0))
        progress.round += 1
        progress.version += 1
        store.save_checkpoint(progress, float(progress.round))
        store.report_progress(progress, float(progress.round))


def test_records_are_dropped_within_a_limit_and_the_checkpoint_still_fits_the_journal(
    tmp_path: Path, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "MAX_HELD_BYTES", 12_000)
    store = _live_store(tmp_path / "run")
    _train(store, 3)
    outage.lasts = True
    _train(store, 100)
    assert store.storage.problem is not None
    assert store.interrupt_outcome() is None
    outage.lasts = False
    store.catch_up()
    assert store.storage.problem is None
    path = weights_file.latest_checkpoint(tmp_path / "run" / "checkpoints")
    saved = msgspec.json.decode(weights_file.read_checkpoint(path)[1], type=CheckpointMetadata)
    assert saved.progress.round == 103
    records = list(read_journal(tmp_path / "run" / "journal.jsonl"))
    committed = [record.start for record in records if isinstance(record, Span) and record.name == "round"]
    assert committed == list(range(103)), "rounds are never dropped"
    (note,) = [record for record in records if isinstance(record, Instant)]
    assert note.name == "records_dropped"
    assert note.fields["records"] == 206 - len(records) + 1 > 0
    before = (tmp_path / "run" / "journal.jsonl").read_bytes()[: saved.position].splitlines()
    assert (before[-1].endswith(b"}"), b'"start":102,' in before[-1]) == (True, True)
    store.close()


def test_a_run_that_memory_cannot_hold_stops(tmp_path: Path, outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_store, "MAX_HELD_BYTES", 2_000)
    store = _live_store(tmp_path / "run")
    _train(store, 3)
    outage.lasts = True
    _train(store, 100)
    outcome = store.interrupt_outcome()
    assert outcome is not None
    assert outcome.status == "failed"
    store.finish_run(outcome, 1.0)
    with pytest.raises(StorageError, match=r"lost: 100 rounds since the checkpoint of round 3, 20. journal records"):
        store.close()


def test_a_run_without_checkpoints_writes_none_after_an_outage(tmp_path: Path, outage: Outage) -> None:
    store = _live_store(tmp_path / "run", checkpoint=0)
    outage.lasts = True
    _train(store, 3)
    store.storage.attempt("journal", store.journal.flush_buffer)
    _train(store, 3)
    outage.lasts = False
    store.catch_up()
    store.finish_run(RunOutcome("done", ""), 1.0)
    store.close()
    assert len(list(read_journal(tmp_path / "run" / "journal.jsonl"))) == 12


def test_an_interrupted_store_closes_its_file(tmp_path: Path, outage: Outage) -> None:
    store = _live_store(tmp_path / "run")
    store.journal.write_record(Instant("a", "happened", 1.0))
    outage.lasts = True
    store.abandon()
    assert store.journal.file is None
    assert RunProgress() == store.progress
