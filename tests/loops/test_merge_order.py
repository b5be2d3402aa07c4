from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.merge_order import MergeOrder


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, int]]]:
    """Turns in the announced order; each arrives, is skipped or stays away, in any order."""
    turns = draw(st.lists(st.integers(0, 50), unique=True, max_size=12))
    actions = [(draw(st.sampled_from(["put", "put", "skip", "nothing"])), turn) for turn in turns]
    random.Random(draw(st.integers(0, 999))).shuffle(actions)
    return turns, actions


def _play(merge_order: MergeOrder[int], actions: list[tuple[str, int]]) -> None:
    for action, turn in actions:
        if action == "put":
            merge_order.add_update(turn, turn)
        elif action == "skip":
            merge_order.skip_turn(turn)


@given(case=arrivals())
def test_any_order_of_arrival_gives_the_announced_order(case: tuple[list[int], list[tuple[str, int]]]) -> None:
    turns, actions = case
    merged: list[int] = []
    merge_order = MergeOrder(merged.append)
    for turn in turns:
        merge_order.expect_turn(turn)
    _play(merge_order, actions)
    arrived = {turn for action, turn in actions if action == "put"}
    missing = {turn for action, turn in actions if action == "nothing"}
    merged_count = next((index for index, turn in enumerate(turns) if turn in missing), len(turns))
    assert merged == [turn for turn in turns[:merged_count] if turn in arrived], "nobody waits longer than he must"
    merge_order.merge_remaining()
    assert merged == [turn for turn in turns if turn in arrived]


@given(cases=st.lists(arrivals(), min_size=2, max_size=4))
def test_the_order_is_used_round_after_round(cases: list[tuple[list[int], list[tuple[str, int]]]]) -> None:
    merged: list[int] = []
    merge_order = MergeOrder(merged.append)
    expected: list[int] = []
    for number, (turns, actions) in enumerate(cases):
        for turn in turns:
            merge_order.expect_turn(100 * number + turn)
        _play(merge_order, [(action, 100 * number + turn) for action, turn in actions])
        merge_order.merge_remaining()
        arrived = {turn for action, turn in actions if action == "put"}
        expected += [100 * number + turn for turn in turns if turn in arrived]
        assert merged == expected


def test_an_update_that_was_never_announced_is_merged_at_once() -> None:
    merged: list[str] = []
    merge_order = MergeOrder(merged.append)
    merge_order.expect_turn(1)
    merge_order.add_update(7, "stranger")
    merge_order.add_update(1, "guest")
    assert merged == ["stranger", "guest"]


def test_skipping_the_first_turn_lets_the_others_through() -> None:
    merged: list[str] = []
    merge_order = MergeOrder(merged.append)
    for turn in (1, 2, 3):
        merge_order.expect_turn(turn)
    merge_order.add_update(3, "c")
    merge_order.add_update(2, "b")
    assert merged == []
    merge_order.skip_turn(1)
    assert merged == ["b", "c"]


def test_skipping_twice_or_an_unexpected_turn_changes_nothing() -> None:
    merged: list[str] = []
    merge_order = MergeOrder(merged.append)
    merge_order.expect_turn(1)
    merge_order.skip_turn(9)
    merge_order.skip_turn(9)
    merge_order.add_update(1, "a")
    merge_order.skip_turn(1)
    assert merged == ["a"]
