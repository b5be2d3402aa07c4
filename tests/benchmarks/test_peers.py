"""The peer comparison without the peers: all sides compute the same, and ratios point in the right direction."""

from __future__ import annotations

import json
import os
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.benchmark import BenchmarkContext
from benchmarks.benchmark_progress import PlainProgress
from benchmarks.benchmark_runner import run_benchmark
from benchmarks.peers import bare_loop, peer_comparison, peer_workload, potluck_simulation, process_group
from benchmarks.peers.peer_catalogue import COMPARISONS
from benchmarks.peers.peer_comparison import Case, Comparison, Side, comparison_benchmark, comparison_figures
from benchmarks.peers.peer_environments import OURS
from benchmarks.peers.potluck_commands import read_rounds
from benchmarks.shaped_network import missing_requirement
from benchmarks.simulation.client_throughput import clients_of
from benchmarks.simulation.simulation_workload import MODELS, peers_job
from tests.benchmarks.made_up_results import full_figures

_PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.mark.parametrize("network", MODELS)
def test_the_peers_network_is_ours(network: str, tmp_path: Path) -> None:
    potluck_simulation.export_workload(network, tmp_path / "work.pt")
    theirs = peer_workload.load_workload(tmp_path / "work.pt")
    ours, clients, lr = clients_of(peers_job(network, 1, 0))
    inputs, targets = theirs.clients[7]
    assert theirs.lr == lr
    assert torch.equal(inputs, clients[7][0])
    assert torch.equal(targets, clients[7][1])
    assert torch.equal(theirs.model().eval()(inputs), ours.eval()(inputs))


def test_the_bare_loop_computes_what_potluck_computes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    potluck_simulation.export_workload("mlp", tmp_path / "work.pt")
    potluck_simulation.run("mlp", 1)
    bare_loop.main(str(tmp_path / "work.pt"), 1)
    ours, bare = (json.loads(line)["figures"] for line in capsys.readouterr().out.splitlines())
    assert ours["moved"] > 1
    assert ours["moved"] == pytest.approx(bare["moved"], rel=1e-4)


@pytest.mark.parametrize(("more_is_better", "expected"), [(True, 2.0), (False, 0.5)])
def test_a_ratio_above_one_is_in_our_favour(more_is_better: bool, expected: float) -> None:
    ours, peer = (Side(name, "none", ["nothing.py"]) for name in ("ours", "peer"))
    case = Case("case", ours, [peer], "value", "", more_is_better)
    turns = [{"ours": {"figures": {"value": 8.0}}, "peer": {"figures": {"value": 4.0}}}]
    first, *values = comparison_figures(case, turns, "live")
    assert first.measured == expected
    assert [figure.measured for figure in values] == [8.0, 4.0]


def _comparison(same: str = "moved") -> Comparison:
    ours, peer = (Side(name, OURS, ["nothing"]) for name in ("ours", "peer"))
    case = Case("case", ours, [peer], "value", "s", False, same=same)
    return Comparison("own", "a comparison", lambda quick, folder: [case], 2, "live")


