"""The roster knows the newest incarnations; a run without new progress fails, whatever else happens meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from potluck.loops.leader import DeviceRoster, StallTimeout

# --- roster -----------------------------------------------------------------------------------------------------------


def test_a_device_that_returned_is_not_removed_by_the_loss_of_its_earlier_incarnation() -> None:
    roster = DeviceRoster()
    roster.add_device("pi", 1)
    roster.add_device("pi", 2)
    assert not roster.remove_device("pi", 1)
    assert roster.incarnation_of("pi") == 2
    assert roster.remove_device("pi", 2)
    assert "pi" not in roster
    assert roster.incarnation_of("pi") is None
    assert not roster.remove_device("pi", 2)


def test_a_device_has_departed_until_it_returns() -> None:
    roster = DeviceRoster()
    for device in ("pi", "laptop"):
        roster.add_device(device, 1)
        roster.remove_device(device, 1)
    assert roster.departed == ["pi", "laptop"]
    roster.add_device("pi", 2)
    assert roster.departed == ["laptop"]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde"), st.integers(1, 3))))
def test_the_roster_is_a_sorted_view_of_the_newest_incarnations(events: list[tuple[bool, str, int]]) -> None:
    roster, expected = DeviceRoster(), dict[str, int]()
    for joined, device, incarnation in events:
        if joined:
            roster.add_device(device, incarnation)
            expected[device] = incarnation
        else:
            assert roster.remove_device(device, incarnation) == (expected.get(device) == incarnation)
            expected = {name: number for name, number in expected.items() if (name, number) != (device, incarnation)}
        assert list(roster) == sorted(expected)
        assert len(roster) == len(expected)
        assert {name: roster.incarnation_of(name) for name in roster} == expected


# --- stall timeout ----------------------------------------------------------------------------------------------------


def _timeout() -> StallTimeout:
    timeout = StallTimeout(10.0)
    timeout.restart_timer(0.0)
    return timeout


def test_progress_restarts_the_timeout() -> None:
    timeout = _timeout()
    for batch, now in ((1, 5.0), (2, 12.0), (3, 20.0)):
        timeout.record_batch(batch, now)
        assert timeout.expires_at == now + 10.0


def test_a_device_that_returns_forever_does_not_keep_a_run_alive() -> None:
    timeout = _timeout()
    for now in range(9):
        timeout.extend_once("pi", float(now))
    assert timeout.expires_at == 10.0
    timeout.extend_once("laptop", 4.0)
    assert timeout.expires_at == 14.0


def test_a_batch_that_is_lost_and_computed_again_forever_does_not_either() -> None:
    timeout = _timeout()
    timeout.record_batch(1, 1.0)
    for now in range(2, 9):
        timeout.record_batch(1, float(now))
    assert timeout.expires_at == 12.0, "computed again, it counts once"


def test_batches_computed_again_after_a_rollback_each_count_once() -> None:
    timeout = _timeout()
    for batch in range(1, 6):
        timeout.record_batch(batch, 1.0)
    for batch in range(1, 6):
        timeout.record_batch(batch, 1.0 + 8 * batch)
        assert timeout.expires_at == 11.0 + 8 * batch
    timeout.record_batch(6, 45.0)
    timeout.record_batch(6, 46.0)
    assert timeout.expires_at == 56.0
