"""The state of a device's optimizer over turns, restarts and checkpoints; and what local training is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import potluck
from potluck import seeds
from potluck.errors import SettingError, UserError
from potluck.journal import Span, read_journal
from potluck.loops.parts.batching import FixedBatching
from potluck.model import autocast_probe, weights_file
from tests.run.user_parts import build_model
from tests.simulation.runs import journal
from tests.simulation.test_equivalence import small_data

pytestmark = pytest.mark.usefixtures("one_thread")

ADAMW = {"kind": "adamw", "lr": 0.01, "state": "keep"}
FLEET = {"devices": [{"name": "d", "count": 3, "flops": "20 MFLOP/s"}]}
BASE: dict[str, Any] = {
    "recipe": "fedavg",
    "task": "tests.run.user_parts:build_task",
    "fleet": FLEET,
    "rounds": {"batching": {"size": 10}},
    "stop": {"rounds": 4},
    "checkpoint": 2,
}


def _tables(local: Any, settings: dict[str, Any]) -> dict[str, Any]:
    rounds = {**BASE["rounds"], "local": local, **settings.get("rounds", {})}
    return {**BASE, **settings, "rounds": rounds}


def _simulate(folder: Path | None = None, local: Any = ADAMW, **settings: Any) -> potluck.Result:
    return potluck.simulate(_tables(local, settings), folder=folder, threads=0)


def _weights(result: potluck.Result) -> torch.Tensor:
    assert result.module is not None
    return torch.cat([param.detach().reshape(-1) for param in result.module.parameters()])


def _one_device(
    recipe: str, batches: int | None, parts: dict[str, Any], rounds: int = 5
) -> tuple[torch.Tensor, torch.Tensor]:
    """One device with AdamW, and the plain loop over the same batches (`batches` in a turn; None: one)."""
    torch.manual_seed(0)
    net, data = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)), small_data()
    plain, shard = copy.deepcopy(net), np.arange(len(data.train))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    for count in range(rounds):
        rng = lambda *name: seeds.child_generator(0, "d", *name)  # noqa: E731
        for indices in FixedBatching(size=15).choose_batches(shard, count, batches, rng):
            inputs, targets = data.train.batch(indices)
            optimizer.zero_grad()
            nn.functional.cross_entropy(plain(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    job = {
        "recipe": recipe,
        "task": "unused:unused",
        "fleet": {"devices": [{"name": "d", "flops": "1 GFLOP/s"}]},
        "rounds": {"batching": {"size": 15}, **parts},
        "stop": {"rounds": rounds},
    }
    expected = torch.cat([param.detach().reshape(-1) for param in plain.parameters()])
    return _weights(potluck.simulate(job, task=potluck.Task(net, data), threads=0)), expected


@pytest.mark.parametrize("state", ["keep", "average"])
def test_one_device_with_adamw_is_a_plain_loop_over_all_turns(state: str) -> None:
    """Up to the rounding of the difference that it sends: w₀ − (w₀ − w) need not be w in the last bit."""
    weights, expected = _one_device("fedavg", 6, {"local": {**ADAMW, "state": state}})
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)


def test_one_device_that_sends_gradients_is_a_plain_adamw_loop_bit_for_bit() -> None:
    weights, expected = _one_device("sync-sgd", None, {"server": {"kind": "adamw", "lr": 0.01}})
    assert torch.equal(weights, expected)


def test_a_state_that_is_reset_starts_again_in_every_turn() -> None:
    weights, expected = _one_device("fedavg", 6, {"local": {**ADAMW, "state": "reset"}})
    assert (weights - expected).abs().max() > 1e-3


@pytest.mark.parametrize(
    "local",
    [
        ADAMW,
        {**ADAMW, "state": "average"},
        {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "state": "keep"},
        {"kind": "optimizer", "name": "torch.optim.Adafactor", "state": "keep"},
    ],
    ids=str,
)
def test_a_resumed_run_is_that_of_one_never_stopped(local: dict[str, Any], tmp_path: Path) -> None:
    faults = [{"kind": "crash", "device": "d-2", "at": "1 s", "restart": "100 ms"}]
    fleet = {**FLEET, "faults": faults}
    whole = _simulate(tmp_path / "whole", local, fleet=fleet)
    _simulate(tmp_path / "half", local, fleet=fleet, stop={"rounds": 2})
    resumed = potluck.resume(tmp_path / "half", overrides=["stop.rounds=4"], threads=0)
    assert torch.equal(_weights(resumed), _weights(whole))
    assert journal(tmp_path / "half") == journal(tmp_path / "whole")


def _saved_steps(folder: Path) -> dict[str, float]:
    """The steps that each device's AdamW has counted, by device and incarnation."""
    tensors, _ = weights_file.read_checkpoint(weights_file.latest_checkpoint(folder / "checkpoints"))
    ending = "/optimizer.step"
    return {
        name.removeprefix("memory/").removesuffix(ending): float(tensor)
        for name, tensor in tensors.items()
        if name.endswith(ending)
    }


