"""Compares Potluck with its peers: `python -m benchmarks.peers NAME [--quick]`, from the root of the checkout.

`all` measures every comparison. An interrupted run continues where it stopped, piece by piece; `--fresh` starts again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.benchmark import BenchmarkContext
from benchmarks.benchmark_progress import choose_progress
from benchmarks.benchmark_report import figures_table
from benchmarks.benchmark_runner import run_benchmark
from benchmarks.peers.peer_catalogue import COMPARISONS
from benchmarks.peers.peer_comparison import comparison_benchmark

_RESULTS = Path(__file__).resolve().parents[1] / "results"


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse_options(argv)
    context = BenchmarkContext(options.quick)
    for name in COMPARISONS if options.name == "all" else [options.name]:
        benchmark = comparison_benchmark(COMPARISONS[name])
        report = run_benchmark(benchmark, context, options.out, choose_progress(sys.stderr), not options.fresh)
        print(figures_table(report))
        for path in report.write_files(options.out):
            print(f"written: {path}")


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    names = (*COMPARISONS, "all")
    parser.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a smaller workload, not meant for quoting")
    size.add_argument("--full", action="store_true", help="the workload that the docs quote (default)")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder of the result file")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
