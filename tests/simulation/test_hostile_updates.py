"""A device whose updates are finite and absurd neither ends nor ruins a run, and no honest device is blamed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import potluck
from potluck.model import weights_file
from potluck.model.training_session import LocalTrainingSession
from potluck.payload import Payload
from tests.simulation.runs import instants, simulate

LIAR = "pi4-0"
ROUNDS = 16
Lie = Callable[[Any], Any]  # an array as it should be → as it is sent

LIES: dict[str, Lie] = {
    "3e38": lambda array: np.full_like(array, 3e38 if array.dtype != np.float16 else 6e4),
    "a million times": lambda array: (array.astype(np.float64) * 1e6).astype(array.dtype),
}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"recipe": "fedavg"},
    "gradients": {"recipe": "sync-sgd", "rounds": {"server": {"kind": "sgd", "lr": 0.2}}},
    "duplex": {"recipe": "duplex"},
    "buffered": {"recipe": "fedbuff"},
    "top-k": {"recipe": "fedavg", "rounds": {"codec": {"kind": "top-k", "ratio": 0.2}}},
    "sub-models": {"recipe": "heterofl"},
}


@pytest.fixture
def send_lies(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the updates of one device, or of all, be lies in some rounds."""
    honest = LocalTrainingSession.encode

    def install(lie: Lie, rounds: range, device: str | None = LIAR, *, buffers_only: bool = False) -> None:
        def encode(session: LocalTrainingSession, first: int, last: int) -> Payload:
            payload = honest(session, first, last)
            if session._turn.device != (device or session._turn.device) or session._turn.round not in rounds:
                return payload
            *coded, buffers = payload.arrays
            lied = [lie(array) if array.dtype.kind == "f" and not buffers_only else array for array in coded]
            return Payload(payload.nbytes, (*lied, lie(buffers)))

        monkeypatch.setattr(LocalTrainingSession, "encode", encode)

    return install


QUICK = [("fedavg", "3e38", 0), ("duplex", "3e38", 0), ("buffered", "a million times", 0), ("top-k", "3e38", 4)]
ALL = [(method, lie, begin) for method in METHODS for lie in LIES for begin in (0, 4)]


@pytest.mark.parametrize(
    ("method", "lie", "begin"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.long, id="-".join(map(str, case))) for case in ALL],
)
def test_absurd_updates_are_scaled_down(
    method: str, lie: str, begin: int, tmp_path: Path, send_lies: Callable[..., None]
) -> None:
    settings = {**METHODS[method], "stop": {"rounds": ROUNDS}, "seed": 3}
    honest = simulate(tmp_path / "honest", **settings)
    assert "clipped" not in honest.summary
    send_lies(LIES[lie], range(begin, begin + 3))
    lied = simulate(tmp_path / "lied", **settings)
    assert lied.status == "done", lied.reason
    clipped = instants(tmp_path / "lied", "clipped")
    assert {instant.node for instant in clipped} == {LIAR}
    assert all(instant.fields["norm"] > instant.fields["bound"] > 0 for instant in clipped)
    assert lied.summary["clipped"] == len(clipped)
    assert instants(tmp_path / "lied", "refused") == []
    assert lied.summary["accuracy"] > honest.summary["accuracy"] - 0.05


def _simulate_batch_norm(folder: Path, inputs: float = 1.0, **rounds: Any) -> potluck.Result:
    """A small network with a batch norm; its inputs are as large as said."""
    torch.manual_seed(0)
    x = torch.randn(600, 20)
    y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
    layers = [torch.nn.Linear(20, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2)]
    job: dict[str, Any] = {
        "recipe": "fedavg", "task": "own", "seed": 7, "stop": {"rounds": 20}, "rounds": rounds,
        "fleet": {"devices": [{"name": "d", "count": 4, "flops": "20 MFLOP/s"}]},
    }  # fmt: skip
    return potluck.simulate(
        job, folder=folder, task=potluck.Task(model=torch.nn.Sequential(*layers), data=(inputs * x, y))
    )


def test_a_first_update_of_absurd_buffers_does_not_ruin_a_run_of_one_device_a_round(
    tmp_path: Path, send_lies: Callable[..., None]
) -> None:
    honest = _simulate_batch_norm(tmp_path / "honest", devices=1)
    assert "clipped" not in honest.summary
    send_lies(LIES["3e38"], range(1), None, buffers_only=True)
    lied = _simulate_batch_norm(tmp_path / "lied", devices=1)
    assert lied.summary["clipped"] == 1
    assert lied.summary["accuracy"] > honest.summary["accuracy"] - 0.05
    assert lied.module is not None
    assert all(float(buffer.abs().max()) < 1e3 for buffer in lied.module.buffers())


