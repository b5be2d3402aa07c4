"""Ordered dropout pushes what it trained: fewer bytes, the same merged weights, the same sizes without training."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

import potluck
from potluck.journal import Scalar, Span, read_journal
from potluck.model.model_state import WeightLayout
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.model.submodels.slimmable_model import trace_slimmable
from potluck.model.submodels.submodel_parts import FilterDropout
from potluck.model.submodels.update_slice import UpdateSlicer
from potluck.model.submodels.width_extractor import WidthExtractor
from potluck.model.torch_trainer import ReceivedSegment
from potluck.payload import Payload
from potluck.run.rounds_setup import RoundsSetup
from tests.simulation.runs import journal
from tests.simulation.test_submodels import make_job, run, small_data, small_net, uneven_devices

ORDERED = {"kind": "filter-dropout", "units": "leading", "scaled": False, "mean": "trained"}
WAVES = {"kind": "random-walk", "low": 0.1, "step": 0.9, "every": "30 ms"}
NET = trace_slimmable(small_net(), (1, 6, 6))


def steady_devices() -> list[dict[str, Any]]:
    """Three speeds that do not change, so that what is trained does not depend on how long a transfer takes."""
    speeds = (("fast", 4e6), ("half", 2e6), ("slow", 1e6))
    return [{"name": name, "flops": flops, "link": "lan"} for name, flops in speeds]


def changing_devices() -> list[dict[str, Any]]:
    """All choose another size for each mini-batch."""
    return [{"name": "pi", "count": 3, "flops": "4 MFLOP/s", "link": "lan", "speed": WAVES}]


def pushed_bytes(folder: Path) -> list[int]:
    spans = [record for record in read_journal(folder / "journal.jsonl") if isinstance(record, Span)]
    return [span.fields["bytes"] for span in spans if span.name == "push"]


def record_counts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The counts of all mini-batches, in the order in which they are chosen."""
    chosen: list[tuple[int, ...]] = []
    choose = WidthExtractor.choose_submodel

    def record_choice(self: WidthExtractor, turn: Any, affordable: float, rng: Any) -> Any:
        choice = choose(self, turn, affordable, rng)
        if affordable > 0:  # not the smallest one, which is tried before the run
            chosen.append(choice.counts)  # type: ignore[attr-defined]
        return choice

    monkeypatch.setattr(WidthExtractor, "choose_submodel", record_choice)
    return chosen


def test_a_push_has_the_bytes_of_the_widest_mini_batch_of_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = record_counts(monkeypatch)
    one = [{"name": "pi", "flops": "4 MFLOP/s", "link": "lan", "speed": WAVES}]
    run(make_job(ORDERED, one), tmp_path / "run")
    turns = [chosen[start : start + 4] for start in range(0, len(chosen), 4)]
    widest = [tuple(map(max, zip(*turn, strict=True))) for turn in turns]
    assert pushed_bytes(tmp_path / "run") == [NET.narrow_layout(counts).nbytes for counts in widest]
    assert len(set(widest)) > 1
    assert any(counts not in turn or len(set(turn)) > 1 for counts, turn in zip(widest, turns, strict=True))


@pytest.mark.parametrize("mean", ["all", "trained"])
@pytest.mark.parametrize("more", [{}, {"codec": "fp16"}, {"transfer": "layer-by-layer"}], ids=str)
def test_the_merged_weights_are_those_of_whole_updates_to_the_last_bit(
    monkeypatch: pytest.MonkeyPatch, mean: str, more: Mapping[str, Any]
) -> None:
    """Momentum on both sides, batch norm, and a device that trains everything beside two that do not."""
    server = {"kind": "sgd", "lr": 1.0, "momentum": 0.9, "weight_decay": 0.01}
    job = make_job({**ORDERED, "mean": mean}, steady_devices(), rounds={"server": server, **more})
    sliced = run(job)
    monkeypatch.setattr(FilterDropout, "slices_updates", False)
    for name, tensor in run(job).items():
        assert torch.equal(tensor, sliced[name]), name


def test_nothing_that_was_trained_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    cut, seen = UpdateSlicer.cut, list[int]()

    def check_cut(
        self: UpdateSlicer, counts: tuple[int, ...], params: Tensor, buffers: Tensor
    ) -> tuple[Tensor, Tensor]:
        small = cut(self, counts, params, buffers)
        assert all(map(torch.equal, self.expand(counts, *small), (params, buffers)))
        seen.append(len(small[0]))
        return small

    monkeypatch.setattr(UpdateSlicer, "cut", check_cut)
    run(make_job(ORDERED, changing_devices()))
    assert len(set(seen)) > 2