def test_sides_alternate_must_agree_and_resume_piece_by_piece(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []
    moved = {"ours": 1.0, "peer": 1.0}

    def answer(side: Any) -> dict[str, Any]:
        if len(calls) == 3:
            calls.append("stopped")
            raise KeyboardInterrupt
        calls.append(side.name)
        return {"figures": {"value": 1.0 + len(calls), "moved": moved[side.name]}, "versions": {"torch": "2"}}

    monkeypatch.setattr(peer_comparison, "run_side", answer)
    benchmark = comparison_benchmark(_comparison())
    full = BenchmarkContext(quick=False)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(benchmark, full, tmp_path, PlainProgress(StringIO()))
    report = run_benchmark(benchmark, full, tmp_path, PlainProgress(StringIO()))
    assert calls == ["ours", "peer", "peer", "stopped", "ours"]
    assert report.document["command"] == "python -m benchmarks.peers own --full"
    assert report.document["measurements"]["case/0/ours"]["load"]["own_processor_s"] >= 0
    assert [figure.name for figure in report.figures] == ["case: advantage over peer", "case: ours", "case: peer"]
    assert report.charts[0].groups == ["ours", "peer"]
    moved["peer"] = 1.1
    with pytest.raises(SystemExit, match="did not compute the same"):
        run_benchmark(benchmark, BenchmarkContext(quick=True), tmp_path, PlainProgress(StringIO()))


def test_duplex_is_among_ours_and_the_fastest_launcher_among_flowers() -> None:
    ddp = COMPARISONS["ddp"].cases(False, Path())
    assert [case.title for case in ddp] == ["iteration, sync-sgd", "iteration, dynacomm", "iteration, duplex"]
    assert [peer.name for peer in COMPARISONS["live"].cases(False, Path())[0].peers][1] == "Flower, fastest launcher"


@pytest.mark.parametrize("name", COMPARISONS)
def test_losing_to_a_peer_is_a_missed_goal(name: str) -> None:
    """In the made-up results all sides are equal."""
    figures = full_figures(comparison_benchmark(COMPARISONS[name]))
    advantages = {title: figure for title, figure in figures.items() if "advantage over" in title}
    assert advantages
    assert {figure.goal_text for figure in advantages.values()} == {"≥ 10 x" if name == "live" else "≥ 1 x"}
    assert all(figure.goal is None for title, figure in figures.items() if title not in advantages)


def test_every_compared_package_exists_and_is_pinned(tmp_path: Path) -> None:
    for comparison in COMPARISONS.values():
        for quick in (True, False):
            for case in comparison.cases(quick, tmp_path):
                for side in (case.ours, *case.peers):
                    assert (_PEERS / f"{side.command[0]}.py").is_file()
                    assert bool(side.remark) != (side is case.ours)
                    if side.environment != OURS:
                        _assert_pinned(side.environment)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("name", "ours_at", "theirs_at"), [("live", 2, 2), ("simulation", 3, 2), ("ddp", 2, 4)])
def test_all_sides_do_the_same_number_of_rounds(
    tmp_path: Path, name: str, ours_at: int, theirs_at: int, quick: bool
) -> None:
    for case in COMPARISONS[name].cases(quick, tmp_path):
        ours, theirs = case.ours.command[ours_at], [peer.command[theirs_at] for peer in case.peers]
        assert ours.isdigit()
        assert theirs == [ours] * len(theirs)


def _assert_pinned(environment: str) -> None:
    for kind in ("txt", "constraints.txt"):
        lines = (_PEERS / "requirements" / f"{environment}.{kind}").read_text().splitlines()
        requirements = [line for line in lines if not line.startswith("#")]
        assert requirements
        assert all(re.fullmatch(r"[\w.\-]+(\[\w+\])?==[\w.]+", line) for line in requirements), environment


def test_an_incomplete_line_does_not_count_as_a_round(tmp_path: Path) -> None:
    assert read_rounds(tmp_path) == []
    line = '{"kind":"span","node":"coordinator","name":"round","start":0.0,"end":%s,"fields":{"devices":[["a",0]]}}'
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").write_text(f"{line % 1.5}\n{line % 2.5}")
    assert read_rounds(tmp_path) == [(1.5, 1)]


def test_without_root_links_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in (missing_requirement() or "")
    monkeypatch.setattr("shutil.which", lambda tool: None)
    assert "iproute2" in (missing_requirement() or "")


def test_a_process_group_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with process_group.ProcessGroup(tmp_path, {}) as group:
        # A child that ignores SIGTERM and has a child itself.
        group.start("stubborn", ["sh", "-c", "trap '' TERM; sleep 60 & echo $!; wait"])
        process_group.wait_for(lambda: group.read_log("stubborn").strip().isdigit(), "the child", 10.0)
        grandchild = int(group.read_log("stubborn"))
        os.kill(grandchild, 0)
        monkeypatch.setattr(process_group, "TERMINATION_S", 0.2)
    process_group.wait_for(lambda: not _is_running(grandchild), "the exit of the grandchild", 10.0)


def _is_running(pid: int) -> bool:
    """A zombie that init has yet to reap does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
