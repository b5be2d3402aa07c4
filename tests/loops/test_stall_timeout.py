"""A run gives up when nothing new was got done for too long, whatever else goes on meanwhile."""

from __future__ import annotations

from potluck.loops.stall_timeout import StallTimeout


def _patience() -> StallTimeout:
    patience = StallTimeout(10.0)
    patience.restart_timer(0.0)
    return patience


def test_what_is_got_done_makes_it_begin_anew() -> None:
    patience = _patience()
    for batch, now in ((1, 5.0), (2, 12.0), (3, 20.0)):
        patience.record_batch(batch, now)
        assert patience.expires_at == now + 10.0


def test_a_device_that_returns_for_ever_does_not_keep_a_run_alive() -> None:
    patience = _patience()
    for now in range(9):
        patience.extend_once("pi", float(now))
    assert patience.expires_at == 10.0
    patience.extend_once("laptop", 4.0)
    assert patience.expires_at == 14.0


def test_a_batch_that_is_lost_and_done_again_for_ever_does_not_either() -> None:
    patience = _patience()
    patience.record_batch(1, 1.0)
    for now in range(2, 9):
        patience.record_batch(1, float(now))
    assert patience.expires_at == 12.0, "done again, it counts once"


def test_going_again_over_what_was_lost_counts_batch_by_batch() -> None:
    patience = _patience()
    for batch in range(1, 6):
        patience.record_batch(batch, 1.0)
    for batch in range(1, 6):
        patience.record_batch(batch, 1.0 + 8 * batch)
        assert patience.expires_at == 11.0 + 8 * batch
    patience.record_batch(6, 45.0)
    patience.record_batch(6, 46.0)
    assert patience.expires_at == 56.0
