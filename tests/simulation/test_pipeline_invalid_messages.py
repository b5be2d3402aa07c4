"""What a stage sends is checked before it is used: the run continues without a device that sends nonsense."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import potluck
from potluck.loops.messages import Bulky, Message, Stop
from potluck.loops.node import COORDINATOR
from potluck.loops.pipeline import messages as say
from potluck.loops.pipeline.layer_sources import HeldLayers
from potluck.payload import Payload
from tests.simulation.pipelines import Bench, PipelineJournal, data_of, deep_net, job_of
from tests.simulation.tampering import Tamper, tamper_with_messages, with_arrays

BATCHES = 16
TAMPERING_DEVICE = "d1"


@cache
def bench() -> Bench:
    torch.manual_seed(0)
    return Bench(deep_net(), data_of((5,), samples=40))


def run(folder: Path, **settings: Any) -> tuple[potluck.Result, PipelineJournal]:
    devices = [{"name": f"d{index}", "flops": "100 kFLOP/s", "link": "lan"} for index in range(3)]
    pipeline = {"batch": 8, "partition": {"kind": "cuts", "after": [1, 3]}, "retry": "200 ms", "patience": "30 s"}
    pipeline |= settings.pop("pipeline", {})
    job = job_of(devices, fleet={"lease": "1 s"}, pipeline=pipeline, stop={"rounds": BATCHES}, **settings)
    return bench().simulate(job, folder), PipelineJournal(folder)


def on(kind: type[Message], change: Callable[[Any], Message | Iterable[Message]]) -> Tamper:
    """Replaces the messages of one kind."""

    def tamper(to: str, message: Message) -> Iterable[Message]:
        if not isinstance(message, kind):
            return [message]
        replacement = change(message)
        return [replacement] if isinstance(replacement, Message) else replacement

    return tamper


def words(kind: type[Message], **fields: Any) -> Tamper:
    return on(kind, lambda message: msgspec.structs.replace(message, **fields))


def numbers(kind: type[Bulky], change: Callable[[Any], Any]) -> Tamper:
    return on(kind, lambda message: with_arrays(message, change))


def spoilt(array: Any) -> Any:
    array = array.copy()
    array.flat[-1:] = np.nan
    return array


TAMPERINGS: dict[str, tuple[Tamper, str]] = {
    "activations that are no numbers": (numbers(say.Activation, spoilt), "activations are not all finite"),
    "activations of another shape": (numbers(say.Activation, lambda a: a[:, :-1]), "activations have the shape"),
    "activations of another kind": (numbers(say.Activation, lambda a: a.astype(np.float64)), "are float64"),
    "activations of too few samples": (numbers(say.Activation, lambda a: a[:-1]), "activations have the shape"),
    "no activations": (
        on(say.Activation, lambda m: msgspec.structs.replace(m, payload=Payload(8))),
        "0 arrays",
    ),
    "activations of a version that is none": (words(say.Activation, version=10**6), "computed with version 1000000"),
    "gradients that are no numbers": (numbers(say.Gradient, spoilt), "gradients are not all finite"),
    "gradients of another shape": (numbers(say.Gradient, lambda a: a.T), "gradients have the shape"),
    "copies that are no numbers": (numbers(say.Replica, spoilt), "numbers are not all finite"),
    "copies of other layers": (words(say.Replica, first=0, last=10**6), "layers 0 to 1000000 of a model with 6"),
    "copies of too many pieces": (words(say.Replica, place=7), "chunk 7 of"),
    "copies of the wrong shape": (numbers(say.Replica, lambda a: a.reshape(1, -1)), "do not fit each other"),
    "layers that are no numbers": (numbers(say.Piece, spoilt), "numbers are not all finite"),
    "a report of what cannot be": (words(say.Report, applied=10**12), "reports batch 1000000000000"),
    "a batch that took no time that there is": (words(say.Report, seconds=math.nan), "after nan s"),
    "a device that has all": (
        on(say.Inventory, lambda m: say.Inventory(m.term, (HeldLayers(TAMPERING_DEVICE, 0, 5, 10**9, m.term),))),
        "version 1000000000",
    ),
    "a device that has layers that are none": (
        on(say.Inventory, lambda m: say.Inventory(m.term, (HeldLayers(TAMPERING_DEVICE, -5, 99, 0, 0),))),
        "layers -5 to 99",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tamper", "reason"), TAMPERINGS.values(), ids=TAMPERINGS.keys())
def test_the_run_continues_without_a_device_that_sends_invalid_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tamper: Tamper, reason: str
) -> None:
    tamper_with_messages(monkeypatch, TAMPERING_DEVICE, tamper)
    result, journal = run(tmp_path / "run")
    assert result.status == "done", result.reason
    assert len(journal.committed()) == BATCHES
    refused = journal.instants("refused")
    assert [note.node for note in refused] == [TAMPERING_DEVICE]
    assert reason in refused[0].fields["reason"]
    assert result.summary["refused"] == 1
    assert all(TAMPERING_DEVICE not in note.fields["order"] for note in journal.instants("partition")[1:])
    assert result.module is not None
    assert all(bool(tensor.isfinite().all()) for tensor in result.module.state_dict().values())


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (numbers(say.Labels, lambda labels: np.full_like(labels, 10**6)), "labels range from 1000000"),
        (numbers(say.Labels, lambda labels: labels.astype(np.float32)), "labels are float32"),
        (numbers(say.Labels, lambda labels: labels[:3]), "labels have the shape"),
        (numbers(say.Activation, spoilt), "not all finite"),
    ],
)
def test_the_only_device_with_the_data_continues_without_those_that_complain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tamper: Tamper, reason: str
) -> None:
    """The run cannot continue without it, and a false accusation must not end the run."""
    tamper_with_messages(monkeypatch, "d0", tamper)
    result, journal = run(tmp_path / "run")
    assert result.status == "done", result.reason
    refused = journal.instants("refused")
    assert {note.node for note in refused} <= {"d1", "d2"}
    assert all("it cannot use what d0 sends" in note.fields["reason"] for note in refused)
    assert any(reason in note.fields["reason"] for note in refused)


def test_a_run_that_diverges_fails_and_says_so(tmp_path: Path) -> None:
    result, _ = run(tmp_path / "run", pipeline={"optimizer": {"kind": "sgd", "lr": 1e30, "weight_decay": 1e3}})
    assert result.status == "failed"
    assert "d0 holds the data and was refused: its weights are not all finite" in result.reason


def test_a_refused_device_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it rejoins."""
    tamper_with_messages(monkeypatch, TAMPERING_DEVICE, numbers(say.Gradient, spoilt))
    crash = [{"kind": "crash", "device": TAMPERING_DEVICE, "at": f"{at} s", "restart": "100 ms"} for at in (0.6, 1.0)]
    devices = [{"name": f"d{index}", "flops": "100 kFLOP/s", "link": "lan"} for index in range(3)]
    pipeline = {"batch": 8, "partition": {"kind": "cuts", "after": [1, 3]}, "retry": "200 ms", "patience": "30 s"}
    job = job_of(devices, fleet={"lease": "200 ms", "faults": crash}, pipeline=pipeline, stop={"rounds": 60})
    result, journal = bench().simulate(job, tmp_path / "run"), PipelineJournal(tmp_path / "run")
    assert result.status == "done", result.reason
    assert [note.node for note in journal.instants("refused")] == [TAMPERING_DEVICE]
    assert not [note for note in journal.instants("joined") if note.node == TAMPERING_DEVICE]