def test_a_restarted_device_begins_without_state(tmp_path: Path) -> None:
    quiet = _simulate(tmp_path / "quiet")
    assert _saved_steps(tmp_path / "quiet") == {f"d-{index}/1": 8.0 for index in range(3)}  # 4 turns of 2 mini-batches
    at = f"{quiet.summary['time_s'] * 0.6:.3f} s"
    fleet = {**FLEET, "faults": [{"kind": "crash", "device": "d-2", "at": at, "restart": "1 ms"}], "notice": "1 ms"}
    _simulate(tmp_path / "crashed", fleet=fleet)
    steps = _saved_steps(tmp_path / "crashed")
    assert steps["d-1/1"] == 8.0
    assert "d-2/1" not in steps
    assert 0 < steps["d-2/2"] < 8.0


def test_a_turn_that_does_not_count_leaves_no_trace_in_the_state(tmp_path: Path) -> None:
    """A device whose updates are always released on their way keeps nothing."""
    late = {"name": "late", "flops": "1 GFLOP/s", "link": {"up": "100 kbit/s"}}
    fleet = {"devices": [*FLEET["devices"], late]}
    barrier = {"kind": "quorum", "share": 0.75}
    _simulate(tmp_path / "run", fleet=fleet, rounds={"barrier": barrier})
    steps = _saved_steps(tmp_path / "run")
    computed = [record for record in read_journal(tmp_path / "run" / "journal.jsonl") if isinstance(record, Span)]
    assert any(span.node == "late" and span.name == "compute" for span in computed), "its update was never on the way"
    assert set(steps) == {"d-0/1", "d-1/1", "d-2/1"}


def test_averaged_state_is_charged_both_ways() -> None:
    parameters, scalars = 12 * 8 + 8 + 8 * 4 + 4, 1
    plain, averaged = (_simulate(local={**ADAMW, "state": state}).summary["bytes"] for state in ("keep", "average"))
    assert averaged - plain == 4 * 3 * 2 * 4 * (2 * parameters + scalars)  # rounds, devices, ways, bytes


def test_averaged_state_differs_from_kept_and_is_not_saved_with_the_model(tmp_path: Path) -> None:
    averaged, kept = _simulate(tmp_path / "run", {**ADAMW, "state": "average"}), _simulate()
    assert not torch.equal(_weights(averaged), _weights(kept))
    assert averaged.module is not None
    weights_file.load_weights(build_model(), tmp_path / "run" / weights_file.WEIGHTS_FILE)  # no name is unknown


SLIM = {"task": {"model": "cnn", "data": "digits"}}


