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
from potluck.loops.pipeline import messages
from potluck.loops.pipeline.layer_sources import HeldLayers
from potluck.payload import Payload
from tests.simulation.pipelines import PipelineJournal, TracedNetwork, data_of, deep_net, job_of
from tests.simulation.tampering import Tamper, tamper_with_messages, with_arrays

BATCHES = 16
BAD_DEVICE = "d1"


@cache
def bench() -> TracedNetwork:
    torch.manual_seed(0)
    return TracedNetwork(deep_net(), data_of((5,), samples=40))


def run(folder: Path, **settings: Any) -> tuple[potluck.Result, PipelineJournal]:
    devices = [{"name": f"d{index}", "flops": "100 kFLOP/s", "link": "lan"} for index in range(3)]
    pipeline = {"batch": 8, "partition": {"kind": "cuts", "after": [1, 3]}, "retry": "200 ms", "patience": "30 s"}
    pipeline |= settings.pop("pipeline", {})
    job = job_of(devices, fleet={"lease": "1 s"}, pipeline=pipeline, stop={"rounds": BATCHES}, **settings)
    return bench().simulate(job, folder), PipelineJournal(folder)


def replacing(kind: type[Message], change: Callable[[Any], Message | Iterable[Message]]) -> Tamper:
    """Replaces the messages of one kind."""

    def tamper(to: str, message: Message) -> Iterable[Message]:
        if not isinstance(message, kind):
            return [message]
        replacement = change(message)
        return [replacement] if isinstance(replacement, Message) else replacement

    return tamper


def with_fields(kind: type[Message], **fields: Any) -> Tamper:
    return replacing(kind, lambda message: msgspec.structs.replace(message, **fields))


def with_values(kind: type[Bulky], change: Callable[[Any], Any]) -> Tamper:
    return replacing(kind, lambda message: with_arrays(message, change))


def with_nan(array: Any) -> Any:
    array = array.copy()
    array.flat[-1:] = np.nan
    return array


TAMPERINGS: dict[str, tuple[Tamper, str]] = {
    "NaN activations": (with_values(messages.Activation, with_nan), "activations are not all finite"),
    "activations of another shape": (
        with_values(messages.Activation, lambda a: a[:, :-1]),
        "activations have the shape",
    ),
    "activations of another dtype": (with_values(messages.Activation, lambda a: a.astype(np.float64)), "are float64"),
    "activations of too few samples": (
        with_values(messages.Activation, lambda a: a[:-1]),
        "activations have the shape",
    ),
    "no activations": (
        replacing(messages.Activation, lambda m: msgspec.structs.replace(m, payload=Payload(8))),
        "0 arrays",
    ),
    "activations of an impossible version": (
        with_fields(messages.Activation, version=10**6),
        "computed with version 1000000",
    ),
    "NaN gradients": (with_values(messages.Gradient, with_nan), "gradients are not all finite"),
    "gradients of another shape": (with_values(messages.Gradient, lambda a: a.T), "gradients have the shape"),
    "NaN copies": (with_values(messages.Replica, with_nan), "weights are not all finite"),
    "copies of other layers": (
        with_fields(messages.Replica, first=0, last=10**6),
        "layers 0 to 1000000 of a model with 6",
    ),
    "copies with too many chunks": (with_fields(messages.Replica, place=7), "chunk 7 of"),
    "copies of the wrong shape": (with_values(messages.Replica, lambda a: a.reshape(1, -1)), "do not fit each other"),
    "NaN layers": (with_values(messages.Piece, with_nan), "weights are not all finite"),
    "an impossible report": (with_fields(messages.Report, applied=10**12), "reports batch 1000000000000"),
    "a NaN batch time": (with_fields(messages.Report, seconds=math.nan), "after nan s"),
    "a NaN time of a layer": (with_fields(messages.Report, layers=(math.nan,)), "reports batch"),
    "an infinite time of a message": (with_fields(messages.Report, received=(("d0", 9, math.inf),)), "reports batch"),
    "an inventory with an impossible version": (
        replacing(
            messages.Inventory, lambda m: messages.Inventory(m.term, (HeldLayers(BAD_DEVICE, 0, 5, 10**9, m.term),))
        ),
        "version 1000000000",
    ),
    "an inventory with impossible layers": (
        replacing(messages.Inventory, lambda m: messages.Inventory(m.term, (HeldLayers(BAD_DEVICE, -5, 99, 0, 0),))),
        "layers -5 to 99",
    ),
}


