from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import SettingError
from potluck.planning.groups import assign_groups, assign_round_robin

Sizes = st.integers(1, 30)


@given(Sizes, Sizes)
def test_no_group_is_left_out_and_no_device_goes_empty(devices: int, groups: int) -> None:
    held = assign_round_robin(devices, groups)
    assert len(held) == devices
    assert all(held)
    assert {group for own in held for group in own} == set(range(groups))
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_what_was_said_holds_and_the_others_are_dealt() -> None:
    found = assign_groups(["a", "b", "c"], 2, {"b": [1, 0, 1]}, "held")
    assert found == {"a": (0,), "b": (0, 1), "c": (1,)}


@pytest.mark.parametrize(
    ("said", "words"), [({"z": [0]}, "held.z: no device"), ({"a": []}, "held.a: give"), ({"a": [2]}, "no group 2")]
)
def test_what_cannot_be_is_named(said: dict[str, list[int]], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        assign_groups(["a"], 2, said, "held")
