"""What a device sends is looked at before it is used: the run goes on without it, and says why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from potluck.journal import Scalar, read_journal
from potluck.loops.batch_source import StreamBatchSource
from potluck.loops.messages import Gift, Invite, Message, Push, Stop
from potluck.loops.rounds_device import RoundsDevice
from potluck.payload import Payload
from tests.simulation.liars import Twist, bend, with_arrays
from tests.simulation.runs import instants, rounds, simulate

LIAR = "d-1"
FLEET: dict[str, Any] = {"devices": [{"name": "d", "count": 3, "flops": "10 MFLOP/s"}]}
ROUNDS = 4


def _lie(**fields: Any) -> Twist:
    """Other words in the header of every update."""
    return _on_push(lambda push: [msgspec.structs.replace(push, **fields)])


def _on_push(change: Callable[[Push], Iterable[Message]]) -> Twist:
    return lambda to, message: change(message) if isinstance(message, Push) else [message]


def _numbers(change: Callable[[Any], Any]) -> Twist:
    return _on_push(lambda push: [with_arrays(push, change)])


def _run(folder: Path, recipe: str = "sync-sgd", **settings: Any) -> dict[str, Any]:
    tables = {"recipe": recipe, "fleet": FLEET, "stop": {"rounds": ROUNDS}, "checkpoint": 2, **settings}
    result = simulate(folder, **tables)
    assert result.status == "done", result.reason
    assert result.module is not None
    for name, tensor in result.module.state_dict().items():
        assert bool(tensor.isfinite().all()), name
    return result.summary


def _merged(folder: Path) -> list[tuple[str, int]]:
    """The device and the turn of each update that counted."""
    return [(device, turn) for span in rounds(folder) for device, turn in span.fields["devices"]]


LIES = {
    "layers that there are not": (_lie(first=1000, last=1001), "layers 1000 to 1001 of a model with"),
    "layers before the first": (_lie(first=-1), "layers -1 to"),
    "layers the wrong way round": (_lie(first=1, last=0), "layers 1 to 0"),
    "no samples": (_lie(samples=0), "trained on 0 samples"),
    "fewer than no samples": (_lie(samples=-(10**12)), "trained on -1000000000000 samples"),
    "more samples than there are": (_lie(samples=10**15), "trained on 1000000000000000 samples; in a turn it has 1 to"),
    "no numbers": (_numbers(lambda array: np.full_like(array, np.nan)), "not all finite"),
    "another shape": (_numbers(lambda array: array.reshape(1, -1)), "shape"),
    "another kind": (_numbers(lambda array: array.astype(np.int32)), "int32"),
    "numbers too large for the model": (_numbers(lambda array: np.full(array.shape, 1e300)), "wider than the model's"),
}


@pytest.mark.parametrize("recipe", ["sync-sgd", "duplex", "fedbuff"])
@pytest.mark.parametrize(("twist", "reason"), LIES.values(), ids=LIES.keys())
def test_the_round_ends_without_an_update_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, twist: Twist, reason: str
) -> None:
    bend(monkeypatch, LIAR, twist)
    summary = _run(tmp_path / "run", recipe)
    refused = instants(tmp_path / "run", "refused")
    assert {note.node for note in refused} == {LIAR}
    assert len(refused) == summary["refused"] >= 1
    assert all(reason in note.fields["reason"] for note in refused)
    merged = [device for device, _ in _merged(tmp_path / "run")]
    assert LIAR not in merged
    if recipe != "fedbuff":
        assert sorted(merged) == ["d-0"] * ROUNDS + ["d-2"] * ROUNDS


def test_layers_that_come_twice_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same layers in segments that overlap would add up to a whole model, or to more than one."""

    def twist(push: Push) -> Iterable[Message]:
        return [push] if push.first == 0 else [push, msgspec.structs.replace(push, first=0)]

    bend(monkeypatch, LIAR, _on_push(twist))
    _run(tmp_path / "run", rounds={"transfer": "layer-by-layer"})
    refused = instants(tmp_path / "run", "refused")
    assert {note.node for note in refused} == {LIAR}
    assert all("which overlap" in note.fields["reason"] for note in refused)


def test_an_update_before_the_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With duplex transfers the next turn's invitation comes while this turn is under way."""
    bend(monkeypatch, LIAR, _on_push(lambda push: [push, msgspec.structs.replace(push, turn=push.turn + 3)]))
    _run(tmp_path / "run", "duplex")
    refused = instants(tmp_path / "run", "refused")
    assert {note.node for note in refused} == {LIAR}
    assert any("before it can have had the model" in note.fields["reason"] for note in refused)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e308])