@pytest.mark.parametrize("inputs", [255.0, 65535.0])
@pytest.mark.parametrize("devices", [1, 2])
def test_inputs_that_are_not_normalised_are_no_lie(tmp_path: Path, inputs: float, devices: int) -> None:
    result = _simulate_batch_norm(tmp_path / "run", inputs, devices=devices)
    assert "clipped" not in result.summary
    assert result.summary["refused"] == 0


def test_a_device_that_never_stops_is_refused(tmp_path: Path, send_lies: Callable[..., None]) -> None:
    honest = simulate(tmp_path / "honest", recipe="fedavg", stop={"rounds": ROUNDS})
    send_lies(LIES["3e38"], range(ROUNDS))
    lied = simulate(tmp_path / "lied", recipe="fedavg", stop={"rounds": ROUNDS})
    assert lied.status == "done"
    assert lied.summary["clipped"] == 3
    refused = instants(tmp_path / "lied", "refused")
    assert {instant.node for instant in refused} == {LIAR}
    assert len(refused) == ROUNDS - 3
    assert "rounds.norm_bound" in refused[0].fields["reason"]
    assert lied.summary["accuracy"] > honest.summary["accuracy"] - 0.05


def test_the_bound_can_be_turned_off_and_then_the_run_says_that_it_diverged(
    tmp_path: Path, send_lies: Callable[..., None]
) -> None:
    send_lies(LIES["3e38"], range(5, ROUNDS))
    result = simulate(
        tmp_path / "run", recipe="fedavg", stop={"rounds": ROUNDS}, rounds={"norm_bound": 0}, checkpoint=1
    )
    assert result.status == "failed"
    assert "the training has diverged in round" in result.reason
    assert instants(tmp_path / "run", "clipped") == []
    tensors, _ = weights_file.read_checkpoint(weights_file.latest_checkpoint(tmp_path / "run" / "checkpoints"))
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    assert result.module is not None
    assert all(bool(value.isfinite().all()) for value in result.module.state_dict().values())


def test_a_resumed_run_judges_as_one_that_was_never_stopped(tmp_path: Path, send_lies: Callable[..., None]) -> None:
    send_lies(LIES["a million times"], range(6, 8))
    settings: dict[str, Any] = {"recipe": "fedavg", "checkpoint": 4}
    simulate(tmp_path / "whole", stop={"rounds": 12}, **settings)
    simulate(tmp_path / "resumed", stop={"rounds": 4}, **settings)
    potluck.resume(tmp_path / "resumed", overrides=["stop.rounds=12"])
    first, second = (instants(tmp_path / name, "clipped") for name in ("whole", "resumed"))
    assert first == second != []
    states = [weights_file.read_checkpoint(weights_file.latest_checkpoint(tmp_path / name / "checkpoints"))[0]
              for name in ("whole", "resumed")]  # fmt: skip
    assert torch.equal(states[0]["params"], states[1]["params"])


def test_an_honestly_diverging_run_says_so_and_keeps_its_last_good_checkpoint(tmp_path: Path) -> None:
    result = simulate(
        tmp_path / "run", recipe="sync-sgd", stop={"rounds": 200}, checkpoint=1,
        rounds={"server": {"kind": "sgd", "lr": 1e38}},
    )  # fmt: skip
    assert result.status == "failed"
    assert "the training has diverged in round" in result.reason
    assert "lower the learning rate" in result.reason
    path = weights_file.latest_checkpoint(tmp_path / "run" / "checkpoints")
    tensors, _ = weights_file.read_checkpoint(path)
    assert all(math.isfinite(float(tensor.double().sum())) for tensor in tensors.values())


def test_a_pipeline_that_diverges_says_so(tmp_path: Path) -> None:
    """Its stages refuse each other one by one; none of them is the cause."""
    result = simulate(
        tmp_path / "run", recipe="ftpipehd", stop={"rounds": 40}, checkpoint=1,
        fleet={"devices": [{"name": "d", "count": 3, "flops": "20 MFLOP/s"}]},
        pipeline={"optimizer": {"kind": "sgd", "lr": 1e30}},
    )  # fmt: skip
    assert result.status == "failed"
    assert "the training has diverged in round" in result.reason
    tensors, _ = weights_file.read_checkpoint(weights_file.latest_checkpoint(tmp_path / "run" / "checkpoints"))
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