@pytest.mark.parametrize(
    ("local", "settings", "message"),
    [
        ({**ADAMW, "clip_norm": 1}, {"rounds": {"transfer": "optimal"}}, "clip_norm: .*sequential"),
        ({"kind": "gradient", "clip_norm": 1}, {"rounds": {"transfer": "optimal"}}, "clip_norm: .*sequential"),
        ({**ADAMW, "precision": "float16"}, {"rounds": {"transfer": "optimal"}}, "precision: .*sequential"),
        (ADAMW, {"rounds": {"transfer": "duplex"}}, 'state: "keep".*duplex.*"reset"'),
        ({**ADAMW, "state": "average"}, {"rounds": {"transfer": "optimal"}}, 'state: "average".*cut'),
        ({**ADAMW, "state": "average"}, {"recipe": "fedbuff"}, 'state: "average".*versions'),
        (
            {**ADAMW, "state": "average"},
            {"recipe": "heterofl", **SLIM},
            'state: "average".*sub-models; or set it to "reset"',
        ),
        (ADAMW, {"recipe": "heterofl", **SLIM}, 'state: "keep".*every round'),
        ({**ADAMW, "accumulate": 2}, {"recipe": "distreal", **SLIM}, "accumulate: .*use 1"),
        (
            {"kind": "optimizer", "name": "torch.optim.Adafactor"},
            {"recipe": "distreal", **SLIM},
            "name: needs whole tensors",
        ),
        (
            {"kind": "optimizer", "name": "torch.optim.Adafactor"},
            {"rounds": {"transfer": "duplex"}},
            "name: needs whole tensors",
        ),
        (
            {"kind": "optimizer", "name": "tests.model.test_torch_optimizers:JointNorm"},
            {"rounds": {"transfer": "optimal"}},
            "name: needs .*the whole model",
        ),
        ({"kind": "optimizer", "name": "torch.optim.Muon"}, {}, "name: refuses this model's parameters: Muon only"),
        ({"kind": "optimizer", "name": "torch.optim.Rprop", "state": "average"}, {}, 'state: "average".*start at zero'),
        ({"kind": "optimizer", "name": "torch.optim.SGD", "state": "keep"}, {}, "state: .*has no state"),
        ({"kind": "sgd", "state": "keep"}, {}, "`state` needs a `momentum`"),
        ({"kind": "sgd", "nesterov": True}, {}, "`nesterov` needs a `momentum`"),
        ({"kind": "gradient", "accumulate": 2}, {}, "accumulate: unknown key"),
    ],
)
@pytest.mark.parametrize("timing_only", [False, True])
def test_what_does_not_fit_is_refused_in_one_line(
    local: dict[str, Any], settings: dict[str, Any], message: str, timing_only: bool
) -> None:
    with pytest.raises(SettingError, match=f"rounds.local.*{message}") as raised:
        potluck.plan(_tables(local, settings)) if timing_only else _simulate(local=local, **settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": {"transfer": "optimal"}},
        {"recipe": "distreal", **SLIM},
        {"recipe": "decoupled", **SLIM},
        {"recipe": "fedbuff"},
        {"rounds": {"codec": {"kind": "top-k", "ratio": 0.2}}},
    ],
    ids=str,
)
def test_kept_state_fits_the_other_parts(settings: dict[str, Any]) -> None:
    assert _simulate(**settings, stop={"rounds": 2}).summary["status"] == "done"


@pytest.mark.parametrize("settings", [{"recipe": "heterofl", **SLIM}, {"rounds": {"transfer": "duplex"}}], ids=str)
def test_the_default_state_fits_parts_with_which_none_can_be_kept(settings: dict[str, Any]) -> None:
    assert _simulate(local={"kind": "adamw"}, **settings, stop={"rounds": 2}).summary["status"] == "done"


def test_a_precision_that_does_not_work_here_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    autocast_probe.autocast_refusal.cache_clear()
    monkeypatch.setattr(autocast_probe, "_SCRIPT", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(UserError, match=r"bfloat16 does not work on this machine: .*SIGILL.*use float32"):
        _simulate(tmp_path / "run", {**ADAMW, "precision": "bfloat16"})
    autocast_probe.autocast_refusal.cache_clear()
