from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest

from tests.cli.calling import JOB, Shell


def test_a_run_prints_a_summary_and_keeps_its_folder(potluck: Shell, folder: Path) -> None:
    result = potluck("run", "job.toml")
    assert result.code == 0
    assert result.out.startswith("done: 3 rounds\n3 rounds in ")
    (run_folder,) = (folder / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-fedavg-[0-9a-f]{4}", run_folder.name)
    assert result.out.endswith(f"kept in runs/{run_folder.name}\n")
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["limit"] in result.out
    for device in ("pi4-0", "pi4-1"):
        assert re.search(rf"^{device} .* {summary['devices'][device]['updates']} ", result.out, re.MULTILINE)


def test_json_is_one_object_and_nothing_else(potluck: Shell, folder: Path) -> None:
    result = potluck("run", ".", "--json", "--out", "kept")
    assert result.err == ""
    assert result.json["status"] == "done"
    assert result.json["folder"] == "kept"
    assert result.json == {**json.loads((folder / "kept/summary.json").read_text()), "folder": "kept"}


def test_quiet_prints_the_outcome_and_the_run_folder(potluck: Shell, folder: Path) -> None:
    result = potluck("run", "job.toml", "--quiet", "--out", "kept")
    assert result == (0, "done: 3 rounds\nkept in kept\n", "")


def test_settings_seed_and_timing_only_reach_the_run(potluck: Shell, folder: Path) -> None:
    result = potluck("run", "job.toml", "--json", "--set", "stop.rounds=2", "--seed", "5", "--timing-only")
    assert (result.json["rounds"], result.json["seed"], result.json["accuracy"]) == (2, 5, None)


def test_the_number_of_threads_does_not_change_the_result(potluck: Shell, folder: Path) -> None:
    runs = [potluck("run", "job.toml", "--json", "--threads", threads, "--out", f"r{threads}").json for threads in "02"]
    for run in runs:
        del run["wall_s"], run["folder"]
    assert runs[0] == runs[1]
    assert (folder / "r0/journal.jsonl").read_bytes() == (folder / "r2/journal.jsonl").read_bytes()


def test_the_exit_code_reflects_the_outcome(potluck: Shell, folder: Path) -> None:
    result = potluck("run", "job.toml", "--set", "fleet.faults=[{kind='crash', at='1 ms'}]")
    assert result.code == 1
    assert result.out.startswith("failed: no progress for 30 min")


def test_a_run_can_be_resumed_and_extended(potluck: Shell, folder: Path) -> None:
    potluck("run", "job.toml", "-q", "--out", "short")
    resumed = potluck("resume", "short", "--set", "stop.rounds=6", "--json")
    uninterrupted = potluck("run", "job.toml", "--set", "stop.rounds=6", "--json", "--out", "whole")
    assert (resumed.code, resumed.json["rounds"]) == (0, 6)
    assert resumed.json["loss"] == uninterrupted.json["loss"]
    assert resumed.json["devices"] == uninterrupted.json["devices"]


def test_user_code_is_imported_from_the_current_folder(
    potluck: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    inputs = math.prod(potluck("data", "info", "synthetic", "--json").json["shape"])
    net = f"nn.Sequential(nn.Flatten(), nn.Linear({inputs}, 10))"
    (folder / "own_net_of_test.py").write_text(f"from torch import nn\ndef net():\n    return {net}\n")
    (folder / "job.toml").write_text(JOB.replace('"mlp"', '"own_net_of_test:net"').replace("options", "#"))
    assert potluck("run", "job.toml", "-q").code == 0


@pytest.mark.parametrize("path", ["nothing-here", "."])
def test_a_folder_that_is_not_a_run_cannot_be_resumed(potluck: Shell, folder: Path, path: str) -> None:
    result = potluck("resume", path)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
