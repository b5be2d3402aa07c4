"""Runs with data injection: how many samples devices train on in either reading, of which classes, and what travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import potluck
from potluck.data import Dataset, from_tensors
from potluck.data.buffers import SampleAccount
from potluck.errors import SettingError
from potluck.journal import Scalar, Span, read_journal

DEVICES, RATE, ROUNDS = 4, 40, 12
BROADCAST = {"kind": "broadcast", "alpha": 0.5, "beta": 0.5}
MISSING = {"kind": "missing-classes", "alpha": 0.5, "beta": 0.25}


def _one_class_each() -> Dataset:
    y = torch.arange(400) % DEVICES
    x = nn.functional.one_hot(y, DEVICES).float()
    return from_tensors(x, y, x, y)


def _run(folder: Path, injection: dict[str, Any] | None, **rounds: Any) -> tuple[dict[str, Any], list[list[int]]]:
    """The summary of a run, and the labels of every batch."""
    seen: list[list[int]] = []

    def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if scores.requires_grad:
            seen.append(targets.tolist())
        return nn.functional.cross_entropy(scores, targets)

    tables: dict[str, Any] = {
        "task": "own",
        "fleet": {"devices": [{"preset": "laptop", "count": DEVICES}]},
        "split": {"kind": "classes", "per_device": 1},
        "recipe": "scadles",
        "stream": {"rate": {"kind": "constant", "per_second": RATE}, "injection": injection},
        "rounds": {"codec": "dense", **rounds},
        "stop": {"rounds": ROUNDS},
        "evaluate": 0,
    }
    task = potluck.Task(lambda: nn.Linear(DEVICES, DEVICES), _one_class_each(), loss)
    result = potluck.simulate(tables, task=task, folder=folder, threads=0)
    assert result.status == "done", result.reason
    SampleAccount(**result.summary["streams"]).check_balance()
    return dict(result.summary), seen[1:]  # the first one is a probe


def test_every_other_device_trains_on_the_donors_samples(tmp_path: Path) -> None:
    """Two of four devices send half of 40 samples: a device gets 20 or 40 more, and the donors keep theirs."""
    summary, batches = _run(tmp_path / "run", BROADCAST)
    account = SampleAccount(**summary["streams"])
    assert account.shared == account.received == (ROUNDS - 1) * 2 * 3 * 20
    assert summary["samples"] == ROUNDS * DEVICES * RATE + account.received
    assert {len(batch) for batch in batches} == {40, 60, 80}
    gifts = [
        record for record in read_journal(tmp_path / "run" / "journal.jsonl")
        if isinstance(record, Span) and record.name == "give"
    ]  # fmt: skip
    assert {span.fields["bytes"] for span in gifts} == {20 * (4 * DEVICES + 8)}, "inputs and labels travel"
    plain, _ = _run(tmp_path / "plain", None)
    assert summary["bytes"] - plain["bytes"] == sum(span.fields["bytes"] for span in gifts)


def test_a_device_is_sent_classes_that_it_does_not_hold(tmp_path: Path) -> None:
    """⌈0.5 · 4⌉ times ⌊0.25 · 40⌋ samples of another class."""
    summary, batches = _run(tmp_path / "run", MISSING)
    account = SampleAccount(**summary["streams"])
    assert account.shared == account.received == (ROUNDS - 1) * DEVICES * 2 * 10
    assert {len(batch) for batch in batches[DEVICES:]} == {60}
    assert all(len(set(batch)) in (2, 3) for batch in batches[DEVICES:])


@pytest.mark.parametrize("injection", [BROADCAST, MISSING], ids=["broadcast", "missing-classes"])
def test_a_buffered_barrier_injects_the_same_fraction(tmp_path: Path, injection: dict[str, Any]) -> None:
    """Devices are invited one at a time; others send them samples in the middle of their own turns."""
    barrier = {"kind": "buffered", "size": 2}
    summary, batches = _run(tmp_path / "run", injection, barrier=barrier, merge="staleness")
    account = SampleAccount(**summary["streams"])
    assert account.dropped < account.streamed / 4
    later = [len(batch) - RATE for batch in batches[2 * DEVICES :]]
    assert sum(later) / len(later) == pytest.approx(20 if injection is MISSING else 30, rel=0.25)
    assert max(later) <= 40, "what was injected is not injected again"


def test_duplex_transfers_inject_samples_too(tmp_path: Path) -> None:
    summary, _ = _run(tmp_path / "run", BROADCAST, transfer="duplex")
    assert summary["streams"]["received"] > 0.5 * (ROUNDS - 1) * 2 * 3 * 20


def test_missing_classes_need_a_replay(tmp_path: Path) -> None:
    tables = {
        "task": {"model": "mlp", "data": "digits"},
        "fleet": {"devices": [{"preset": "pi4", "count": 2}]},
        "recipe": "scadles",
        "stream": {"source": {"kind": "python", "generator": "a.b:c"}, "injection": MISSING},
        "stop": {"rounds": 1},
    }
    with pytest.raises(SettingError, match=r'stream\.injection: goes by the classes .* use "broadcast"'):
        potluck.simulate(tables)


def test_the_buffer_is_journalled(tmp_path: Path) -> None:
    _run(tmp_path / "run", BROADCAST)
    names = {record.name for record in read_journal(tmp_path / "run" / "journal.jsonl") if isinstance(record, Scalar)}
    assert {"rate", "buffer", "dropped"} <= names
