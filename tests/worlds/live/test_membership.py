"""Membership as a state machine: events in any order give a consistent sequence of notices."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.loops.messages import Joined, Lost
from potluck.worlds.live.membership import (
    ConnectionBroken,
    DeviceAdmitted,
    DeviceHeard,
    DeviceLeft,
    DeviceReady,
    Event,
    LeaseTick,
    MembershipRules,
    MembershipState,
    ProtocolViolated,
    apply_event,
    check_join_deferral,
)

RULES = MembershipRules(lease=2.0, max_losses=3, loss_window_s=60.0, first_quarantine_s=10.0, longest_quarantine_s=50.0)

_names = st.sampled_from(["a", "b"])
_lives = st.integers(1, 4)
_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(DeviceAdmitted, _names, st.sampled_from(["x", "y"])),
    st.builds(DeviceReady, _names, _lives),
    st.builds(DeviceHeard, _names, _lives),
    st.builds(ConnectionBroken, _names, _lives),
    st.builds(DeviceLeft, _names, _lives, st.just("bye"), st.booleans()),
    st.builds(ProtocolViolated, _names, _lives, st.just("rubbish")),
    st.just(LeaseTick()),
)


def _story(*events: tuple[float, Event], rules: MembershipRules = RULES) -> tuple[MembershipState, list[Joined | Lost]]:
    state, all_notices = MembershipState(), list[Joined | Lost]()
    for now, event in events:
        state, notices = apply_event(now, state, event, rules)
        all_notices += notices
    return state, all_notices


def _short(notices: list[Joined | Lost]) -> list[tuple[str, str, int]]:
    return [(type(notice).__name__, notice.device, notice.incarnation) for notice in notices]


@given(st.lists(st.tuples(st.floats(0, 1.5), _events), max_size=60))
def test_every_incarnation_joins_once_and_is_lost_once_and_numbers_increase(steps: list[tuple[float, Event]]) -> None:
    now, state = 0.0, MembershipState()
    members: dict[str, int] = {}
    highest: dict[str, int] = {}
    for pause, event in steps:
        now += pause
        before = state
        state, notices = apply_event(now, state, event, RULES)
        assert state.epoch == before.epoch + len(notices)
        for notice in notices:
            if isinstance(notice, Joined):
                assert notice.device not in members
                assert notice.incarnation > highest.get(notice.device, 0)
                members[notice.device] = highest[notice.device] = notice.incarnation
            else:
                assert members.pop(notice.device) == notice.incarnation
        assert state.ready_devices() == members


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1.5), _events), max_size=30), _names)
def test_events_of_another_incarnation_change_nothing(steps: list[tuple[float, Event]], name: str) -> None:
    now, state = 0.0, MembershipState()
    for pause, event in steps:
        now += pause
        state, _ = apply_event(now, state, event, RULES)
    past = state.incarnation_of(name) - 1
    for kind in (DeviceReady, DeviceHeard, ConnectionBroken):
        assert apply_event(now, state, kind(name, past), RULES) == (state, [])


@given(st.floats(0.0, 100.0), st.integers(1, 40))
def test_a_device_with_timely_heartbeats_is_never_lost(start: float, count: int) -> None:
    events: list[tuple[float, Event]] = [(start, DeviceAdmitted("a", "x")), (start, DeviceReady("a", 1))]
    for number in range(1, count):
        moment = start + number * 0.9
        events += [(moment, DeviceHeard("a", 1)), (moment + 0.1, LeaseTick()), (moment + 0.5, LeaseTick())]
    assert _short(_story(*events)[1]) == [("Joined", "a", 1)]


def test_a_device_silent_for_longer_than_the_lease_is_lost() -> None:
    ticks: list[tuple[float, Event]] = [(0.5 * tick, LeaseTick()) for tick in range(1, 5)]
    state, notices = _story((0.0, DeviceAdmitted("a", "x")), (0.0, DeviceReady("a", 1)), *ticks)
    assert _short(notices) == [("Joined", "a", 1)]
    assert _short(apply_event(2.5, state, LeaseTick(), RULES)[1]) == [("Lost", "a", 1)]


def test_no_device_is_lost_while_the_coordinator_was_stalled() -> None:
    """The coordinator was frozen for a minute: heartbeats of that minute were sent, but not received."""
    state, _ = _story(
        (0.0, DeviceAdmitted("a", "x")), (0.0, DeviceReady("a", 1)), (0.5, LeaseTick()), (1.0, LeaseTick())
    )
    state, notices = apply_event(61.0, state, LeaseTick(), RULES)
    assert notices == []
    state, notices = apply_event(61.9, state, LeaseTick(), RULES)
    assert notices == []
    assert _short(apply_event(62.8, state, LeaseTick(), RULES)[1]) == [("Lost", "a", 1)]


def test_a_device_that_never_gets_ready_is_removed_without_a_notice() -> None:
    ticks: list[tuple[float, Event]] = [(0.5 * tick, LeaseTick()) for tick in range(1, 10)]
    state, notices = _story((0.0, DeviceAdmitted("a", "x")), *ticks)
    assert (state.members, notices) == ({}, [])


def test_a_rejoining_device_is_lost_first_and_then_joins() -> None:
    _, notices = _story(
        (0.0, DeviceAdmitted("a", "x")),
        (0.0, DeviceReady("a", 1)),
        (1.0, DeviceAdmitted("a", "x")),
        (1.1, DeviceReady("a", 2)),
    )
    assert _short(notices) == [("Joined", "a", 1), ("Lost", "a", 1), ("Joined", "a", 2)]


def test_a_name_is_taken_while_its_device_is_connected() -> None:
    state, _ = _story((0.0, DeviceAdmitted("a", "x")), (0.0, DeviceReady("a", 1)))
    assert check_join_deferral(1.0, state, "a", "x", RULES) is None, "the same process lost the coordinator and rejoins"
    turned = check_join_deferral(1.0, state, "a", "y", RULES)
    assert turned is not None
    assert "another device called a is connected" in turned.reason
    assert check_join_deferral(2.5, state, "a", "y", RULES) is None


def _lost_again_and_again(times: int, start: float = 0.0) -> list[tuple[float, Event]]:
    events: list[tuple[float, Event]] = []
    for incarnation in range(1, times + 1):
        events += [
            (start + incarnation, DeviceAdmitted("a", "x")),
            (start + incarnation, DeviceReady("a", incarnation)),
        ]
        events += [(start + incarnation + 0.5, ConnectionBroken("a", incarnation))]
    return events


def test_a_device_lost_repeatedly_is_quarantined_with_backoff() -> None:
    state, _ = _story(*_lost_again_and_again(2))
    assert check_join_deferral(3.0, state, "a", "x", RULES) is None
    state, _ = _story(*_lost_again_and_again(3))
    first = check_join_deferral(4.0, state, "a", "x", RULES)
    assert first is not None
    assert first.retry_s == 9.5
    assert check_join_deferral(13.6, state, "a", "x", RULES) is None
    state, _ = _story(*_lost_again_and_again(6))
    second = check_join_deferral(6.5, state, "a", "x", RULES)
    assert second is not None
    assert second.retry_s == 20.0


def test_a_device_that_left_may_rejoin_immediately() -> None:
    events: list[tuple[float, Event]] = []
    for incarnation in range(1, 10):
        events += [
            (incarnation, DeviceAdmitted("a", "x")),
            (incarnation, DeviceReady("a", incarnation)),
            (incarnation + 0.5, DeviceLeft("a", incarnation, "bye")),
        ]
    assert check_join_deferral(10.0, _story(*events)[0], "a", "x", RULES) is None


def test_a_device_that_keeps_failing_is_quarantined() -> None:
    """It sends a leave notice each time, but an error ends every incarnation."""
    events: list[tuple[float, Event]] = []
    for incarnation in range(1, RULES.max_losses + 1):
        failed = DeviceLeft("a", incarnation, "failed: IndexError", failed=True)
        events += [
            (incarnation, DeviceAdmitted("a", "x")),
            (incarnation, DeviceReady("a", incarnation)),
            (incarnation + 0.5, failed),
        ]
    assert check_join_deferral(4.0, _story(*events[:-1])[0], "b", "x", RULES) is None
    state, notices = _story(*events)
    assert _short(notices)[-1] == ("Lost", "a", RULES.max_losses)
    turned = check_join_deferral(4.0, state, "a", "x", RULES)
    assert turned is not None
    assert "lost too often" in turned.reason


def test_failures_before_ready_count_too() -> None:
    events: list[tuple[float, Event]] = []
    for incarnation in range(1, RULES.max_losses + 1):
        events += [
            (incarnation, DeviceAdmitted("a", "x")),
            (incarnation + 0.5, DeviceLeft("a", incarnation, "failed: DataError", failed=True)),
        ]
    assert check_join_deferral(4.0, _story(*events)[0], "a", "x", RULES) is not None


def test_a_device_is_quarantined_after_a_few_invalid_messages() -> None:
    invalid: list[tuple[float, Event]] = [(1.0, ProtocolViolated("a", 1, "noise"))] * 3
    state, notices = _story((0.0, DeviceAdmitted("a", "x")), (0.0, DeviceReady("a", 1)), *invalid[:2])
    assert _short(notices) == [("Joined", "a", 1)]
    state, notices = apply_event(1.0, state, invalid[2][1], RULES)
    assert _short(notices) == [("Lost", "a", 1)]
    assert "noise" in str(notices)
    assert check_join_deferral(2.0, state, "a", "x", RULES) is not None
