"""A device's speed follows from its last steps and from its CPU limit."""

from __future__ import annotations

import pytest

from potluck.worlds.live.compute_speed import MeasuredSpeed


def _measured(natural: MeasuredSpeed, *seconds: float) -> float:
    """The speed after steps of nominally one second that took so long."""
    for spent in seconds:
        natural.throttled_duration_s(0.0, spent, 1.0)
    return natural.current_speed()


def test_the_speed_is_nominal_until_something_was_measured() -> None:
    assert MeasuredSpeed().current_speed() == 1.0
    assert MeasuredSpeed(0.25).current_speed() == 0.25


def test_the_speed_follows_the_last_few_steps() -> None:
    natural = MeasuredSpeed()
    assert _measured(natural, 1.0, 1.0) == 1.0
    assert _measured(natural, 4.0) < 0.5  # another process came
    assert _measured(natural, *[4.0] * 5) == pytest.approx(0.25, rel=0.02)
    assert _measured(natural, *[1.0] * 6) == pytest.approx(1.0, rel=0.05)
    assert _measured(natural, *[0.5] * 8) == pytest.approx(2.0, rel=0.01)  # faster than the fleet file says


def test_a_long_step_weighs_more_than_a_short_one() -> None:
    natural = MeasuredSpeed()
    natural.throttled_duration_s(0.0, 10.0, 5.0)
    natural.throttled_duration_s(0.0, 0.01, 0.01)
    assert natural.current_speed() == pytest.approx(0.5, rel=0.01)


def test_steps_without_a_cost_are_ignored() -> None:
    natural = MeasuredSpeed()
    natural.throttled_duration_s(0.0, 3.0, 0.0)
    assert natural.current_speed() == 1.0


def test_a_new_limit_takes_effect_immediately_and_only_once() -> None:
    allowed = [1.0]
    natural = MeasuredSpeed(cpu_fraction=lambda: allowed[0])
    assert _measured(natural, 1.0, 1.0) == 1.0
    allowed[0] = 0.25
    assert natural.current_speed() == 0.25
    assert _measured(natural, 4.0, 4.0) == 0.25  # as the limit makes it, not a quarter of a quarter
    allowed[0] = 1.0
    assert natural.current_speed() == 1.0


def test_a_throttled_device_takes_longer_and_reports_it() -> None:
    natural = MeasuredSpeed(0.5)
    assert natural.modelled_duration_s(0.0, 3.0) == 6.0
    assert natural.throttled_duration_s(0.0, 1.0, 1.0) == 2.0
    assert natural.current_speed() == 0.5
