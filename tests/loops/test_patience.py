"""A run gives up when nothing new was got done for too long, whatever else goes on meanwhile."""

from __future__ import annotations

from potluck.loops.patience import Patience


def _patience() -> Patience:
    patience = Patience(10.0)
    patience.begin(0.0)
    return patience


def test_what_is_got_done_makes_it_begin_anew() -> None:
    patience = _patience()
    for batch, now in ((1, 5.0), (2, 12.0), (3, 20.0)):
        patience.reach(batch, now)
        assert patience.ends_at == now + 10.0


def test_a_device_that_returns_for_ever_does_not_keep_a_run_alive() -> None:
    patience = _patience()
    for now in range(9):
        patience.stir("pi", float(now))
    assert patience.ends_at == 10.0
    patience.stir("laptop", 4.0)
    assert patience.ends_at == 14.0


def test_a_batch_that_is_lost_and_done_again_for_ever_does_not_either() -> None:
    patience = _patience()
    patience.reach(1, 1.0)
    for now in range(2, 9):
        patience.reach(1, float(now))
    assert patience.ends_at == 12.0, "done again, it counts once"


def test_going_again_over_what_was_lost_counts_batch_by_batch() -> None:
    patience = _patience()
    for batch in range(1, 6):
        patience.reach(batch, 1.0)
    for batch in range(1, 6):
        patience.reach(batch, 1.0 + 8 * batch)
        assert patience.ends_at == 11.0 + 8 * batch
    patience.reach(6, 45.0)
    patience.reach(6, 46.0)
    assert patience.ends_at == 56.0
