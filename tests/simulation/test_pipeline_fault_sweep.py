"""Random deaths in a pipeline: training completes and computes what the reference loop computes.

The reference knows only which version each batch used, so equal weights, bit for bit, mean that no batch
was skipped, none was applied twice, and that all layers, their momentum included, came back in one consistent version.
A failing seed prints the command that replays it: `python -m tests.simulation.test_pipeline_fault_sweep SEED`.
"""

from __future__ import annotations

import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import potluck
from tests.simulation.pipelines import (
    PipelineJournal,
    TracedNetwork,
    assert_same_weights,
    data_of,
    deep_net,
    delayed_sgd,
    job_of,
)

SEEDS, MANY = 150, 10_000
CHUNK = 50
BATCHES, BATCH = 12, 8


@cache
def _bench() -> TracedNetwork:
    torch.manual_seed(0)
    return TracedNetwork(deep_net(), data_of((5,), samples=40))


def random_job(seed: int) -> potluck.Job:
    """A few random devices with a random fault script; in half of the jobs every device has the data."""
    rng = np.random.default_rng(seed)
    devices = [_random_device(rng, index) for index in range(rng.integers(2, 6))]
    faults = [_random_fault(rng, len(devices)) for _ in range(rng.integers(1, 5))]
    everybody = [device["name"] for device in devices] if rng.random() < 0.5 else []
    pipeline: dict[str, Any] = {
        "batch": BATCH,
        "partition": str(rng.choice(["optimal", "equal", "published"])),
        "schedule": {"kind": "1f1b", "vertical_sync": bool(rng.random() < 0.7)},
        "replication": _random_replication(rng),
        "recovery": str(rng.choice(["repartition", "repartition", "neighbour", "restart"])),
        "sources": everybody,
        "retry": "300 ms",
        "patience": "60 s",
    }
    evaluate, checkpoint = int(rng.choice([0, 0, 5])), int(rng.choice([0, 0, 4]))
    pipeline["evaluation"] = str(rng.choice(["coordinator", "pipeline"]))
    pipeline["schedule"]["predict"] = bool(rng.random() < 0.5)
    return job_of(
        devices,
        fleet={"faults": faults, "lease": f"{rng.uniform(0.3, 2)} s"},
        pipeline=pipeline,
        seed=seed,
        stop={"rounds": BATCHES},
        evaluate=evaluate,
        checkpoint=checkpoint,
    )


def check(seed: int, folder: Path) -> str:
    """Run the job of this seed, check its journal and model, and return its status."""
    bench, job = _bench(), random_job(seed)
    assert job.pipeline is not None
    result = bench.simulate(job, folder)
    journal = PipelineJournal(folder)
    committed = journal.committed()
    assert len(committed) == result.summary["rounds"]
    assert not journal.instants("refused"), "they are all honest"
    journal.check_schedules()
    _check_rollbacks(job, journal)
    if result.status == "failed":
        if "holds the data and is gone" in result.reason:
            return "failed"
        assert _strikes_again_and_again(job), result.reason
        assert "no progress for 1 min" in result.reason, result.reason
        return "gave up"
    assert result.status == "done"
    assert len(committed) == BATCHES
    reference = delayed_sgd(
        bench.net, bench.data, BATCHES, BATCH, journal.versions(), seed=seed, layer_of=bench.layer_of,
        predict=job.pipeline.schedule.predict,
    )  # fmt: skip
    assert_same_weights(result.module, reference)
    return "done"


def _strikes_again_and_again(job: potluck.Job) -> bool:
    """A script that strikes all devices, or the only one that holds the data, again and again may leave no time for a
    batch (all restart every 80 ms, say): the run must say so."""
    assert job.pipeline is not None
    holders = {job.pipeline.central or job.fleet.members[0].name, *job.pipeline.sources}
    return any(fault.every is not None and ({fault.device} in ({"*"}, holders)) for fault in job.fleet.faults)


