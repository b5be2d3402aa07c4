"""Settings for all tests: no deadline for a single example, and retries for tests that go by the real clock.

A test marked `wall_clock` asserts how long something took (or how often something that is timed happened), and can fail
because another process had the processor; it has to pass once in three tries. Tests of real processes (`tests/live`)
depend on leases and timeouts of the real clock, and have a second try. The summary names every test that was retried,
with its first failure. Nothing else is ever retried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported, so it is set before any test

settings.register_profile("potluck", deadline=None)
settings.load_profile("potluck")


LIVE_TESTS = Path(__file__).parent / "live"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("wall_clock"):
            item.add_marker(pytest.mark.flaky(reruns=2))
        elif LIVE_TESTS in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A retried test is never passed over in silence: it may have found a race."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_line(f"RETRIED {report.nodeid}")
        terminalreporter.write_line(f"{report.longrepr}")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for torch, so that sums do not depend on how they are divided among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
