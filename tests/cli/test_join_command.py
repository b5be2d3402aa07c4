"""The number of threads a joined device computes with."""

from __future__ import annotations

import os

import pytest

from potluck.run.joined_device import JoinOptions


@pytest.mark.parametrize(
    ("option", "environment", "expected"),
    [
        (0, None, os.cpu_count()),
        (0, "3", 3),
        (0, "3,2", 3),
        (2, "3", 2),
        (0, "", os.cpu_count()),
        (0, "0", os.cpu_count()),
    ],
)
def test_the_threads_option_overrides_the_environment(
    option: int, environment: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if environment is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    assert JoinOptions(threads=option).thread_count == expected
