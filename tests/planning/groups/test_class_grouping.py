from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import SettingError
from potluck.planning.groups import assign_groups, assign_round_robin

Sizes = st.integers(1, 30)


@given(Sizes, Sizes)
def test_every_group_is_assigned_and_every_device_has_one(devices: int, groups: int) -> None:
    assignment = assign_round_robin(devices, groups)
    assert len(assignment) == devices
    assert all(assignment)
    assert {group for groups_of_device in assignment for group in groups_of_device} == set(range(groups))
    assert max(map(len, assignment)) - min(map(len, assignment)) <= 1


def test_configured_groups_are_kept_and_other_devices_are_assigned_round_robin() -> None:
    assignment = assign_groups(["a", "b", "c"], 2, {"b": [1, 0, 1]}, "held")
    assert assignment == {"a": (0,), "b": (0, 1), "c": (1,)}


@pytest.mark.parametrize(
    ("configured", "message"),
    [({"z": [0]}, "held.z: the fleet has no device"), ({"a": []}, "held.a: give"), ({"a": [2]}, "no group 2")],
)
def test_an_invalid_entry_is_named(configured: dict[str, list[int]], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        assign_groups(["a"], 2, configured, "held")
