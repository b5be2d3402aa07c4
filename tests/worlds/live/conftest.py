"""The conformance of the live world in real time takes more than a minute; what takes longest runs with -m long."""

from __future__ import annotations

import pytest

LONG = {
    "test_a_cut_link_carries_nothing_and_the_device_lives_on",
    "test_a_cut_that_begins_within_another_does_not_end_it",
    "test_a_reborn_device_has_forgotten_its_mail",
    "test_a_short_cut_is_not_noticed_and_a_long_one_is",
    "test_after_a_crash_nothing_comes_until_the_next_life",
    "test_chance_depends_on_seed_name_and_branch_alone",
    "test_everyone_who_is_here_is_announced",
    "test_a_message_that_is_here_is_given_even_if_the_time_is_over",
    "test_messages_of_a_kind_arrive_in_the_order_in_which_they_were_sent",
    "test_pieces_of_work_are_done_one_at_a_time_in_order",
    "test_waiting_for_a_message_ends_when_it_is_told_to",
    "test_what_a_function_raises_is_raised_here",
    "test_what_is_recorded_is_in_the_journal",
    "test_work_gives_back_what_its_function_returns",
    "test_messages_get_lost_while_the_script_says_so",
    "test_messages_wait_for_whoever_is_busy",
    "test_the_same_seed_loses_the_same_messages",
    "test_two_short_cuts_are_not_a_long_one",
    "test_what_is_sent_to_the_dead_is_not_for_the_reborn",
    "test_who_comes_back_is_a_new_one",
    "test_who_restarts_at_once_is_lost_first_and_then_a_new_one",
    "test_who_comes_later_is_announced_then",
    "test_who_leaves_is_gone",
    "test_who_restarts_behind_a_cut_is_a_new_one_once_it_is_back",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.parent is not None and item.parent.name == "TestLive" and item.name in LONG:
        item.add_marker(pytest.mark.long)
