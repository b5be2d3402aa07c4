"""A live run and a simulated run of the same job end with the same weights, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.journal import Span, read_journal
from tests.live.running import SMALL, check_books, differing, run_live

ROUNDS = 6
UNCUT = ("sync-sgd", "fedavg")  # others cut transfers as the links seem to be, and every segment has a head


@pytest.mark.parametrize("recipe", ["sync-sgd", "fedavg", "dynacomm", "duplex", "heterofl", "decoupled"])
def test_four_processes_do_what_the_simulated_devices_do(tmp_path: Path, recipe: str) -> None:
    job: dict[str, Any] = {"recipe": recipe, "checkpoint": 0, "stop": {"rounds": ROUNDS}}
    live = run_live(tmp_path / "live", **job)
    check_books(tmp_path / "live", live, ROUNDS)
    simulated = potluck.simulate({**SMALL, **job}, folder=tmp_path / "simulated")
    assert differing(tmp_path / "live", tmp_path / "simulated") == []
    for key in ("rounds", "updates", "samples", "accuracy", "loss", *(["bytes"] if recipe in UNCUT else [])):
        assert live.summary[key] == simulated.summary[key], key


def test_devices_need_not_have_what_a_run_starts_from(tmp_path: Path) -> None:
    """The coordinator reads it; they are sent the numbers, and told which classes are alike to that network."""
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
    assert differing(tmp_path / "live", tmp_path / "simulated") == []
    assert live.summary["loss"] == simulated.summary["loss"]


@pytest.mark.parametrize("transfer", ["layer-by-layer", "optimal"])
def test_segments_that_travel_while_layers_compute_change_no_bit(tmp_path: Path, transfer: str) -> None:
    """A convolutional network, its pull and push cut in two and more, behind hooks of a real forward and backward."""
    job: dict[str, Any] = {
        "recipe": "sync-sgd",
        "task": {"model": "lenet", "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": 96, "test": 10}},
        "rounds": {"transfer": transfer, "batching": {"size": 8}},
        "fleet": {"devices": [{"name": "d", "count": 4, "flops": "500 MFLOP/s"}], "lease": 5.0},
        "checkpoint": 0,
    }
    run_live(tmp_path / "live", act_out=True, **job)
    potluck.simulate({**SMALL, **job}, folder=tmp_path / "simulated")
    assert differing(tmp_path / "live", tmp_path / "simulated") == []
    assert _overlaps(tmp_path / "live/journal.jsonl", "pull"), "no layer was computed while another was pulled"
    assert _overlaps(tmp_path / "live/journal.jsonl", "push"), "no gradient was pushed while another was computed"


def _overlaps(journal: Path, name: str) -> bool:
    """Whether a transfer of this name went on while the same device computed."""
    spans = [record for record in read_journal(journal) if isinstance(record, Span)]
    compute_spans = [(span.node, span.fields["round"], span) for span in spans if span.name == "compute"]
    transfer_spans = [(span.node, span.fields["round"], span) for span in spans if span.name == name]
    return any(
        max(move.start, work.start) < min(move.end, work.end)
        for *whose, move in transfer_spans
        for *same, work in compute_spans
        if whose == same
    )
