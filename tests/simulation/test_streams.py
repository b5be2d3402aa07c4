"""Runs on streamed data: the merged update equals one large batch, and no sample is lost or counted twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import potluck
from potluck.data import Dataset, from_tensors
from potluck.data.buffers import SampleAccount
from potluck.job import make
from potluck.journal import Span, read_journal
from potluck.run.rounds_setup import RoundsSetup
from potluck.run.run_store import RunStore
from potluck.task import build_task
from tests.simulation.runs import SMALL, journal, simulate

FAULTY = {
    "devices": [{"preset": "laptop", "count": 2}, {"preset": "pi4", "count": 3, "link": {"loss": 0.05}}],
    "faults": [
        {"kind": "crash", "device": "pi4-*", "every": "9 s", "restart": "700 ms"},
        {"kind": "partition", "device": "laptop-1", "every": "8 s", "lasting": "900 ms"},
        {"kind": "slow", "device": "laptop-0", "every": "5 s", "lasting": "1 s"},
    ],
    "lease": "500 ms",
}
FEEDBACK: dict[str, Any] = {"codec": {"kind": "graded", "delta": 0.5}}
JOBS: dict[str, dict[str, Any]] = {
    "scadles": {"recipe": "scadles"},
    "ddl": {"recipe": "ddl"},
    "plus": {"recipe": "scadles-plus"},
    "turns": {"recipe": "scadles-plus", "rounds": {"batching": {"kind": "line-rate", "turns": True}}},
    "feedback": {"recipe": "scadles", "rounds": FEEDBACK},
    "injection": {
        "recipe": "scadles-injection",
        "stream": {"injection": {"kind": "broadcast", "alpha": 0.5, "beta": 0.5}, "buffer": "value"},
        "split": {"kind": "classes", "per_device": 2},
        "rounds": {"barrier": {"kind": "quorum", "share": 0.6}, "retry": "400 ms"},
    },
    "classes": {
        "recipe": "scadles",
        "stream": {"injection": {"kind": "missing-classes", "alpha": 0.5, "beta": 0.5}},
        "split": {"kind": "classes", "per_device": 2},
        "rounds": {"retry": "400 ms"},
    },
    "buffered": {
        "recipe": "scadles",
        "stream": {"injection": {"kind": "broadcast", "alpha": 0.5, "beta": 0.5}},
        "rounds": {"barrier": {"kind": "buffered", "size": 3}, "merge": "staleness", "retry": "400 ms"},
    },
}


def _stream_job(rates: tuple[float, ...], rounds: int, **settings: Any) -> dict[str, Any]:
    """Devices whose streams have these rates in the first second."""
    devices = [{"name": f"d{index}", "preset": "laptop"} for index in range(len(rates))]
    return {
        **SMALL,
        "recipe": "scadles-weighted",
        "fleet": {"devices": devices},
        "stop": {"rounds": rounds},
        "stream": {"rate": {"kind": "scadles", "set": "S1"}},
        **settings,
    }


def test_the_weighted_mean_is_one_large_batch() -> None:
    tables = _stream_job((50, 38, 12), 1)
    job = make(tables)
    setup = RoundsSetup.from_job(job, None, None)
    assert setup.feeds is not None
    assert setup.data is not None
    assert setup.module is not None
    streams = [(setup.feeds(f"d{index}"), rate) for index, rate in enumerate((50, 38, 12))]
    batches = [feed.take_samples(rate, feed.ready_at(rate, 0.0)) for feed, rate in streams]
    x, y = setup.data.train.batch(np.concatenate(batches))
    optimizer = torch.optim.SGD(setup.module.parameters(), lr=0.1 * 100 / (64 * 3))
    nn.functional.cross_entropy(setup.module(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    trained = potluck.simulate(tables).module
    assert trained is not None
    for actual, reference in zip(trained.parameters(), setup.module.parameters(), strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-5, atol=1e-7)


def test_one_device_is_plain_sgd() -> None:
    tables = _stream_job((50,), 6)
    setup = RoundsSetup.from_job(make(tables), None, None)
    assert setup.feeds is not None
    assert setup.data is not None
    assert setup.module is not None
    feed, now = setup.feeds("d0"), 0.0
    optimizer = torch.optim.SGD(setup.module.parameters(), lr=0.1 * 50 / 64, momentum=0.9)
    for _ in range(6):
        now = feed.ready_at(50, now)
        x, y = setup.data.train.batch(feed.take_samples(50, now))
        optimizer.zero_grad()
        nn.functional.cross_entropy(setup.module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    trained = potluck.simulate(tables).module
    assert trained is not None
    for actual, reference in zip(trained.parameters(), setup.module.parameters(), strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("transfer", ["sequential", "layer-by-layer"])
def test_a_capped_batch_that_is_accumulated_is_the_whole_batch(transfer: str) -> None:
    """In several mini-batches: the same step up to rounding, in the same time."""
    trained, largest = [], []
    for cap in (None, 512, 16):
        sizes: list[int] = []

        def loss(scores: torch.Tensor, targets: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.extend([len(targets)] if scores.requires_grad else [])
            return nn.functional.cross_entropy(scores, targets)

        batching = {"kind": "stream", "low": 8, "high": 1024, **({} if cap is None else {"cap": cap})}
        tables = {**_stream_job((50, 38, 12), 4, evaluate=0), "rounds": {"batching": batching, "transfer": transfer}}
        task = build_task(make(tables).task, None)
        trained.append(potluck.simulate(tables, task=replace(task, loss=loss), threads=0))
        largest.append(max(sizes))
    uncapped, loosely_capped, capped = trained
    assert largest == [50, 50, 13], "four even ones of 50 samples"
    assert _weights(loosely_capped) == _weights(uncapped), "nothing changes where no batch is above the cap"
    assert _weights(capped) != _weights(uncapped)
    for actual, reference in zip(capped.module.parameters(), uncapped.module.parameters(), strict=True):  # type: ignore[union-attr]
        torch.testing.assert_close(actual, reference, rtol=1e-5, atol=1e-6)
    assert capped.summary["samples"] == uncapped.summary["samples"]
    if transfer == "sequential":
        assert capped.summary["time_s"] == pytest.approx(uncapped.summary["time_s"])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", JOBS)
def test_every_sample_is_accounted_for_at_all_times(tmp_path: Path, name: str, seed: int) -> None:
    looked = 0

    def look(store: RunStore, now: float) -> None:
        nonlocal looked
        looked += 1
        for feed in store.device_states.feeds.values():
            feed.account.check_balance()

    stop = {"rounds": 8}
    result = simulate(tmp_path / "run", fleet=FAULTY, seed=seed, stop=stop, _watch=look, **JOBS[name])
    total = SampleAccount(**result.summary["streams"])
    total.check_balance()
    assert looked == 8
    assert total.dropped > 0, "a device that crashes loses what it held"
    assert total.received <= total.shared
    assert result.summary["samples"] <= _trained_samples(tmp_path / "run") <= total.trained


def _trained_samples(folder: Path) -> int:
    spans = [record for record in read_journal(folder / "journal.jsonl") if isinstance(record, Span)]
    return sum(span.fields.get("samples", 0) for span in spans if span.name == "compute")


def test_truncation_holds_no_more_than_a_second_of_the_stream() -> None:
    fleet = {"devices": [{"preset": "pi4", "count": 6}]}
    tables = {**SMALL, "fleet": fleet, "recipe": "scadles", "stream": {"rate": {"kind": "constant", "per_second": 40}}}
    result = potluck.simulate({**tables, "stop": {"rounds": 20}, "evaluate": 0})
    assert result.summary["streams"]["peak"] <= 6 * 40


@pytest.mark.parametrize("fleet", ["kitchen-table", FAULTY], ids=["steady", "faulty"])
@pytest.mark.parametrize("name", JOBS)
def test_a_resumed_stream_run_equals_the_uninterrupted_one(tmp_path: Path, name: str, fleet: Any) -> None:
    uninterrupted = simulate(tmp_path / "whole", fleet=fleet, **JOBS[name])
    for rounds in (5,) if fleet == "kitchen-table" else (2, 5):
        folder = tmp_path / str(rounds)
        simulate(folder, fleet=fleet, **{**JOBS[name], "stop": {"rounds": rounds}})
        resumed = potluck.resume(folder, overrides=["stop.rounds=8"])
        assert journal(folder) == journal(tmp_path / "whole"), f"stopped after {rounds} rounds"
        assert resumed.summary["streams"] == uninterrupted.summary["streams"]
        assert _weights(resumed) == _weights(uninterrupted)


def _weights(result: potluck.Result) -> list[bytes]:
    assert result.module is not None
    return [value.numpy().tobytes() for value in result.module.state_dict().values()]


def test_the_costs_of_another_network_change_only_time_and_bytes(tmp_path: Path) -> None:
    task = {"model": "mlp", "data": "digits", "options": {"hidden": [16]}}
    small = simulate(tmp_path / "light", recipe="sync-sgd", task=task)
    heavy = simulate(tmp_path / "heavy", recipe="sync-sgd", task={**task, "costs": "resnet20"})
    assert _weights(small) == _weights(heavy)
    times = 272_474 / (16 * 65 + 10 * 17)
    assert heavy.summary["bytes"] / small.summary["bytes"] == pytest.approx(times, rel=0.05)
    assert heavy.summary["time_s"] > 2 * small.summary["time_s"]


def test_timing_only_takes_as_long_as_the_real_run(tmp_path: Path) -> None:
    task = {"model": "mlp", "data": "digits", "options": {"hidden": [16]}, "costs": "resnet20"}
    job: dict[str, Any] = {"recipe": "ddl", "task": task, "evaluate": 0}
    real = simulate(tmp_path / "real", **job)
    timing_only = simulate(tmp_path / "hollow", timing_only=True, **job)
    assert timing_only.summary["time_s"] == pytest.approx(real.summary["time_s"])
    assert timing_only.summary["streams"] == real.summary["streams"]


def _dropped(turns: bool) -> float:
    """The fraction of a stream that a device drops if its turns take four seconds."""
    tables: dict[str, Any] = {
        **SMALL,
        "recipe": "scadles-plus",
        "fleet": {"devices": [{"name": "d", "preset": "laptop", "link": {"latency": "1 s"}}]},
        "stream": {"rate": {"kind": "constant", "per_second": 40}},
        "rounds": {"transfer": "sequential", "batching": {"kind": "line-rate", "turns": turns}},
        "stop": {"rounds": 30},
        "evaluate": 0,
    }
    streams = potluck.simulate(tables).summary["streams"]
    return float(streams["dropped"] / streams["streamed"])


def test_a_device_that_adapts_to_its_turns_trains_at_line_rate() -> None:
    assert _dropped(turns=False) > 0.7
    assert _dropped(turns=True) < 0.05


_EASY, _HARD = (0, 1), (2, 3)


def _two_easy_and_two_hard() -> Dataset:
    """Classes 0 and 1 are separable; 2 and 3 have the same inputs, so that their loss stays high."""
    y = torch.arange(400) % 4
    x = nn.functional.one_hot(y.clamp_max(2), 3).float()
    return from_tensors(x, y, x, y)


def _trained_on(buffer: str | dict[str, str]) -> Counter[int]:
    """How often each class was trained on in the second half; a turn takes a second, the time of four batches."""
    used: list[list[int]] = []

    def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if scores.requires_grad:
            used.append(targets.tolist())
        return nn.functional.cross_entropy(scores, targets)

    tables: dict[str, Any] = {
        "task": "own",
        "fleet": {"devices": [{"name": "d", "preset": "laptop", "link": {"latency": "250 ms"}}]},
        "recipe": "ddl",
        "stream": {"rate": {"kind": "constant", "per_second": 64}, "buffer": buffer},
        "rounds": {"batching": {"kind": "fixed", "size": 16}, "server": {"kind": "sgd", "lr": 0.5}},
        "stop": {"rounds": 200},
        "evaluate": 0,
    }
    task = potluck.Task(lambda: nn.Linear(3, 4), _two_easy_and_two_hard(), loss)
    assert potluck.simulate(tables, task=task, threads=0).status == "done"
    return Counter(label for batch in used[len(used) // 2 :] for label in batch)


def test_hard_samples_are_kept_and_trained_on_more() -> None:
    """Truncation keeps classes as they arrive; selection by value prefers hard samples, whose loss is high."""
    truncated, by_value = _trained_on("truncation"), _trained_on("value")
    even = _trained_on({"kind": "value", "worth": "same"})
    assert sum(truncated.values()) == sum(by_value.values()), "at the same memory and batch"
    for counts, low, high in ((truncated, 0.9, 1.1), (even, 0.9, 1.1), (by_value, 1.5, 5.0)):
        ratio = sum(counts[label] for label in _HARD) / sum(counts[label] for label in _EASY)
        assert low < ratio < high, counts
    assert by_value == _trained_on("value"), "and the same every time"


def test_the_example_learns_though_a_device_loses_its_buffer() -> None:
    result = potluck.simulate(Path(__file__).parents[2] / "examples/streams/job.toml")
    assert result.reason.startswith("accuracy"), result.reason
    assert result.summary["streams"]["dropped"] > 0