@pytest.mark.parametrize(("tamper", "reason"), TAMPERINGS.values(), ids=TAMPERINGS.keys())
def test_the_run_continues_without_a_device_that_sends_invalid_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tamper: Tamper, reason: str
) -> None:
    tamper_with_messages(monkeypatch, BAD_DEVICE, tamper)
    result, journal = run(tmp_path / "run", pipeline={"schedule": {"vertical_sync": True}})
    assert result.status == "done", result.reason
    assert len(journal.committed()) == BATCHES
    refused = journal.instants("refused")
    assert [instant.node for instant in refused] == [BAD_DEVICE]
    assert reason in refused[0].fields["reason"]
    assert result.summary["refused"] == 1
    assert all(BAD_DEVICE not in instant.fields["order"] for instant in journal.instants("partition")[1:])
    assert result.module is not None
    assert all(bool(tensor.isfinite().all()) for tensor in result.module.state_dict().values())


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (with_values(messages.Labels, lambda labels: np.full_like(labels, 10**6)), "labels range from 1000000"),
        (with_values(messages.Labels, lambda labels: labels.astype(np.float32)), "labels are float32"),
        (with_values(messages.Labels, lambda labels: labels[:3]), "labels have the shape"),
        (with_values(messages.Activation, with_nan), "not all finite"),
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
    assert {instant.node for instant in refused} <= {"d1", "d2"}
    assert all("it cannot use what d0 sends" in instant.fields["reason"] for instant in refused)
    assert any(reason in instant.fields["reason"] for instant in refused)


def test_a_run_that_diverges_fails_and_says_so(tmp_path: Path) -> None:
    result, _ = run(tmp_path / "run", pipeline={"optimizer": {"kind": "sgd", "lr": 1e30, "weight_decay": 1e3}})
    assert result.status == "failed"
    assert "d0 holds the data and was refused: its weights are not all finite" in result.reason


def test_a_refused_device_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it rejoins."""
    tamper_with_messages(monkeypatch, BAD_DEVICE, with_values(messages.Gradient, with_nan))
    crash = [{"kind": "crash", "device": BAD_DEVICE, "at": f"{at} s", "restart": "100 ms"} for at in (0.6, 1.0)]
    devices = [{"name": f"d{index}", "flops": "100 kFLOP/s", "link": "lan"} for index in range(3)]
    pipeline = {"batch": 8, "partition": {"kind": "cuts", "after": [1, 3]}, "retry": "200 ms", "patience": "30 s"}
    job = job_of(devices, fleet={"lease": "200 ms", "faults": crash}, pipeline=pipeline, stop={"rounds": 60})
    result, journal = bench().simulate(job, tmp_path / "run"), PipelineJournal(tmp_path / "run")
    assert result.status == "done", result.reason
    assert [instant.node for instant in journal.instants("refused")] == [BAD_DEVICE]
    assert not [instant for instant in journal.instants("joined") if instant.node == BAD_DEVICE]


def test_stages_obey_only_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that tells another to stop, halt or forget is ignored."""

    def tamper(to: str, message: Message) -> Iterable[Message]:
        if to == COORDINATOR or not isinstance(message, messages.Gradient | messages.Activation):
            return [message]
        term = message.term
        return [
            Stop(),
            messages.Halt(10**6, ()),
            messages.Secure(term, 10**6),
            messages.Close(term, 0),
            messages.Finish(term),
            message,
        ]

    tamper_with_messages(monkeypatch, BAD_DEVICE, tamper)
    result, journal = run(tmp_path / "run")
    assert result.status == "done", result.reason
    assert len(journal.instants("partition")) == 1
    assert not journal.instants("refused")


def test_messages_from_the_wrong_stage_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels from a middle stage and activations of far-off batches would only fill memory."""

    def tamper(to: str, message: Message) -> Iterable[Message]:
        if not isinstance(message, messages.Activation):
            return [message]
        labels = messages.Labels(message.payload, term=message.term, part=message.part)
        return [labels, msgspec.structs.replace(message, part=message.part + 1000), message]

    tamper_with_messages(monkeypatch, BAD_DEVICE, tamper)
    result, journal = run(tmp_path / "run")
    assert result.status == "done", result.reason
    assert len(journal.instants("partition")) == 1


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (with_fields(messages.Scored, count=0), "right of 0, not of 20"),
        (with_fields(messages.Scored, right=10**6), "1000000 right of 20"),
        (with_fields(messages.Scored, metrics={"accuracy": 1.0}), "it measured accuracy, not nothing"),
        (with_values(messages.Exam, with_nan), "activations are not all finite"),
        (with_values(messages.Exam, lambda array: array[1:]), "activations have the shape"),
    ],
)
def test_evaluation_results_are_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tamper: Tamper, reason: str
) -> None:
    tamper_with_messages(monkeypatch, "d2" if "right" in reason or "measured" in reason else BAD_DEVICE, tamper)
    result, journal = run(tmp_path / "run", pipeline={"evaluation": "pipeline"}, evaluate=5)
    assert result.status == "done", result.reason
    (refused,) = journal.instants("refused")
    assert reason in refused.fields["reason"]
    assert 0 <= result.summary["accuracy"] <= 1
