"""An admitted device that lies in every number it sends costs the others nothing: not the run, nor its accuracy."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path
from typing import Any

import potluck
from benchmarks.faults.lying_node import take_part_lying
from potluck.journal import Span, read_journal
from potluck.report import render_report
from potluck.worlds.live.handshake_messages import JoinRequest
from tests.live.live_scenarios import LEASE, SMALL, RunControl, check_committed_rounds, run_live
from tests.simulation.runs import instants

ROUNDS = 40
LIAR, HONEST = "d-3", {"d-0", "d-1", "d-2"}
JOB: dict[str, Any] = {
    "task": {"model": "mlp", "data": "digits", "options": {"hidden": [32]}},
    "fleet": {"devices": [{"name": "d", "count": 4, "flops": "20 MFLOP/s"}], "lease": LEASE},
    "rounds": {"least": 4, "patience": "90 s", "batching": {"kind": "fixed", "size": 16}},
    "stop": {"rounds": ROUNDS},
    "evaluate": 5,
}


def test_lies_change_neither_the_outcome_nor_the_accuracy(tmp_path: Path) -> None:
    honest = potluck.simulate({**SMALL, **JOB}, folder=tmp_path / "honest")
    told: Counter[str] = Counter()
    lying: list[asyncio.Future[str]] = []

    async def scenario(control: RunControl) -> None:
        control.kill(LIAR)
        request = JoinRequest(name=LIAR, token=control.token())
        lying.append(asyncio.ensure_future(take_part_lying(control.endpoint, request, control.job, told)))
        while len(told) < 4:
            await asyncio.sleep(0.02)

    result = run_live(tmp_path / "run", scenario, **JOB)
    check_committed_rounds(tmp_path / "run", result, ROUNDS)
    assert min(told.values()) >= 1, told
    lost = [instant for instant in instants(tmp_path / "run", "lost") if "invalid messages" in instant.fields["reason"]]
    assert {instant.node for instant in lost} == {LIAR}, "it was expelled for its records"
    for name in ("lost", "refused", "clipped", "late", "records refused"):
        assert not [instant for instant in instants(tmp_path / "run", name) if instant.node in HONEST], name
    assert instants(tmp_path / "run", "clipped")
    assert any("1000000 samples" in instant.fields["reason"] for instant in instants(tmp_path / "run", "refused"))
    assert result.summary["accuracy"] > honest.summary["accuracy"] - 0.04
    assert all(math.isfinite(record.end) for record in read_journal(tmp_path / "run" / "journal.jsonl")
               if isinstance(record, Span))  # fmt: skip
    assert "<html" in render_report([tmp_path / "run"])
