from __future__ import annotations

from potluck.report.device_absence import Absence, device_absences
from potluck.report.run_history import JournalEvent


def _gone(*events: tuple[float, str, float]) -> list[Absence]:
    return device_absences([JournalEvent(at, "a", name, {"value": value}) for at, name, value in events], 10.0).get(
        "a", []
    )


def test_a_crash_lasts_until_the_restart() -> None:
    assert _gone((2, "crash", 1), (2.1, "lost", 0), (5, "start", 0), (5, "joined", 0)) == [Absence(2, 5, "dead")]


def test_a_device_that_never_returns_is_dead_to_the_end() -> None:
    assert _gone((4, "leave", 1)) == [Absence(4, 10.0, "dead")]


def test_a_live_run_records_only_that_a_device_was_lost() -> None:
    assert _gone((3, "lost", 0), (6, "joined", 0)) == [Absence(3, 6, "dead")]


def test_a_broken_link_does_not_count_as_dead() -> None:
    assert _gone((3, "link", 0), (4, "lost", 0), (6, "link", 1), (6.5, "joined", 0)) == [Absence(3, 6, "cut")]


def test_a_device_that_joins_late_is_absent_before() -> None:
    assert _gone((4, "start", 0), (4, "joined", 0)) == [Absence(0.0, 4, "dead")]


def test_a_late_device_is_not_absent() -> None:
    assert _gone((4, "late", 0)) == []
