"""What a device sends is checked before it is used: the run continues without an invalid update and says why."""

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
from tests.simulation.runs import instants, rounds, simulate
from tests.simulation.tampering import Tamper, tamper_with_messages, with_arrays

BAD_DEVICE = "d-1"
FLEET: dict[str, Any] = {"devices": [{"name": "d", "count": 3, "flops": "10 MFLOP/s"}]}
ROUNDS = 4


def _change_header(**fields: Any) -> Tamper:
    """Changes the header of every update."""
    return _on_push(lambda push: [msgspec.structs.replace(push, **fields)])


def _on_push(change: Callable[[Push], Iterable[Message]]) -> Tamper:
    return lambda to, message: change(message) if isinstance(message, Push) else [message]


def _change_arrays(change: Callable[[Any], Any]) -> Tamper:
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
    """The device and the turn of each merged update."""
    return [(device, turn) for span in rounds(folder) for device, turn in span.fields["devices"]]


TAMPERINGS = {
    "layers that do not exist": (_change_header(first=1000, last=1001), "layers 1000 to 1001 of a model with"),
    "layers before the first": (_change_header(first=-1), "layers -1 to"),
    "layers in reverse order": (_change_header(first=1, last=0), "layers 1 to 0"),
    "no samples": (_change_header(samples=0), "trained on 0 samples"),
    "a negative number of samples": (_change_header(samples=-(10**12)), "trained on -1000000000000 samples"),
    "more samples than it has": (
        _change_header(samples=10**15),
        "trained on 1000000000000000 samples; in a turn it has 1 to",
    ),
    "NaN": (_change_arrays(lambda array: np.full_like(array, np.nan)), "not all finite"),
    "another shape": (_change_arrays(lambda array: array.reshape(1, -1)), "shape"),
    "another dtype": (_change_arrays(lambda array: array.astype(np.int32)), "int32"),
    "values too large for the model": (
        _change_arrays(lambda array: np.full(array.shape, 1e300)),
        "wider than the model's",
    ),
}


@pytest.mark.parametrize("recipe", ["sync-sgd", "duplex", "fedbuff"])
@pytest.mark.parametrize(("tamper", "reason"), TAMPERINGS.values(), ids=TAMPERINGS.keys())
def test_an_invalid_update_is_refused_and_the_round_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, tamper: Tamper, reason: str
) -> None:
    tamper_with_messages(monkeypatch, BAD_DEVICE, tamper)
    summary = _run(tmp_path / "run", recipe)
    refused = instants(tmp_path / "run", "refused")
    assert {instant.node for instant in refused} == {BAD_DEVICE}
    assert len(refused) == summary["refused"] >= 1
    assert all(reason in instant.fields["reason"] for instant in refused)
    merged = [device for device, _ in _merged(tmp_path / "run")]
    assert BAD_DEVICE not in merged
    if recipe != "fedbuff":
        assert sorted(merged) == ["d-0"] * ROUNDS + ["d-2"] * ROUNDS


def test_layers_sent_twice_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same layers in segments that overlap would add up to a whole model, or to more than one."""

    def tamper(push: Push) -> Iterable[Message]:
        return [push] if push.first == 0 else [push, msgspec.structs.replace(push, first=0)]

    tamper_with_messages(monkeypatch, BAD_DEVICE, _on_push(tamper))
    _run(tmp_path / "run", rounds={"transfer": "layer-by-layer"})
    refused = instants(tmp_path / "run", "refused")
    assert {instant.node for instant in refused} == {BAD_DEVICE}
    assert all("which overlap" in instant.fields["reason"] for instant in refused)


def test_an_update_sent_before_the_model_arrived_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With duplex transfers the next invitation arrives while this turn is still running."""
    tamper_with_messages(
        monkeypatch, BAD_DEVICE, _on_push(lambda push: [push, msgspec.structs.replace(push, turn=push.turn + 3)])
    )
    _run(tmp_path / "run", "duplex")
    refused = instants(tmp_path / "run", "refused")
    assert {instant.node for instant in refused} == {BAD_DEVICE}
    assert any("before it can have had the model" in instant.fields["reason"] for instant in refused)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e308])
def test_a_nan_loss_does_not_affect_the_mean_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    tamper_with_messages(monkeypatch, BAD_DEVICE, _change_header(loss=loss))
    summary = _run(tmp_path / "run")
    assert summary["refused"] == 0
    losses = [
        record.value
        for record in read_journal(tmp_path / "run" / "journal.jsonl")
        if isinstance(record, Scalar) and record.name == "loss"
    ]
    assert len(losses) == ROUNDS
    assert all(0 < value < 10 for value in losses)


def test_a_round_whose_only_device_is_refused_goes_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tamper_with_messages(monkeypatch, BAD_DEVICE, _change_header(samples=0))
    summary = _run(tmp_path / "run", rounds={"devices": 1}, stop={"rounds": 12})
    assert summary["refused"] >= 1
    assert len(_merged(tmp_path / "run")) == 12


