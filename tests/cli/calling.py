"""Runs the command line as a shell would, in this process or in a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from potluck.cli import main

ROOT = Path(__file__).parents[2]
POTLUCK = (sys.executable, "-c", "from potluck.cli import main; main()")

JOB = """
recipe = "fedavg"
fleet = "fleet.toml"
[task]
model = "mlp"
data = "synthetic"
options = {hidden = [8]}
[stop]
rounds = 3
"""
FLEET = """
[[devices]]
preset = "pi4"
count = 2
"""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON object printed on stdout."""
        return json.loads(self.out)


class Shell:
    """Runs commands and captures their output."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *argv: str | Path) -> Outcome:
        self._capture.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in argv])
        printed = self._capture.readouterr()
        code = stopped.value.code
        assert isinstance(code, int)
        return Outcome(code, printed.out, printed.err)


def start(arguments: Sequence[str | Path], folder: Path, path: Path | None = None) -> subprocess.Popen[str]:
    """Start the command in a subprocess; `path` is an additional import folder."""
    search = os.pathsep.join(filter(None, [str(path or ""), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [*POTLUCK, *map(str, arguments)],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search},
    )  # fmt: skip
