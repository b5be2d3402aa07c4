from __future__ import annotations

import pytest

from potluck.worlds.live.start_condition import StartCondition

ALL = ("a", "b", "c")
RESUMED = StartCondition(devices=ALL, former=("a", "b"), least=1, settle_s=2.0)


@pytest.mark.parametrize(
    ("condition", "joined", "quiet_s", "starts"),
    [
        (StartCondition(devices=ALL), "abc", 0.0, True),
        (StartCondition(devices=ALL), "ab", 1e9, False),
        (RESUMED, "", 1e9, False),
        (RESUMED, "a", 1.9, False),
        (RESUMED, "a", 2.0, True),
        (RESUMED, "ac", 1.9, False),
        (RESUMED, "ab", 0.0, True),
        (RESUMED, "abc", 0.0, True),
        (StartCondition(devices=ALL, former=("a",), least=2, settle_s=2.0), "a", 1e9, False),
        (StartCondition(devices=ALL, least=1, settle_s=2.0), "a", 0.0, False),  # nobody was here before
    ],
)
def test_a_resumed_run_starts_with_enough_devices(
    condition: StartCondition, joined: str, quiet_s: float, starts: bool
) -> None:
    assert condition.is_met(set(joined), quiet_s) == starts
