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
    assignment = assign_groups(["a", "b", "c"], 2, {"b": [1, 0, 1]}, "table")
    assert assignment == {"a": (0,), "b": (0, 1), "c": (1,)}


@pytest.mark.parametrize(
    ("configured", "message"),
    [({"z": [0]}, "held.z: the fleet has no device"), ({"a": []}, "held.a: give"), ({"a": [2]}, "no group 2")],
)
def test_an_invalid_entry_is_named(configured: dict[str, list[int]], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        assign_groups(["a"], 2, configured, "table")


@pytest.mark.parametrize(("devices", "groups", "each"), [(5, 5, 2), (2, 4, 2), (3, 4, 2), (10, 10, 3), (7, 3, 2)])
def test_several_groups_per_device_train_every_group(devices: int, groups: int, each: int) -> None:
    names = [f"device-{index}" for index in range(devices)]
    assignment = assign_groups(names, groups, {}, "table", each)
    assert all(len(own) == each for own in assignment.values())
    assert {group for own in assignment.values() for group in own} == set(range(groups))


def test_too_few_groups_per_device_are_refused() -> None:
    with pytest.raises(SettingError, match=r"table.each: 1 on each of 2 devices leave some of 4 groups untrained"):
        assign_groups(["a", "b"], 4, {}, "table", 1)
    with pytest.raises(SettingError, match=r"table.each: there are 2 groups"):
        assign_groups(["a", "b"], 2, {}, "table", 3)
