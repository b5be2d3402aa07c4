"""What all tests share: no deadline for a single example, and another try where the machine's own hiccups count.

A test marked `wall_clock` asserts how long something took (or how often something that is timed happened), and can fail
because somebody else had the processor; it has to hold once in three tries, and the summary says how many were tried
again. Nothing else is ever tried again.
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
