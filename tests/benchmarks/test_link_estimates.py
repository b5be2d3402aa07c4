"""How the benchmark of estimates on kernel-shaped links reads a journal."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.peers.link_estimates import read_estimates, summarize

TRUE_RATE = 2.5e6  # 20 Mbit/s


def test_the_rounds_until_a_drop_is_followed_are_counted() -> None:
    estimates = {index: [(TRUE_RATE, 1.1 * TRUE_RATE)] * 2 for index in range(6)}
    estimates |= {6: [(TRUE_RATE, TRUE_RATE)] * 2, 7: [(TRUE_RATE / 10, TRUE_RATE)] * 2}
    estimates |= {index: [(TRUE_RATE / 10, TRUE_RATE / 9)] * 2 for index in (8, 9)}
    ends = [0.0, 1, 2, 3, 4, 5, 15, 25, 35, 45]
    figures = summarize(ends, estimates, "20mbit", drop_after=6)
    assert figures["iteration_s"] == 1.0
    assert figures["slow_iteration_s"] == 10.0
    assert figures["estimated_to_true"] == {"down": [1.0, 1.0, 1.0], "up": [1.1, 1.1, 1.1]}
    assert figures["rounds_to_follow"] == 3


def test_a_drop_that_is_never_followed_is_reported() -> None:
    estimates = {index: [(TRUE_RATE, TRUE_RATE)] for index in range(10)}
    assert summarize([float(i) for i in range(10)], estimates, "20mbit", drop_after=5)["rounds_to_follow"] is None


def test_estimates_are_read_from_the_journal(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    record = {
        "kind": "scalar",
        "node": "a",
        "name": "bandwidth",
        "at": 1.0,
        "value": 5.0,
        "fields": {"round": 3, "up": 4.0},
    }
    other = {"kind": "scalar", "node": "coordinator", "name": "loss", "at": 1.0, "value": 5.0, "fields": {}}
    (tmp_path / "run" / "journal.jsonl").write_text(f"{json.dumps(record)}\n{json.dumps(other)}\n")
    assert read_estimates(tmp_path) == {3: [(5.0, 4.0)]}
