"""Compare Potluck with its peers: `python benchmarks/peers/run.py NAME [--quick]`; run it with Potluck's own Python."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import potluck_simulation
from catalogue import COMPARISONS
from comparison import Comparison, figures, measure

from benchmarks.benchmark_figures import Figure
from benchmarks.benchmark_report import BenchmarkReport, figures_table
from benchmarks.machine_info import describe_machine
from benchmarks.simulation.simulation_workload import MODELS

_RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


def main(argv: Sequence[str] | None = None) -> None:
    asked = _asked(argv)
    os.environ["OMP_NUM_THREADS"] = "1"  # every process of every side: the sides spread over cores by themselves
    report = compare(COMPARISONS[asked.name], asked.quick, asked.repeats)
    print(figures_table(report))
    for place in report.write_files(asked.out):
        print(f"written: {place}")


def compare(comparison: Comparison, quick: bool, repeats: int | None) -> BenchmarkReport:
    """Measure every case, the sides taking turns."""
    began = describe_machine()
    found: list[Figure] = []
    pieces: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for network in MODELS:
            potluck_simulation.export(network, Path(name) / f"{network}.pt")
        for case in comparison.cases(quick, Path(name)):
            turns = measure(case, repeats or (1 if quick else comparison.repeats), _progress)
            found += figures(case, turns)
            pieces[case.title] = turns
    return BenchmarkReport(_document(comparison, quick, began, found, pieces), found, ())


def _document(
    comparison: Comparison, quick: bool, began: dict[str, Any], found: Sequence[Figure], pieces: Mapping[str, Any]
) -> dict[str, Any]:
    """As `potluck bench` writes it, with the versions of every side."""
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
        "command": f"python benchmarks/peers/run.py {comparison.name} {flag}",
        "seed": 0,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "machine": {**began, "load_at_end": describe_machine()["load"]},
        "notes": [*comparison.notes, f"Versions: {_written(answers)}."],
        "figures": [figure.as_table() for figure in found],
        "pieces": pieces,
    }


def _written(answers: Sequence[Mapping[str, Any]]) -> str:
    packages = {package: version for answer in answers for package, version in answer["versions"].items()}
    return ", ".join(f"{package} {version}" for package, version in sorted(packages.items()))


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _asked(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=COMPARISONS, metavar="NAME", help=", ".join(COMPARISONS))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a smaller workload, not to be quoted")
    size.add_argument("--full", action="store_true", help="what the documents quote (the default)")
    parser.add_argument("--repeats", type=int, help="how often each side is measured")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="where the results go")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
