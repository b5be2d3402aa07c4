"""Pieces run in parallel worker processes, which exit with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece
from benchmarks.benchmark_figures import Figure
from benchmarks.benchmark_progress import PlainProgress
from benchmarks.benchmark_runner import measure_pieces, run_benchmark
from tests.cli.calling import ROOT


def count_threads(index: int) -> dict[str, int]:
    return {"index": index, "threads": torch.get_num_threads()}


def broken() -> dict[str, int]:
    raise ValueError("measurement failed")


def _pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    parallel = [BenchmarkPiece(f"p{index}", {}, partial(count_threads, index), parallel=True) for index in range(3)]
    return [parallel[0], BenchmarkPiece("alone", {}, partial(count_threads, 7)), *parallel[1:]]


def test_parallel_pieces_use_one_thread_and_are_stored(tmp_path: Path) -> None:
    benchmark = Benchmark("pairs", "", _pieces, lambda results: [_figure(results["p2"]["threads"])])
    lines = StringIO()
    result = run_benchmark(benchmark, BenchmarkContext(quick=True), tmp_path, PlainProgress(lines))
    assert result.figures[0].measured == 1
    printed = lines.getvalue().splitlines()
    assert printed[0].startswith("[1/4] pairs: 3 pieces")
    assert printed[-2].startswith("[4/4] pairs: alone"), "pieces that are not parallel come last"
    output = StringIO()
    resumed = run_benchmark(benchmark, BenchmarkContext(quick=True), tmp_path, PlainProgress(output), resume=True)
    assert resumed.figures == result.figures
    assert "pairs: " not in output.getvalue(), "finished pieces are not measured again"


def double(results: dict[str, dict[str, int]]) -> dict[str, int]:
    return {"sum": 2 * sum(result["index"] for result in results.values())}


def test_a_piece_is_given_the_results_that_it_needs(tmp_path: Path) -> None:
    def pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
        first = [BenchmarkPiece("double", {}, double, parallel=True, needs=("p1", "p2"))]
        return [*first, *(BenchmarkPiece(f"p{n}", {}, partial(count_threads, n), parallel=n > 1) for n in (1, 2))]

    benchmark = Benchmark("needy", "", pieces, lambda results: [_figure(results["double"]["sum"])])
    for resume in (False, True):
        report = run_benchmark(benchmark, BenchmarkContext(quick=True), tmp_path, PlainProgress(StringIO()), resume)
        assert report.figures[0].measured == 6


def _figure(threads: int) -> Figure:
    return Figure(name="threads", unit="", measured=threads, executed="measured")


def test_an_error_in_a_worker_is_raised() -> None:
    with pytest.raises(ValueError, match="measurement failed"):
        list(measure_pieces([BenchmarkPiece("broken", {}, broken, parallel=True)], lambda message: None))


def report_pid_and_sleep(folder: str, index: int) -> dict[str, int]:
    (Path(folder) / str(index)).write_text(str(os.getpid()))
    time.sleep(600)
    return {}


_SLEEPING_BENCHMARK = """
import signal
import sys
from functools import partial
from benchmarks.benchmark import BenchmarkPiece
from benchmarks.benchmark_runner import measure_pieces
from tests.benchmarks.test_benchmark_runner import report_pid_and_sleep

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background commands with it ignored
    pieces = [BenchmarkPiece(str(n), {}, partial(report_pid_and_sleep, sys.argv[1], n), parallel=True) for n in (0, 1)]
    list(measure_pieces(pieces, lambda activity: None, processes=2))
"""


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_benchmark_leaves_no_workers(tmp_path: Path, sign: signal.Signals) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "sleeping.py").write_text(_SLEEPING_BENCHMARK)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, str(tmp_path / "sleeping.py"), str(tmp_path / "pids")]
    parent = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        _wait_until(lambda: len(_pids(tmp_path / "pids")) == 2 or parent.poll() is not None, 120.0)
        assert parent.poll() is None
        workers = _pids(tmp_path / "pids")
        parent.send_signal(sign)
        parent.wait(30)
        _wait_until(lambda: not any(map(_is_running, workers)), 30.0)
    finally:
        parent.kill()
        parent.wait()


def _pids(folder: Path) -> list[int]:
    return [int(text) for path in folder.iterdir() if (text := path.read_text())]


def _is_running(pid: int) -> bool:
    """A zombie that init has yet to reap does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened within {seconds:g} s"
        time.sleep(0.05)
