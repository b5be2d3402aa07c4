"""Every frozen job still gives the journal, the weights and the summary that were recorded, to the byte."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.frozen.jobs import NAMES, RECIPES, SAME
from tests.frozen.record import HASHES, Measured, environment, measure
from tests.frozen.runner import weights_hash

RECORDED: Measured = json.loads(HASHES.read_text())
OLD_RUNS = Path(__file__).parent / "runs_0_1"

if platform.machine() not in ("x86_64", "AMD64"):
    WHY = f"the frozen hashes are those of x86-64 processors; on {platform.machine()} nothing guards behaviour"
    warnings.warn(WHY, stacklevel=1)
    pytest.skip(WHY, allow_module_level=True)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """All jobs, run once in a process of their own."""
    return measure(tmp_path_factory.mktemp("frozen") / "runs")


def _potluck(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "potluck", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", sorted({*NAMES, *RECORDED["jobs"]}))
def test_nothing_moved(measured: Measured, name: str) -> None:
    if name not in RECORDED["jobs"]:
        pytest.fail(f"{name!r} has no recorded hashes; run `python -m tests.frozen.record`")
    if name not in measured["jobs"]:
        pytest.fail(f"{name!r} has recorded hashes but is no job any more; run `python -m tests.frozen.record`")
    recorded, found = RECORDED["jobs"][name], measured["jobs"][name]
    if "error" in found:
        pytest.fail(f"frozen job {name!r} does not run: {found['error']}")
    moved = [what for what in recorded if found.get(what) != recorded[what]]
    kept = [what for what in recorded if what not in moved]
    if moved:
        told = f"{', '.join(moved)} moved, {', '.join(kept) or 'nothing'} stayed"
        pytest.fail(f"frozen job {name!r}: {told}{_other_versions(measured)}")


def _other_versions(measured: Measured) -> str:
    """Which libraries are not those that the hashes were recorded with."""
    pairs = [(name, old, measured["versions"].get(name)) for name, old in RECORDED["versions"].items()]
    other = [f"{name} {new} instead of {old}" for name, old, new in pairs if new != old]
    return f" (with {', '.join(other)})" if other else ""


@pytest.mark.parametrize("name", SAME)
def test_a_resumed_run_ends_with_the_weights_of_one_that_was_never_stopped(measured: Measured, name: str) -> None:
    resumed, whole = measured["jobs"][name], measured["jobs"][SAME[name]]
    assert resumed.get("weights") == whole.get("weights"), f"{name!r} ends with other weights than {SAME[name]!r}"


def test_every_recipe_is_frozen() -> None:
    listed = _potluck("recipes").stdout.splitlines()
    names = {line.split()[0] for line in listed if line.strip() and not line.startswith(" ")}
    assert names == set(RECIPES)


@pytest.mark.parametrize("name", ["fedavg", "pipedream"])
def test_an_interrupted_run_of_0_1_is_resumed_or_refused_in_one_line(tmp_path: Path, name: str) -> None:
    """The weights expected are those of the job run by 0.1 without a break; they are never recorded again."""
    expected: dict[str, str] = json.loads((OLD_RUNS / "expected.json").read_text())
    shutil.copytree(OLD_RUNS / name, tmp_path / name)
    ended = _potluck("resume", str(tmp_path / name), "--quiet")
    if ended.returncode == 2:
        assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
        return
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / name / "summary.json").read_text())["status"] == "done"
    assert weights_hash(tmp_path / name) == expected[name], f"the resumed {name} run ends with other weights"
