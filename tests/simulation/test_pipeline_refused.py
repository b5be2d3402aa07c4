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
from tests.simulation.liars import Twist, bend, with_arrays
from tests.simulation.pipelines import Bench, Story, data_of, deep_net, job_of

BATCHES = 16
LIAR = "d1"


@cache
def bench() -> Bench:
    torch.manual_seed(0)
    return Bench(deep_net(), data_of((5,), samples=40))


def run(folder: Path, **settings: Any) -> tuple[potluck.Result, Story]:
    devices = [{"name": f"d{place}", "flops": "100 kFLOP/s", "link": "lan"} for place in range(3)]
    pipeline = {"batch": 8, "partition": {"kind": "cuts", "after": [1, 3]}, "retry": "200 ms", "patience": "30 s"}
    pipeline |= settings.pop("pipeline", {})
    job = job_of(devices, fleet={"lease": "1 s"}, pipeline=pipeline, stop={"rounds": BATCHES}, **settings)
    return bench().simulate(job, folder), Story(folder)


def on(kind: type[Message], change: Callable[[Any], Message | Iterable[Message]]) -> Twist:
    """Other words of one kind."""

    def twist(to: str, message: Message) -> Iterable[Message]:
        if not isinstance(message, kind):
            return [message]
        said = change(message)
        return [said] if isinstance(said, Message) else said

    return twist


def words(kind: type[Message], **fields: Any) -> Twist:
    return on(kind, lambda message: msgspec.structs.replace(message, **fields))


def numbers(kind: type[Bulky], change: Callable[[Any], Any]) -> Twist:
    return on(kind, lambda message: with_arrays(message, change))


def spoilt(array: Any) -> Any:
    array = array.copy()
    array.flat[-1:] = np.nan
    return array


LIES: dict[str, tuple[Twist, str]] = {
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
        on(say.Inventory, lambda m: say.Inventory(m.term, (HeldLayers(LIAR, 0, 5, 10**9, m.term),))),
        "version 1000000000",
    ),
    "a device that has layers that are none": (
        on(say.Inventory, lambda m: say.Inventory(m.term, (HeldLayers(LIAR, -5, 99, 0, 0),))),
        "layers -5 to 99",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("twist", "reason"), LIES.values(), ids=LIES.keys())
def test_the_run_goes_on_without_who_sends_what_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twist: Twist, reason: str
) -> None:
    bend(monkeypatch, LIAR, twist)
    result, story = run(tmp_path / "run")
    assert result.status == "done", result.reason
    assert len(story.committed()) == BATCHES
    refused = story.instants("refused")
    assert [note.node for note in refused] == [LIAR]
    assert reason in refused[0].fields["reason"]
    assert result.summary["refused"] == 1
    assert all(LIAR not in note.fields["order"] for note in story.instants("partition")[1:])
    assert result.module is not None
    assert all(bool(tensor.isfinite().all()) for tensor in result.module.state_dict().values())


@pytest.mark.parametrize(
    ("twist", "reason"),
    [
        (numbers(say.Labels, lambda labels: np.full_like(labels, 10**6)), "labels range from 1000000"),
        (numbers(say.Labels, lambda labels: labels.astype(np.float32)), "labels are float32"),
        (numbers(say.Labels, lambda labels: labels[:3]), "labels have the shape"),
        (numbers(say.Activation, spoilt), "not all finite"),
    ],
)
def test_who_alone_holds_the_data_goes_on_without_those_who_cannot_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twist: Twist, reason: str
) -> None:
    """The run cannot continue without it; and if the other device lies, the run would be lost to a lie."""
    bend(monkeypatch, "d0", twist)
    result, story = run(tmp_path / "run")
    assert result.status == "done", result.reason
    refused = story.instants("refused")
    assert {note.node for note in refused} <= {"d1", "d2"}
    assert all("it cannot use what d0 sends" in note.fields["reason"] for note in refused)
    assert any(reason in note.fields["reason"] for note in refused)


def test_a_run_that_diverges_fails_and_says_so(tmp_path: Path) -> None:
    result, _ = run(tmp_path / "run", pipeline={"optimizer": {"kind": "sgd", "lr": 1e30, "weight_decay": 1e3}})
    assert result.status == "failed"
    assert "d0 holds the data and was refused: its weights are not all finite" in result.reason


def test_one_that_was_refused_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come back as often as it likes."""
    bend(monkeypatch, LIAR, numbers(say.Gradient, spoilt))
    crash = [{"kind": "crash", "device": LIAR, "at": f"{at} s", "restart": "100 ms"} for at in (0.6, 1.0)]
    devices = [{"name": f"d{place}", "flops": "100 kFLOP/s", "link": "lan"} for place in range(3)]
    pipeline = {"batch": 8, "partition": {"kind": "cuts", "after": [1, 3]}, "retry": "200 ms", "patience": "30 s"}
    job = job_of(devices, fleet={"lease": "200 ms", "faults": crash}, pipeline=pipeline, stop={"rounds": 60})
    result, story = bench().simulate(job, tmp_path / "run"), Story(tmp_path / "run")
    assert result.status == "done", result.reason
    assert [note.node for note in story.instants("refused")] == [LIAR]
    assert not [note for note in story.instants("joined") if note.node == LIAR]


def test_stages_follow_nobody_but_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that tells another one to stop, to halt or to forget is not listened to."""

    def twist(to: str, message: Message) -> Iterable[Message]:
        if to == COORDINATOR or not isinstance(message, say.Gradient | say.Activation):
            return [message]
        term = message.term
        return [Stop(), say.Halt(10**6, ()), say.Secure(term, 10**6), say.Close(term, 0), say.Finish(term), message]

    bend(monkeypatch, LIAR, twist)
    result, story = run(tmp_path / "run")
    assert result.status == "done", result.reason
    assert len(story.instants("partition")) == 1
    assert not story.instants("refused")


def test_what_comes_from_the_wrong_side_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels from a stage in the middle, and activations for batches that are far off, would only fill memory."""

    def twist(to: str, message: Message) -> Iterable[Message]:
        if not isinstance(message, say.Activation):
            return [message]
        labels = say.Labels(message.payload, term=message.term, part=message.part)
        return [labels, msgspec.structs.replace(message, part=message.part + 1000), message]

    bend(monkeypatch, LIAR, twist)
    result, story = run(tmp_path / "run")
    assert result.status == "done", result.reason
    assert len(story.instants("partition")) == 1


@pytest.mark.parametrize(
    ("twist", "reason"),
    [
        (words(say.Scored, count=0), "right of 0, not of 20"),
        (words(say.Scored, right=10**6), "1000000 right of 20"),
        (numbers(say.Exam, spoilt), "activations are not all finite"),
        (numbers(say.Exam, lambda array: array[1:]), "activations have the shape"),
    ],
)
def test_what_is_measured_is_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twist: Twist, reason: str
) -> None:
    bend(monkeypatch, "d2" if "right" in reason else LIAR, twist)
    result, story = run(tmp_path / "run", pipeline={"evaluation": "pipeline"}, evaluate=5)
    assert result.status == "done", result.reason
    (refused,) = story.instants("refused")
    assert reason in refused.fields["reason"]
    assert 0 <= result.summary["accuracy"] <= 1
