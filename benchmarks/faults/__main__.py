"""Measures one scenario in this process and prints its figures: `python -m benchmarks.faults NAME [--full]`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from benchmarks.faults.command_process import end_with_parent
from benchmarks.faults.fault_scenario import find_scenario, find_scenarios
from benchmarks.faults.scenario_process import measure_scenario, scenario_figures
from potluck.errors import PotluckError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("name", nargs="?", help="without it, the scenarios are listed")
    parser.add_argument("--quick", action="store_true", help="a small size (default)")
    parser.add_argument("--full", action="store_true", help="the size that the docs quote")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, help="write the result to this file")
    parser.add_argument("--parent", type=int, help="end when this process, which has started this one, ends")
    arguments = parser.parse_args()
    if arguments.name is None:
        for name, scenario in find_scenarios().items():
            print(f"{name:<24} {scenario.title} ({scenario.executed})")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that contexts end their processes
    if arguments.parent is not None:
        end_with_parent(signal.SIGTERM)
        if os.getppid() != arguments.parent:
            return
    try:
        result = measure_scenario(find_scenario(arguments.name), not arguments.full, arguments.seed)
    except PotluckError as error:
        sys.exit(f"error: {error}")
    if arguments.result is not None:
        arguments.result.write_text(json.dumps(result))
        return
    for figure in scenario_figures(result):
        met = {None: "-", True: "met", False: "MISSED"}[figure.meets_goal]
        print(f"{figure.name}: {figure.measured_text}   goal {figure.goal_text or '-'}   {met}")
        if figure.note:
            print(f"      {figure.note}")
    print(f"seconds {result.get('seconds')}, load {result.get('load')}, commit {result['commit']}")


if __name__ == "__main__":
    main()