def test_stages_obey_only_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that tells another to stop, halt or forget is ignored."""

    def tamper(to: str, message: Message) -> Iterable[Message]:
        if to == COORDINATOR or not isinstance(message, say.Gradient | say.Activation):
            return [message]
        term = message.term
        return [Stop(), say.Halt(10**6, ()), say.Secure(term, 10**6), say.Close(term, 0), say.Finish(term), message]

    tamper_with_messages(monkeypatch, TAMPERING_DEVICE, tamper)
    result, journal = run(tmp_path / "run")
    assert result.status == "done", result.reason
    assert len(journal.instants("partition")) == 1
    assert not journal.instants("refused")


def test_messages_from_the_wrong_stage_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels from a middle stage and activations of far-off batches would only fill memory."""

    def tamper(to: str, message: Message) -> Iterable[Message]:
        if not isinstance(message, say.Activation):
            return [message]
        labels = say.Labels(message.payload, term=message.term, part=message.part)
        return [labels, msgspec.structs.replace(message, part=message.part + 1000), message]

    tamper_with_messages(monkeypatch, TAMPERING_DEVICE, tamper)
    result, journal = run(tmp_path / "run")
    assert result.status == "done", result.reason
    assert len(journal.instants("partition")) == 1


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (words(say.Scored, count=0), "right of 0, not of 20"),
        (words(say.Scored, right=10**6), "1000000 right of 20"),
        (numbers(say.Exam, spoilt), "activations are not all finite"),
        (numbers(say.Exam, lambda array: array[1:]), "activations have the shape"),
    ],
)
def test_evaluation_results_are_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tamper: Tamper, reason: str
) -> None:
    tamper_with_messages(monkeypatch, "d2" if "right" in reason else TAMPERING_DEVICE, tamper)
    result, journal = run(tmp_path / "run", pipeline={"evaluation": "pipeline"}, evaluate=5)
    assert result.status == "done", result.reason
    (refused,) = journal.instants("refused")
    assert reason in refused.fields["reason"]
    assert 0 <= result.summary["accuracy"] <= 1
