"""The comparison with peers, without the peers: everyone computes the same, and ratios point the right way."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.simulation.client_throughput import clients_of
from benchmarks.simulation.simulation_workload import MODELS, peers_job

_PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"

Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """The peers' scripts are no package; they find each other by their folder."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(_PEERS))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (_PEERS / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.parametrize("network", MODELS)
def test_the_peers_network_is_ours(load: Load, network: str, tmp_path: Path) -> None:
    workload = load("workload")
    load("potluck_simulation").export(network, tmp_path / "work.pt")
    theirs = workload.load(tmp_path / "work.pt")
    ours, clients, lr = clients_of(peers_job(network, 1, 0))
    inputs, targets = theirs.clients[7]
    assert theirs.lr == lr
    assert torch.equal(inputs, clients[7][0])
    assert torch.equal(targets, clients[7][1])
    assert torch.equal(theirs.model().eval()(inputs), ours.eval()(inputs))


def test_the_bare_loop_computes_what_potluck_computes(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    ours = load("potluck_simulation")
    ours.export("mlp", tmp_path / "work.pt")
    ours.run("mlp", 1)
    load("bare_loop").main(str(tmp_path / "work.pt"), 1)
    mine, bare = (json.loads(line)["figures"] for line in capsys.readouterr().out.splitlines())
    assert mine["moved"] > 1
    assert mine["moved"] == pytest.approx(bare["moved"], rel=1e-4)


@pytest.mark.parametrize(("more_is_better", "expected"), [(True, 2.0), (False, 0.5)])
def test_a_ratio_above_one_is_in_our_favour(load: Load, more_is_better: bool, expected: float) -> None:
    comparison = load("comparison")
    ours, peer = (comparison.Side(name, "none", ["nothing.py"]) for name in ("ours", "peer"))
    case = comparison.Case("case", ours, [peer], "value", "", more_is_better)
    turns = [{"ours": {"figures": {"value": 8.0}}, "peer": {"figures": {"value": 4.0}}}]
    first, *values = comparison.figures(case, turns)
    assert first.measured == expected
    assert [figure.measured for figure in values] == [8.0, 4.0]


def test_sides_take_turns_and_must_agree(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = load("comparison")
    asked: list[str] = []
    moved = {"ours": 1.0, "peer": 1.0}

    def ask(side: Any) -> dict[str, Any]:
        asked.append(side.name)
        return {"figures": {"value": 1.0, "moved": moved[side.name]}}

    monkeypatch.setattr(comparison, "ask", ask)
    ours, peer = (comparison.Side(name, "none", ["nothing.py"]) for name in moved)
    case = comparison.Case("case", ours, [peer], "value", "", True, same="moved")
    assert len(comparison.measure(case, 2, lambda line: None)) == 2
    assert asked == ["ours", "peer", "peer", "ours"]
    moved["peer"] = 1.1
    with pytest.raises(SystemExit, match="not computed the same"):
        comparison.measure(case, 1, lambda line: None)


def test_everything_that_is_compared_exists_and_is_pinned(load: Load, tmp_path: Path) -> None:
    environments = load("environments")
    for comparison in load("catalogue").COMPARISONS.values():
        for quick in (True, False):
            for case in comparison.cases(quick, tmp_path):
                for side in (case.ours, *case.peers):
                    assert (_PEERS / side.command[0]).is_file()
                    assert bool(side.remark) != (side is case.ours)
                    if side.environment != environments.OURS:
                        _assert_pinned(side.environment)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("name", "ours_at", "theirs_at"), [("live", 2, 2), ("simulation", 3, 2), ("ddp", 2, 4)])
def test_all_sides_do_the_same_number_of_rounds(
    load: Load, tmp_path: Path, name: str, ours_at: int, theirs_at: int, quick: bool
) -> None:
    for case in load("catalogue").COMPARISONS[name].cases(quick, tmp_path):
        ours, theirs = case.ours.command[ours_at], [peer.command[theirs_at] for peer in case.peers]
        assert ours.isdigit()
        assert theirs == [ours] * len(theirs)


def _assert_pinned(environment: str) -> None:
    for kind in ("txt", "constraints.txt"):
        lines = (_PEERS / "requirements" / f"{environment}.{kind}").read_text().splitlines()
        wanted = [line for line in lines if not line.startswith("#")]
        assert wanted
        assert all(re.fullmatch(r"[\w.\-]+(\[\w+\])?==[\w.]+", line) for line in wanted), environment


def test_a_line_that_is_still_being_written_is_no_round(load: Load, tmp_path: Path) -> None:
    verbs = load("verbs")
    assert verbs.rounds(tmp_path) == []
    line = '{"kind":"span","node":"coordinator","name":"round","start":0.0,"end":%s,"fields":{"devices":[["a",0]]}}'
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").write_text(f"{line % 1.5}\n{line % 2.5}")
    assert verbs.rounds(tmp_path) == [(1.5, 1)]


def test_without_root_links_say_what_is_missing(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    links = load("links")
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in links.problem()
    monkeypatch.setattr("shutil.which", lambda tool: None)
    assert "iproute2" in links.problem()


def test_a_crowd_leaves_nobody_behind(load: Load, tmp_path: Path) -> None:
    crowd = load("crowd")
    with crowd.Crowd(tmp_path, {}) as people:
        # A child that is deaf to SIGTERM, with a child of its own.
        people.start("deaf", ["sh", "-c", "trap '' TERM; sleep 60 & echo $!; wait"])
        crowd.wait_for(lambda: people.log("deaf").strip().isdigit(), "the child", 10.0)
        grandchild = int(people.log("deaf"))
        os.kill(grandchild, 0)
        crowd.PATIENCE_S = 0.2
    crowd.wait_for(lambda: not _lives(grandchild), "the end of the grandchild", 10.0)


def _lives(pid: int) -> bool:
    """A zombie that its new parent has yet to bury does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
