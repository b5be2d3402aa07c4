from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.merge_order import MergeOrder


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, int]]]:
    """Turns in the announced order; each arrives, is skipped or stays away, in any order."""
    places = draw(st.lists(st.integers(0, 50), unique=True, max_size=12))
    fates = [(draw(st.sampled_from(["put", "put", "skip", "nothing"])), place) for place in places]
    random.Random(draw(st.integers(0, 999))).shuffle(fates)
    return places, fates


def _play(lineup: MergeOrder[int], fates: list[tuple[str, int]]) -> None:
    for fate, place in fates:
        if fate == "put":
            lineup.add_update(place, place)
        elif fate == "skip":
            lineup.skip_turn(place)


@given(story=arrivals())
def test_any_order_of_arrival_gives_the_announced_order(story: tuple[list[int], list[tuple[str, int]]]) -> None:
    places, fates = story
    merged: list[int] = []
    lineup = MergeOrder(merged.append)
    for place in places:
        lineup.expect_turn(place)
    _play(lineup, fates)
    came = {place for fate, place in fates if fate == "put"}
    missing = {place for fate, place in fates if fate == "nothing"}
    upto = next((index for index, place in enumerate(places) if place in missing), len(places))
    assert merged == [place for place in places[:upto] if place in came], "nobody waits longer than he must"
    lineup.merge_remaining()
    assert merged == [place for place in places if place in came]


@given(stories=st.lists(arrivals(), min_size=2, max_size=4))
def test_the_order_is_used_round_after_round(stories: list[tuple[list[int], list[tuple[str, int]]]]) -> None:
    merged: list[int] = []
    lineup = MergeOrder(merged.append)
    expected: list[int] = []
    for number, (places, fates) in enumerate(stories):
        for place in places:
            lineup.expect_turn(100 * number + place)
        _play(lineup, [(fate, 100 * number + place) for fate, place in fates])
        lineup.merge_remaining()
        came = {place for fate, place in fates if fate == "put"}
        expected += [100 * number + place for place in places if place in came]
        assert merged == expected


def test_an_update_that_was_never_announced_is_merged_at_once() -> None:
    merged: list[str] = []
    lineup = MergeOrder(merged.append)
    lineup.expect_turn(1)
    lineup.add_update(7, "stranger")
    lineup.add_update(1, "guest")
    assert merged == ["stranger", "guest"]


def test_skipping_the_first_turn_lets_the_others_through() -> None:
    merged: list[str] = []
    lineup = MergeOrder(merged.append)
    for place in (1, 2, 3):
        lineup.expect_turn(place)
    lineup.add_update(3, "c")
    lineup.add_update(2, "b")
    assert merged == []
    lineup.skip_turn(1)
    assert merged == ["b", "c"]


def test_skipping_twice_or_an_unexpected_turn_changes_nothing() -> None:
    merged: list[str] = []
    lineup = MergeOrder(merged.append)
    lineup.expect_turn(1)
    lineup.skip_turn(9)
    lineup.skip_turn(9)
    lineup.add_update(1, "a")
    lineup.skip_turn(1)
    assert merged == ["a"]