@pytest.mark.parametrize("more", [{}, {"codec": "fp16"}, {"transfer": "layer-by-layer"}], ids=str)
def test_a_run_that_only_models_time_pushes_the_same_bytes(tmp_path: Path, more: Mapping[str, Any]) -> None:
    job, task = make_job(ORDERED, uneven_devices(), rounds=more), potluck.Task(small_net(), small_data())
    for timing_only in (False, True):
        folder = tmp_path / str(timing_only)
        potluck.simulate(msgspec.structs.replace(job, timing_only=timing_only), task=task, folder=folder, threads=0)
    real, timed = (pushed_bytes(tmp_path / name) for name in ("False", "True"))
    assert real == timed
    assert len(set(real)) > 2


@pytest.mark.parametrize(
    "more",
    [{"rounds": {"codec": {"kind": "top-k", "ratio": 1.0}}}, {"submodel": {**ORDERED, "units": "random"}}],
    ids=["a codec that sends what it left out before", "random units"],
)
def test_updates_are_whole_where_a_slice_would_not_have_all_of_them(tmp_path: Path, more: dict[str, Any]) -> None:
    kind = more.pop("submodel", {**ORDERED, "mean": "all"})
    run(make_job(kind, changing_devices(), **more), tmp_path / "run")
    assert set(pushed_bytes(tmp_path / "run")) == {NET.layout.nbytes}
    fractions = [record for record in read_journal(tmp_path / "run" / "journal.jsonl") if isinstance(record, Scalar)]
    assert min(record.value for record in fractions if record.name == "share") < 0.9


def test_a_resumed_run_pushes_the_same_slices(tmp_path: Path) -> None:
    more = {"stop": {"rounds": 4}, "checkpoint": 2}
    run(make_job(ORDERED, changing_devices(), **more), tmp_path / "whole")
    run(make_job(ORDERED, changing_devices(), **{**more, "stop": {"rounds": 2}}), tmp_path / "parts")
    potluck.resume(
        tmp_path / "parts", overrides=["stop.rounds=4"], task=potluck.Task(small_net(), small_data()), threads=0
    )
    assert pushed_bytes(tmp_path / "parts") == pushed_bytes(tmp_path / "whole")
    assert journal(tmp_path / "parts") == journal(tmp_path / "whole")


def test_the_layout_of_a_slice_is_that_of_the_narrow_network() -> None:
    layers = [(layer.parameters, layer.buffers) for layer in NET.chain.layers]
    for counts in itertools.product(*(range(1, size + 1, 3) for size in NET.full_counts)):
        module = build_narrow_network(NET, width_agnostic_graph(NET), counts)
        assert NET.narrow_layout(counts) == WeightLayout.of_module(module, layers)


def test_a_slice_that_does_not_fit_the_model_or_the_job_is_refused() -> None:
    task, last = potluck.Task(small_net(), small_data()), NET.layout.layer_count - 1
    ordered, random = (
        RoundsSetup.from_job(make_job(kind, steady_devices()), task, None).server
        for kind in (ORDERED, {**ORDERED, "units": "random"})
    )

    def segment(kept: tuple[int, ...], sized: tuple[int, ...], first: int = 0, last: int = last) -> ReceivedSegment:
        params, buffers = NET.narrow_layout(sized).layer_slices(first, last)
        sizes = (params.stop - params.start, buffers.stop - buffers.start)
        return ReceivedSegment(first, last, Payload(0, tuple(np.zeros(size, np.float32) for size in sizes)), kept)

    assert ordered.update_refusal([segment((3, 8), (3, 8))], None) is None
    assert ordered.update_refusal([segment((), (8, 8))], None) is None
    for kept in ((3,), (3, 8, 1), (0, 8), (9, 8), (3, 2**53)):
        assert "channel sets" in str(ordered.update_refusal([segment(kept, (3, 8))], None))
    assert "values" in str(ordered.update_refusal([segment((3, 7), (3, 8))], None))
    halves = [segment((3, 8), (3, 8), 0, 0), segment((2, 8), (2, 8), 1, last)]
    assert "only a part" in str(ordered.update_refusal(halves, None))
    assert "only a part" in str(random.update_refusal([segment((3, 8), (3, 8))], None))
