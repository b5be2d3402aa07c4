"""Who is here, in order of name, each in its newest life."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.device_roster import DeviceRoster


def test_a_device_that_came_back_is_not_struck_by_the_news_of_its_old_death() -> None:
    roll = DeviceRoster()
    roll.add_device("pi", 1)
    roll.add_device("pi", 2)
    assert not roll.remove_device("pi", 1)
    assert roll.incarnation_of("pi") == 2
    assert roll.remove_device("pi", 2)
    assert "pi" not in roll
    assert roll.incarnation_of("pi") is None
    assert not roll.remove_device("pi", 2)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde"), st.integers(1, 3))))
def test_it_is_a_sorted_view_of_the_newest_lives(events: list[tuple[bool, str, int]]) -> None:
    roll, lives = DeviceRoster(), dict[str, int]()
    for enters, device, incarnation in events:
        if enters:
            roll.add_device(device, incarnation)
            lives[device] = incarnation
        else:
            assert roll.remove_device(device, incarnation) == (lives.get(device) == incarnation)
            lives = {name: life for name, life in lives.items() if (name, life) != (device, incarnation)}
        assert list(roll) == sorted(lives)
        assert len(roll) == len(lives)
        assert {name: roll.incarnation_of(name) for name in roll} == lives
