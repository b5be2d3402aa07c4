"""Marks the slowest conformance tests of the live world as `long`: in real time they take more than a minute."""

from __future__ import annotations

import pytest

LONG = {
    "test_a_cut_link_carries_nothing_and_the_device_keeps_running",
    "test_a_partition_within_another_does_not_end_it",
    "test_a_restarted_device_has_an_empty_inbox",
    "test_a_short_partition_is_not_noticed_and_a_long_one_is",
    "test_after_a_crash_nothing_arrives_until_the_next_incarnation",
    "test_random_numbers_depend_only_on_seed_name_and_branch",
    "test_every_connected_device_is_announced",
    "test_a_waiting_message_is_returned_even_after_the_deadline",
    "test_messages_of_a_kind_arrive_in_order",
    "test_works_run_one_at_a_time_in_order",
    "test_receive_returns_at_its_deadline",
    "test_an_exception_of_the_function_is_raised",
    "test_records_are_in_the_journal",
    "test_work_returns_the_result_of_its_function",
    "test_messages_are_lost_while_the_script_says_so",
    "test_messages_wait_while_a_device_is_busy",
    "test_the_same_seed_loses_the_same_messages",
    "test_two_short_partitions_are_not_a_long_one",
    "test_messages_to_a_dead_incarnation_do_not_reach_the_next",
    "test_a_returning_device_has_a_new_incarnation",
    "test_a_device_that_restarts_immediately_is_lost_first_and_then_joins",
    "test_a_device_that_joins_later_is_announced_then",
    "test_a_device_that_leaves_is_lost",
    "test_a_device_that_restarts_during_a_partition_joins_when_it_ends",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.parent is not None and item.parent.name == "TestLive" and item.name in LONG:
        item.add_marker(pytest.mark.long)
