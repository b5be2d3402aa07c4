"""Settings for all tests: no deadline for a single example, and retries for tests that measure wall-clock time.

A test marked `wall_clock` asserts how long something took (or how often something that is timed happened), and can fail
because another process had the processor; it has to pass once in three tries, and the summary says how many were
retried. Nothing else is ever retried.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("potluck", deadline=None)
settings.load_profile("potluck")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("wall_clock"):
            item.add_marker(pytest.mark.flaky(reruns=2))