def test_a_loss_that_is_no_number_leaves_that_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    bend(monkeypatch, LIAR, _lie(loss=loss))
    summary = _run(tmp_path / "run")
    assert summary["refused"] == 0
    losses = [
        each.value
        for each in read_journal(tmp_path / "run" / "journal.jsonl")
        if isinstance(each, Scalar) and each.name == "loss"
    ]
    assert len(losses) == ROUNDS
    assert all(0 < found < 10 for found in losses)


def test_a_round_whose_only_device_is_refused_is_given_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bend(monkeypatch, LIAR, _lie(samples=0))
    summary = _run(tmp_path / "run", rounds={"devices": 1}, stop={"rounds": 12})
    assert summary["refused"] >= 1
    assert len(_merged(tmp_path / "run")) == 12


def test_a_run_ends_where_everyone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = {"devices": [{"name": LIAR, "flops": "10 MFLOP/s"}]}
    bend(monkeypatch, LIAR, _lie(samples=0))
    result = simulate(tmp_path / "run", fleet=fleet)
    assert result.status == "failed"
    assert result.reason.startswith(f"no update of round 0 could be used: {LIAR}: it says that it trained on 0 samples")


def test_devices_follow_nobody_but_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that tells another one to stop, or to take part, is not listened to."""
    straight = RoundsDevice.main

    async def main(self: RoundsDevice) -> None:
        if self.node.name == LIAR:
            for word in (Stop(), Invite(10**6, 0, 0)):
                self.node.send("d-0", word)
        await straight(self)

    monkeypatch.setattr(RoundsDevice, "main", main)
    _run(tmp_path / "run")
    assert sorted(device for device, _ in _merged(tmp_path / "run")) == sorted(["d-0", "d-1", "d-2"] * ROUNDS)


# --- gifts ----------------------------------------------------------------------------------------------------------

INJECTION: dict[str, Any] = {
    "recipe": "scadles-injection",
    "stream": {"injection": {"alpha": 1.0, "beta": 0.5}},
    "split": {"kind": "classes", "per_device": 4},
}


def _on_gift(change: Callable[[Gift], Message]) -> Twist:
    return lambda to, message: [change(message)] if isinstance(message, Gift) else [message]


def _labels(change: Callable[[Any], Any]) -> Twist:
    def twist(gift: Gift) -> Message:
        x, y = gift.payload.arrays
        return msgspec.structs.replace(gift, payload=Payload(gift.payload.nbytes, (x, change(y))))

    return _on_gift(twist)


@pytest.mark.parametrize(
    ("twist", "reason"),
    [
        (_labels(lambda y: np.full_like(y, 10**6)), "its labels go from 1000000 to 1000000, of 10 classes"),
        (_labels(lambda y: y - 100), "its labels go from -"),
        (_labels(lambda y: np.array(3)), "do not fit"),
        (_labels(lambda y: y[:, None]), "do not fit"),
    ],
)
def test_samples_that_are_none_are_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twist: Twist, reason: str
) -> None:
    bend(monkeypatch, LIAR, twist)
    summary = _run(tmp_path / "run", **INJECTION)
    refused = instants(tmp_path / "run", "gift refused")
    assert {note.fields["from"] for note in refused} == {LIAR}
    assert all(reason in note.fields["reason"] for note in refused)
    assert summary["refused"] == 0


def test_a_gift_is_no_more_than_was_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a device would train on samples nobody planned, and its update would weigh too much."""
    bend(monkeypatch, LIAR, _on_gift(lambda gift: with_arrays(gift, lambda array: np.repeat(array, 1000, axis=0))))
    summary = _run(tmp_path / "run", **INJECTION)
    assert summary["refused"] == 0
    assert sorted(device for device, _ in _merged(tmp_path / "run")) == sorted(["d-0", "d-1", "d-2"] * ROUNDS)


def test_a_gift_is_by_who_sends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    donors: set[str] = set()
    straight = StreamBatchSource.receive_gift

    def receive(self: StreamBatchSource, gift: Gift) -> None:
        donors.add(gift.donor)
        straight(self, gift)

    monkeypatch.setattr(StreamBatchSource, "receive_gift", receive)
    bend(monkeypatch, LIAR, _on_gift(lambda gift: msgspec.structs.replace(gift, donor="somebody")))
    _run(tmp_path / "run", **INJECTION)
    assert donors == {"d-0", "d-2"}
