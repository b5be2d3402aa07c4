"""Repeated events are logged once a minute and subject, with a count."""

from __future__ import annotations

from potluck.worlds.live.repeated_log import RepeatedLog


class _Clock:
    now = 100.0


def _recording_log() -> tuple[RepeatedLog, list[str], _Clock]:
    lines: list[str] = []
    clock = _Clock()
    return RepeatedLog(lambda text, *values: lines.append(text % values), lambda: clock.now), lines, clock


def test_the_first_event_is_logged_at_once_and_the_rest_counted() -> None:
    log, lines, clock = _recording_log()
    for _ in range(200_000):
        log.add("pi", "pi sent an invalid message")
    assert lines == ["pi sent an invalid message"]
    clock.now += 60
    log.flush()
    assert lines[1:] == ["pi sent an invalid message (199,999 times)"]


def test_subjects_are_counted_separately() -> None:
    log, lines, _ = _recording_log()
    log.add("pi", "pi: no")
    log.add("jetson", "jetson: no", 3)
    assert lines == ["pi: no", "jetson: no (3 times)"]


def test_what_is_not_logged_yet_is_logged_at_the_end() -> None:
    log, lines, _ = _recording_log()
    log.add("pi", "no")
    log.add("pi", "no", 2)
    log.flush(at_once=True)
    log.flush(at_once=True)
    assert lines == ["no", "no (2 times)"]


def test_many_subjects_do_not_fill_the_memory() -> None:
    log, lines, _ = _recording_log()
    for number in range(10_000):
        log.add(f"device {number}", "no")
    assert len(lines) == 10_000
    assert len(log._subjects) <= 256


def test_control_characters_are_escaped() -> None:
    log, lines, _ = _recording_log()
    log.add("pi", "pi\x1b[2J said\nno")
    assert lines == ["pi\\x1b[2J said\\nno"]