def test_a_run_ends_if_every_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = {"devices": [{"name": BAD_DEVICE, "flops": "10 MFLOP/s"}]}
    tamper_with_messages(monkeypatch, BAD_DEVICE, _change_header(samples=0))
    result = simulate(tmp_path / "run", fleet=fleet)
    assert result.status == "failed"
    assert result.reason.startswith(
        f"no update of round 0 could be used: {BAD_DEVICE}: it says that it trained on 0 samples"
    )


NAN = TAMPERINGS["NaN"][0]


def test_a_device_that_sends_nan_does_not_end_a_run_in_which_it_is_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper_with_messages(monkeypatch, BAD_DEVICE, NAN)
    crashes = [{"kind": "crash", "device": name, "at": "200 ms", "restart": "5 s"} for name in ("d-0", "d-2")]
    fleet = {**FLEET, "lease": "500 ms", "faults": crashes}
    summary = _run(tmp_path / "run", "fedavg", fleet=fleet, stop={"rounds": 40})
    assert summary["refused"] >= 1
    lost = instants(tmp_path / "run", "lost")
    assert {instant.node for instant in lost} == {"d-0", "d-2"}


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_in_which_every_device_sends_nan_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    for number in range(count):
        tamper_with_messages(monkeypatch, f"d-{number}", NAN)
    devices = [{"name": f"d-{number}", "flops": "10 MFLOP/s"} for number in range(count)]
    result = simulate(tmp_path / "run", recipe="fedavg", fleet={"devices": devices})
    assert result.status == "failed"
    assert result.reason.startswith("the training has diverged in round 0: no device has a usable update; d-0: ")
    assert instants(tmp_path / "run", "refused")[-1].at < 10


def test_devices_obey_only_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that tells another to stop or to take part is ignored."""
    original = RoundsDevice.main

    async def main(self: RoundsDevice) -> None:
        if self.node.name == BAD_DEVICE:
            for word in (Stop(), Invite(10**6, 0, 0)):
                self.node.send("d-0", word)
        await original(self)

    monkeypatch.setattr(RoundsDevice, "main", main)
    _run(tmp_path / "run")
    assert sorted(device for device, _ in _merged(tmp_path / "run")) == sorted(["d-0", "d-1", "d-2"] * ROUNDS)


# --- gifts ------------------------------------------------------------------------------------------------------------

INJECTION: dict[str, Any] = {
    "recipe": "scadles-injection",
    "stream": {"injection": {"kind": "broadcast", "alpha": 1.0, "beta": 0.5}},
    "split": {"kind": "classes", "per_device": 4},
}


def _on_gift(change: Callable[[Gift], Message]) -> Tamper:
    return lambda to, message: [change(message)] if isinstance(message, Gift) else [message]


def _labels(change: Callable[[Any], Any]) -> Tamper:
    def tamper(gift: Gift) -> Message:
        x, y = gift.payload.arrays
        return msgspec.structs.replace(gift, payload=Payload(gift.payload.nbytes, (x, change(y))))

    return _on_gift(tamper)


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (_labels(lambda y: np.full_like(y, 10**6)), "its labels go from 1000000 to 1000000, of 10 classes"),
        (_labels(lambda y: y - 100), "its labels go from -"),
        (_labels(lambda y: np.array(3)), "do not fit"),
        (_labels(lambda y: y[:, None]), "do not fit"),
    ],
)
def test_invalid_samples_are_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tamper: Tamper, reason: str
) -> None:
    tamper_with_messages(monkeypatch, BAD_DEVICE, tamper)
    summary = _run(tmp_path / "run", **INJECTION)
    refused = instants(tmp_path / "run", "gift refused")
    assert {instant.fields["from"] for instant in refused} == {BAD_DEVICE}
    assert all(reason in instant.fields["reason"] for instant in refused)
    assert summary["refused"] == 0


def test_a_gift_larger_than_planned_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a device would train on unplanned samples, and its update would have too much weight."""
    tamper_with_messages(
        monkeypatch,
        BAD_DEVICE,
        _on_gift(lambda gift: with_arrays(gift, lambda array: np.repeat(array, 1000, axis=0))),
    )
    summary = _run(tmp_path / "run", **INJECTION)
    assert summary["refused"] == 0
    assert sorted(device for device, _ in _merged(tmp_path / "run")) == sorted(["d-0", "d-1", "d-2"] * ROUNDS)


def test_a_gift_is_attributed_to_its_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    donors: set[str] = set()
    original = StreamBatchSource.receive_gift

    def receive(self: StreamBatchSource, gift: Gift) -> None:
        donors.add(gift.donor)
        original(self, gift)

    monkeypatch.setattr(StreamBatchSource, "receive_gift", receive)
    tamper_with_messages(
        monkeypatch, BAD_DEVICE, _on_gift(lambda gift: msgspec.structs.replace(gift, donor="somebody"))
    )
    _run(tmp_path / "run", **INJECTION)
    assert donors == {"d-0", "d-2"}
