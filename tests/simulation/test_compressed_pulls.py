"""Runs whose pulls are compressed: fewer bytes both ways, exact resuming, and what they are refused with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.errors import SettingError
from potluck.journal import Span, read_journal
from tests.simulation.runs import SMALL, journal, simulate

TOP_K: dict[str, Any] = {"kind": "top-k", "ratio": 0.05}
FAULTY: dict[str, Any] = {
    "devices": [{"preset": "laptop", "count": 2}, {"preset": "pi4", "count": 2, "link": {"loss": 0.05}}],
    "faults": [{"kind": "crash", "device": "pi4-*", "every": "2 s", "restart": "300 ms"}],
    "lease": "500 ms",
}
JOBS: dict[str, dict[str, Any]] = {
    "whole": {"recipe": "sync-sgd", "rounds": {"pull_codec": TOP_K}},
    "by layer": {"recipe": "dynacomm", "rounds": {"pull_codec": {"kind": "graded"}, "codec": TOP_K}},
    "local": {"recipe": "fedavg", "rounds": {"pull_codec": "int8", "devices": 2}},
    "buffered": {"recipe": "fedbuff", "rounds": {"pull_codec": TOP_K, "barrier": {"kind": "buffered", "size": 2}}},
    "faults": {"recipe": "sync-sgd", "fleet": FAULTY, "rounds": {"pull_codec": TOP_K, "retry": "400 ms"}},
}


def _pulled(folder: Path) -> list[tuple[str, int]]:
    spans = [record for record in read_journal(folder / "journal.jsonl") if isinstance(record, Span)]
    return [(span.node, span.fields["bytes"]) for span in spans if span.name == "pull"]


def _dense_bytes(result: potluck.Result) -> int:
    assert result.module is not None
    return 4 * sum(parameter.numel() for parameter in result.module.parameters())


def _weights(result: potluck.Result) -> list[bytes]:
    assert result.module is not None
    return [value.numpy().tobytes() for value in result.module.state_dict().values()]


def test_only_the_first_pull_of_a_device_is_dense(tmp_path: Path) -> None:
    result = simulate(tmp_path / "run", **JOBS["whole"])
    assert result.status == "done"
    dense = _dense_bytes(result)
    by_device: dict[str, list[int]] = {}
    for device, nbytes in _pulled(tmp_path / "run"):
        by_device.setdefault(device, []).append(nbytes)
    for sizes in by_device.values():
        assert sizes[0] == dense
        assert len(set(sizes[1:])) == 1
        assert sizes[1] < dense / 10


def test_compressed_pulls_still_learn(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"recipe": "sync-sgd", "stop": {"rounds": 120}, "evaluate": 0, "checkpoint": 0}
    dense = simulate(tmp_path / "dense", **settings)
    rounds = {"codec": {**TOP_K, "ratio": 0.1}, "pull_codec": {**TOP_K, "ratio": 0.2}}
    compressed = simulate(tmp_path / "compressed", **settings, rounds=rounds)
    assert compressed.summary["bytes"] < dense.summary["bytes"] / 3
    assert compressed.summary["accuracy"] > dense.summary["accuracy"] - 0.03


@pytest.mark.parametrize("name", JOBS)
def test_a_resumed_run_with_compressed_pulls_equals_the_uninterrupted_one(tmp_path: Path, name: str) -> None:
    uninterrupted = simulate(tmp_path / "whole", **JOBS[name])
    simulate(tmp_path / "parts", **{**JOBS[name], "stop": {"rounds": 5}})
    resumed = potluck.resume(tmp_path / "parts", overrides=["stop.rounds=8"])
    assert journal(tmp_path / "parts") == journal(tmp_path / "whole")
    assert _weights(resumed) == _weights(uninterrupted)


@pytest.mark.parametrize("costs", [None, "resnet20"], ids=["own", "stand-in"])
def test_timing_only_takes_as_long_and_as_many_bytes(tmp_path: Path, costs: str | None) -> None:
    task = {**SMALL["task"], **({} if costs is None else {"costs": costs})}
    job: dict[str, Any] = {"recipe": "sync-sgd", "task": task, "evaluate": 0, "rounds": {"pull_codec": TOP_K}}
    real = simulate(tmp_path / "real", **job)
    timing_only = simulate(tmp_path / "timing", timing_only=True, **job)
    assert timing_only.summary["bytes"] == real.summary["bytes"]
    assert timing_only.summary["time_s"] == pytest.approx(real.summary["time_s"])
    simulate(tmp_path / "parts", timing_only=True, **{**job, "stop": {"rounds": 5}})
    potluck.resume(tmp_path / "parts", overrides=["stop.rounds=8"])
    assert journal(tmp_path / "parts") == journal(tmp_path / "timing"), "resumed"


def test_a_device_that_restarts_pulls_the_weights_again(tmp_path: Path) -> None:
    fleet = {
        "devices": [{"name": "d", "preset": "laptop", "count": 2}],
        "faults": [{"kind": "crash", "device": "d-1", "at": "150 ms", "restart": "50 ms"}],
        "lease": "100 ms",
    }
    result = simulate(
        tmp_path / "run", recipe="sync-sgd", fleet=fleet, rounds={"pull_codec": TOP_K}, stop={"rounds": 40}
    )
    dense = _dense_bytes(result)
    pulled = _pulled(tmp_path / "run")
    assert [nbytes for device, nbytes in pulled if device == "d-0"].count(dense) == 1
    assert [nbytes for device, nbytes in pulled if device == "d-1"].count(dense) == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"recipe": "duplex"}, "with duplex transfers layers leave before"),
        ({"recipe": "heterofl"}, "devices pull different sub-models"),
        ({"recipe": "fedavg", "rounds": {"pull_codec": {**TOP_K, "momentum": 0.9}}}, "momentum is for gradients"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], reason: str) -> None:
    rounds = {"pull_codec": TOP_K, **settings.pop("rounds", {})}
    with pytest.raises(SettingError, match=rf"rounds\.pull_codec: {reason}"):
        potluck.simulate({**SMALL, **settings, "rounds": rounds})
