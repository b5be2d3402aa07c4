"""Compares Potluck with its peers: `python -m benchmarks.peers NAME [--quick]`, from the root of the checkout."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.benchmark_figures import Figure
from benchmarks.benchmark_report import BenchmarkReport, figures_table
from benchmarks.machine_info import describe_machine
from benchmarks.peers import potluck_simulation
from benchmarks.peers.peer_catalogue import COMPARISONS
from benchmarks.peers.peer_comparison import Comparison, comparison_figures, measure_case
from benchmarks.simulation.simulation_workload import MODELS

_RESULTS = Path(__file__).resolve().parents[1] / "results"


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse_options(argv)
    os.environ["OMP_NUM_THREADS"] = "1"  # in every process of every side, since each side uses all cores by itself
    report = compare(COMPARISONS[options.name], options.quick, options.repeats)
    print(figures_table(report))
    for path in report.write_files(options.out):
        print(f"written: {path}")


def compare(comparison: Comparison, quick: bool, repeats: int | None) -> BenchmarkReport:
    """Measure every case, alternating between the sides."""
    machine = describe_machine()
    figures: list[Figure] = []
    pieces: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for network in MODELS:
            potluck_simulation.export_workload(network, Path(name) / f"{network}.pt")
        for case in comparison.cases(quick, Path(name)):
            turns = measure_case(case, repeats or (1 if quick else comparison.repeats), _print_progress)
            figures += comparison_figures(case, turns)
            pieces[case.title] = turns
    return BenchmarkReport(_document(comparison, quick, machine, figures, pieces), figures, ())


def _document(
    comparison: Comparison, quick: bool, machine: dict[str, Any], figures: Sequence[Figure], pieces: Mapping[str, Any]
) -> dict[str, Any]:
    """The result file, as `potluck bench` writes it, with the package versions of every side."""
    answers = [answer for turns in pieces.values() for turn in turns for answer in turn.values()]
    versions = {
        f"{package} ({answer['name']})": version
        for answer in answers
        for package, version in answer["versions"].items()
    }
    flag = "--quick" if quick else "--full"
    return {
        "name": f"peers-{comparison.name}",
        "summary": comparison.summary,
        "mode": "quick" if quick else "full",
        "command": f"python -m benchmarks.peers {comparison.name} {flag}",
        "seed": 0,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "machine": {**machine, "load_at_end": describe_machine()["load"]},
        "notes": [*comparison.notes, f"Versions: {_list_versions(answers)}."],
        "figures": [figure.as_table() for figure in figures],
        "pieces": pieces,
    }


def _list_versions(answers: Sequence[Mapping[str, Any]]) -> str:
    packages = {package: version for answer in answers for package, version in answer["versions"].items()}
    return ", ".join(f"{package} {version}" for package, version in sorted(packages.items()))


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("name", choices=COMPARISONS, metavar="NAME", help=", ".join(COMPARISONS))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a smaller workload, not meant for quoting")
    size.add_argument("--full", action="store_true", help="the workload that the docs quote (default)")
    parser.add_argument("--repeats", type=int, help="number of measurements of each side")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder of the result file")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