def _check_rollbacks(job: potluck.Job, journal: PipelineJournal) -> None:
    """A single death in a layout of several stages costs at most `lag` committed batches, however slow the links."""
    assert job.pipeline is not None
    lag = job.pipeline.replication.max_lag
    if not lag or job.pipeline.recovery.restores_checkpoint:
        return
    layout: dict[str, Any] = {}
    lost: set[str] = set()
    is_copied = False  # whether every stage has been copied since the layout began
    for record in journal.records:
        name = getattr(record, "name", "")
        if name in ("lost", "left out"):
            lost.add(record.node)  # type: ignore[attr-defined]
        elif name == "partition":
            layout, lost, is_copied = record.fields, set(), False  # type: ignore[attr-defined]
        elif name == "committed":
            is_copied = is_copied or record.fields["batch"] >= layout["version"] + lag  # type: ignore[attr-defined]
        elif name == "rolled back" and len(lost) == 1 and is_copied and len(layout["order"]) > 1:
            depth = record.fields["before"] - record.fields["to"]  # type: ignore[attr-defined]
            assert depth <= lag, f"a single death took {depth} batches back"


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_training_survives_random_deaths(tmp_path: Path, first: int) -> None:
    sweep(tmp_path, range(first, first + CHUNK))


@pytest.mark.long
def test_ten_thousand_fault_scripts(tmp_path: Path) -> None:
    sweep(tmp_path, range(SEEDS, MANY))


def sweep(folder: Path, seeds: range) -> None:
    endings = []
    for seed in seeds:
        try:
            with tempfile.TemporaryDirectory(dir=folder) as directory:
                endings.append(check(seed, Path(directory) / "run"))
        except Exception as error:
            pytest.fail(f"{error!r}; replay with: python -m tests.simulation.test_pipeline_fault_sweep {seed}")
    assert endings.count("done") > len(endings) / 2
    assert endings.count("gave up") <= len(endings) / 500


def _random_device(rng: np.random.Generator, index: int) -> dict[str, Any]:
    link = {
        "up": f"{rng.uniform(0.5, 50)} Mbit/s",
        "down": f"{rng.uniform(0.5, 50)} Mbit/s",
        "latency": f"{rng.uniform(0, 20)} ms",
        "loss": float(rng.choice([0.0, 0.0, 0.0, 0.05])),
    }
    device: dict[str, Any] = {"name": f"d{index}", "flops": f"{rng.uniform(0.05, 1)} MFLOP/s", "link": link}
    if rng.random() < 0.2:
        device["speed"] = {"kind": "random-walk", "low": 0.2, "every": f"{rng.uniform(0.05, 1)} s"}
    return device


def _random_fault(rng: np.random.Generator, devices: int) -> dict[str, Any]:
    kind = str(rng.choice(["crash", "crash", "crash", "restart", "leave", "join", "partition", "slow", "lose"]))
    fault: dict[str, Any] = {"kind": kind, "device": str(rng.choice(["*", *(f"d{n}" for n in range(devices))]))}
    when = "every" if rng.random() < 0.2 and kind not in ("join", "leave") else "at"
    rarely = 10 if kind == "partition" and when == "every" else 1  # otherwise hardly any message would arrive
    fault[when] = f"{rarely * rng.uniform(0.05, 3)} s"
    duration = f"{rng.uniform(0.01, 3)} s"
    if kind == "crash" and rng.random() < 0.7:
        fault["restart"] = duration
    if kind == "leave" and rng.random() < 0.7:
        fault["back"] = duration
    if kind in ("partition", "slow", "lose"):
        fault["lasting"] = duration
    return fault


def _random_replication(rng: np.random.Generator) -> dict[str, Any]:
    kind = str(rng.choice(["incremental", "incremental", "periodic", "none"]))
    if kind == "periodic":
        return {"kind": kind, "chain": int(rng.integers(1, 5)), "central": int(rng.integers(0, 6))}
    return {"kind": kind}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        print(check(int(sys.argv[1]), Path(directory) / "run"))  # noqa: T201


def test_a_worker_that_keeps_restarting_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """This script restarts a worker about every fifty milliseconds throughout the run."""
    assert check(9056, tmp_path / "run") == "done"
    assert any(
        record.fields["reason"] == "comes and goes" for record in PipelineJournal(tmp_path / "run").instants("left out")
    )
