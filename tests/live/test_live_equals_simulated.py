"""A live run and a simulated run of the same job end with the same weights, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.journal import Span, read_journal
from tests.live.live_scenarios import SMALL, check_committed_rounds, differing_tensors, run_live

ROUNDS = 6
UNCUT = ("sync-sgd", "fedavg")  # other kinds cut transfers by measured link speeds, and every segment has a header


@pytest.mark.parametrize("recipe", ["sync-sgd", "fedavg", "dynacomm", "duplex", "heterofl", "decoupled"])
def test_four_processes_compute_the_same_weights_as_simulated_devices(tmp_path: Path, recipe: str) -> None:
    job: dict[str, Any] = {"recipe": recipe, "checkpoint": 0, "stop": {"rounds": ROUNDS}}
    live = run_live(tmp_path / "live", **job)
    check_committed_rounds(tmp_path / "live", live, ROUNDS)
    simulated = potluck.simulate({**SMALL, **job}, folder=tmp_path / "simulated")
    assert differing_tensors(tmp_path / "live", tmp_path / "simulated") == []
    for key in ("rounds", "updates", "samples", "accuracy", "loss", *(["bytes"] if recipe in UNCUT else [])):
        assert live.summary[key] == simulated.summary[key], key


@pytest.mark.parametrize("pull_codec", [{"kind": "top-k", "ratio": 0.05}, {"kind": "power-sgd", "rank": 1}], ids=str)
def test_compressed_pulls_are_the_same_in_both_worlds(tmp_path: Path, pull_codec: dict[str, Any]) -> None:
    rounds = {"pull_codec": pull_codec}
    job: dict[str, Any] = {"recipe": "sync-sgd", "rounds": rounds, "checkpoint": 0, "stop": {"rounds": ROUNDS}}
    live = run_live(tmp_path / "live", **job)
    check_committed_rounds(tmp_path / "live", live, ROUNDS)
    simulated = potluck.simulate({**SMALL, **job}, folder=tmp_path / "simulated")
    differing = differing_tensors(tmp_path / "live", tmp_path / "simulated")
    assert differing == [f"held/{ROUNDS}"], "only what devices hold, which live ones keep themselves"
    assert live.summary["bytes"] == simulated.summary["bytes"]


def test_devices_do_not_need_the_initial_weights_file(tmp_path: Path) -> None:
    """The coordinator reads it and sends them the weights and the groups of similar classes."""
    potluck.simulate(SMALL, folder=tmp_path / "before")
    job: dict[str, Any] = {
        "recipe": "decoupled",
        "start": str(tmp_path / "before"),
        "split": "class-groups",
        "rounds": {"submodel": {"groups": 4, "alike": True, "trunk": "frozen"}},
        "checkpoint": 0,
    }
    live = run_live(tmp_path / "live", **job)
    assert live.status == "done", live.reason
    simulated = potluck.simulate({**SMALL, **job}, folder=tmp_path / "simulated")
    assert differing_tensors(tmp_path / "live", tmp_path / "simulated") == []
    assert live.summary["loss"] == simulated.summary["loss"]


@pytest.mark.parametrize("transfer", ["layer-by-layer", "optimal"])
def test_overlapping_transfers_with_computation_does_not_change_the_weights(tmp_path: Path, transfer: str) -> None:
    """A convolutional network; pull and push are cut into segments, with hooks in the real forward and backward."""
    job: dict[str, Any] = {
        "recipe": "sync-sgd",
        "task": {"model": "lenet", "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": 96, "test": 10}},
        "rounds": {"transfer": transfer, "batching": {"size": 8}},
        "fleet": {"devices": [{"name": "d", "count": 4, "flops": "500 MFLOP/s"}], "lease": 5.0},
        "checkpoint": 0,
    }
    run_live(tmp_path / "live", emulate_fleet=True, **job)
    potluck.simulate({**SMALL, **job}, folder=tmp_path / "simulated")
    assert differing_tensors(tmp_path / "live", tmp_path / "simulated") == []
    assert _overlaps(tmp_path / "live/journal.jsonl", "pull"), "no layer was computed while another was pulled"
    assert _overlaps(tmp_path / "live/journal.jsonl", "push"), "no gradient was pushed while another was computed"


def _overlaps(journal: Path, name: str) -> bool:
    """Whether a transfer of this name overlapped with computation on the same device."""
    spans = [record for record in read_journal(journal) if isinstance(record, Span)]
    compute_spans = [(span.node, span.fields["round"], span) for span in spans if span.name == "compute"]
    transfer_spans = [(span.node, span.fields["round"], span) for span in spans if span.name == name]
    return any(
        max(move.start, work.start) < min(move.end, work.end)
        for *whose, move in transfer_spans
        for *same, work in compute_spans
        if whose == same
    )
