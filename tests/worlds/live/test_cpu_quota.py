"""The fraction of the processor that a process may use, from control groups of either version and the affinity."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.worlds.live.cpu_quota import CpuQuota

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _first_version(folder: str, quota_us: int) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota_us}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


def _share(tmp_path: Path, cgroup: str, files: dict[str, str], threads: int = 1) -> float:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CpuQuota(threads, tmp_path / "groups", tmp_path / "self").allowed_fraction()


@pytest.mark.parametrize(
    ("cgroup", "files", "fraction"),
    [
        ("0::/user/potluck", {"user/potluck/cpu.max": "25000 100000\n"}, 0.25),
        ("0::/user/potluck", {"user/potluck/cpu.max": "max 100000\n", "user/cpu.max": "40000 100000\n"}, 0.4),
        ("0::/", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/", {"cpu.max": "900000 100000\n"}, 1.0),
        ("0::/a", {}, 1.0),
        ("0::/a", {"a/cpu.max": "half of it\n"}, 1.0),
        ("3:cpu,cpuacct:/a", _first_version("cpu,cpuacct/a", 30000), 0.3),
        ("1:cpu:/a\n0::/", _first_version("cpu/a", 20000), 0.2),
        ("1:cpu:/a", _first_version("cpu/a", -1), 1.0),
        ("1:cpuset:/a", _first_version("cpuset/a", 20000), 1.0),
        ("nonsense", {}, 1.0),
    ],
    ids=[
        "version 2", "the group above", "a container's root", "more than there is", "no limit file", "not a number",
        "version 1", "both versions", "version 1 without limit", "another controller", "not a list of groups",
    ],
)  # fmt: skip
def test_quota_of_control_groups(tmp_path: Path, cgroup: str, files: dict[str, str], fraction: float) -> None:
    assert _share(tmp_path, cgroup, files) == fraction


def test_a_quota_is_shared_by_the_threads(tmp_path: Path) -> None:
    assert _share(tmp_path, "0::/", {"cpu.max": "100000 100000"}, threads=4) == min(0.25, CORES / 4)


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert CpuQuota(1, tmp_path, tmp_path).allowed_fraction() == 1.0
    assert CpuQuota(4 * CORES, tmp_path, tmp_path).allowed_fraction() == 0.25


@contextlib.contextmanager
def _limited(quota_us: int) -> Iterator[Path]:
    """A real v1 control group with that quota per tenth of a second."""
    group = Path("/sys/fs/cgroup/cpu") / f"potluck-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def test_a_process_sees_a_real_limit() -> None:
    script = "from potluck.worlds.live.cpu_quota import CpuQuota; input(); print(CpuQuota(1).allowed_fraction())"
    with _limited(35_000) as members:
        process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        members.write_text(str(process.pid))
        printed, _ = process.communicate(b"\n", 60)
    assert float(printed) == 0.35
