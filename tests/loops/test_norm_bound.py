"""An update far longer than usual is scaled down; honest ones, and the median, are not moved by a minority."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from potluck.loops.norm_bound import NormBound, NormHistory
from potluck.loops.run_progress import RunProgress
from potluck.model.update_merging import FULL_LENGTH, UpdateNorm

MULTIPLE = 10.0
UNLIMITED = UpdateNorm(math.inf, math.inf)
MODEL = UpdateNorm(5.0, 4.0)  # its norms


def bound_of(*first: float) -> NormBound:
    """A bound that has seen one update each of the devices 0, 1, …"""
    bound = NormBound(MULTIPLE, NormHistory())
    bound.judge_updates([(str(device), UpdateNorm(norm, 0.0)) for device, norm in enumerate(first)], UNLIMITED)
    return bound


def merged_norm(bound: NormBound, device: str, norm: float) -> float:
    """The norm with which an update is merged."""
    return norm * bound.judge_update(device, UpdateNorm(norm, 0.0), UNLIMITED).scale.params


@pytest.mark.parametrize("norm", [1e6, 3e38, 1.7e308, 11.0])
def test_an_update_over_the_bound_is_scaled_down_to_the_median(norm: float) -> None:
    bound = bound_of(1.0, 1.0, 1.0)
    verdict = bound.judge_update("0", UpdateNorm(norm, 0.0), UNLIMITED)
    assert verdict.is_clipped
    assert (verdict.norm, verdict.bound) == (norm, 10.0)
    assert norm * verdict.scale.params == pytest.approx(1.0)
    assert verdict.scale.buffers == 1.0


def test_an_update_within_the_bound_is_not_touched() -> None:
    bound = bound_of(1.0, 2.0, 3.0)
    for norm in (0.0, 1e-300, 1.0, 19.9):
        assert bound.judge_update("0", UpdateNorm(norm, 0.0), UNLIMITED).scale == FULL_LENGTH


def test_buffers_are_bounded_by_themselves() -> None:
    """Batch-norm statistics are in no gradient, but a single one of 3e38 ruins every output."""
    bound = NormBound(MULTIPLE, NormHistory())
    bound.judge_updates([(name, UpdateNorm(1.0, 100.0)) for name in "abc"], UNLIMITED)
    assert bound.judge_update("a", UpdateNorm(1.0, 999.0), UNLIMITED).scale == FULL_LENGTH
    assert bound.judge_update("a", UpdateNorm(1.0, 3e38), UNLIMITED).scale == pytest.approx((1.0, 100 / 3e38))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_first_updates_are_judged_by_each_other(position: int) -> None:
    norms = [1.0, 1.2]
    norms.insert(position, 1e6)
    verdicts = NormBound(MULTIPLE, NormHistory()).judge_updates(
        [(str(device), UpdateNorm(norm, 0.0)) for device, norm in enumerate(norms)], UNLIMITED
    )
    assert [verdict.is_clipped for verdict in verdicts] == [index == position for index in range(3)]


def test_a_first_update_without_others_moves_the_weights_by_no_more_than_their_own_length() -> None:
    (verdict,) = NormBound(MULTIPLE, NormHistory()).judge_updates([("a", UpdateNorm(3e38, 0.0))], MODEL)
    assert 3e38 * verdict.scale.params == pytest.approx(5.0)


def test_first_buffers_without_others_become_no_longer_than_those_of_the_model() -> None:
    bound = NormBound(MULTIPLE, NormHistory())
    (verdict,) = bound.judge_updates([("a", UpdateNorm(1.0, 3e38))], MODEL)
    assert verdict.scale == pytest.approx((1.0, 4 / 3e38))
    for honest in ("b", "c", "d", "b"):
        assert not bound.judge_update(honest, UpdateNorm(1.0, 7e3), MODEL).is_clipped


@pytest.mark.parametrize("inputs", [1.0, 255.0, 65535.0])
@pytest.mark.parametrize("devices", ["a", "ab", "abc"])
def test_first_statistics_of_inputs_that_are_not_normalised_are_honest(inputs: float, devices: str) -> None:
    """A running variance begins at 1 and moves to the true one: by a factor of 0.1 with each batch."""
    bound = NormBound(MULTIPLE, NormHistory())
    for number in range(12):
        model, change = UpdateNorm(5.0, 4 * max(1.0, inputs**2 * (1 - 0.9**number))), 0.4 * inputs**2 * 0.9**number
        norms = [(device, UpdateNorm(1.0, change)) for device in devices]
        assert not any(verdict.is_clipped for verdict in bound.judge_updates(norms, model))


@pytest.mark.parametrize("name", ["params", "buffers"])
@pytest.mark.parametrize("lie", [40.0, 3e38])
def test_what_a_lone_device_sent_counts_for_nothing_once_there_is_a_majority(name: str, lie: float) -> None:
    bound, usual = NormBound(MULTIPLE, NormHistory()), UpdateNorm(1.0, 1.0)
    for _ in range(20):
        bound.judge_update("liar", usual._replace(**{name: lie}), MODEL)
    for _ in range(3):
        for honest in "abc":
            assert not bound.judge_update(honest, usual, MODEL).is_clipped
    verdict = bound.judge_update("liar", usual._replace(**{name: 11.0}), MODEL)
    assert verdict.bound == 10.0
    assert 11 * getattr(verdict.scale, name) == pytest.approx(1.0)


@pytest.mark.parametrize("devices", ["a", "ab"])
def test_without_a_majority_too_an_update_may_be_as_long_as_in_the_beginning(devices: str) -> None:
    bound = NormBound(MULTIPLE, NormHistory())
    for norm in (*(0.9**power for power in range(200)), 1.0):
        for device in devices:
            assert not bound.judge_update(device, UpdateNorm(norm, norm), MODEL).is_clipped


def test_buffers_that_begin_to_change_late_are_bounded() -> None:
    """A batch norm that is in evaluation mode at first."""
    bound = bound_of(1.0, 1.0, 1.0)
    assert not bound.judge_update("0", UpdateNorm(1.0, 7e3), MODEL).is_clipped
    bound = bound_of(1.0, 1.0, 1.0)
    assert bound.judge_update("0", UpdateNorm(1.0, 3e38), MODEL).scale.buffers == pytest.approx(4 / 3e38)


def test_a_minority_does_not_move_the_median_however_often_it_sends() -> None:
    """With an asynchronous barrier a fast device may send most of the updates."""
    bound = bound_of(1.0, 1.0, 1.0)
    for number in range(300):
        merged_norm(bound, "liar", 9.9 if number % 2 else 1e9)
        if number % 20 == 0:
            for honest in "012":
                assert merged_norm(bound, honest, 1.0) == 1.0
    assert merged_norm(bound, "liar", 11.0) == pytest.approx(1.0)


def test_a_minority_of_tiny_updates_does_not_shorten_honest_ones() -> None:
    bound = bound_of(1.0, 1.0, 1.0)
    for _ in range(100):
        merged_norm(bound, "liar", 1e-30)
        for honest in "012":
            assert merged_norm(bound, honest, 1.0) == 1.0


def test_after_convergence_an_update_may_be_as_long_as_in_the_beginning() -> None:
    """A batch that is classified wrongly after all others are right: its gradient is a million times the median."""
    bound = bound_of(1.0, 1.0, 1.0)
    norm = 1.0
    for _ in range(400):
        norm *= 0.97
        for honest in "012":
            assert merged_norm(bound, honest, norm) == norm
    assert merged_norm(bound, "0", 1.0) == 1.0
    assert merged_norm(bound, "0", 1e6) == pytest.approx(norm, rel=0.5)


def test_the_bound_follows_norms_that_grow() -> None:
    bound, norm = bound_of(1.0, 1.0, 1.0), 1.0
    for _ in range(200):
        norm *= 1.05
        for honest in "012":
            assert merged_norm(bound, honest, norm) == norm
    assert norm > 1e4


def test_where_most_norms_jump_the_bound_follows_and_nobody_is_refused() -> None:
    bound = bound_of(1.0, 1.0, 1.0)
    for _ in range(100):
        for honest in "012":
            assert bound.refusal(honest, UpdateNorm(1e4, 0.0), UNLIMITED) is None
            last = merged_norm(bound, honest, 1e4)
    assert last == 1e4


def test_updates_of_zeros_set_no_bound() -> None:
    bound = bound_of(0.0, 0.0, 0.0)
    assert merged_norm(bound, "0", 5.0) == 5.0
    assert merged_norm(bound, "1", 1e6) == pytest.approx(5.0)


def test_after_updates_of_zeros_the_next_ones_are_the_first() -> None:
    bound = bound_of(0.0, 0.0, 0.0)
    assert not bound.has_history
    norms = [("0", UpdateNorm(1.0, 0.0)), ("liar", UpdateNorm(3e38, 0.0)), ("1", UpdateNorm(1.2, 0.0))]
    verdicts = bound.judge_updates(norms, MODEL)
    assert [verdict.is_clipped for verdict in verdicts] == [False, True, False]
    assert bound.has_history


def test_an_update_after_those_of_zeros_is_bounded_by_the_model() -> None:
    bound = bound_of(0.0, 0.0, 0.0)
    verdict = bound.judge_update("liar", UpdateNorm(3e38, 3e38), MODEL)
    assert verdict.scale == pytest.approx((5 / 3e38, 4 / 3e38))


def test_a_liar_among_devices_that_send_zeros_is_bounded_by_the_model() -> None:
    norms = [(name, UpdateNorm(3e38 if name == "liar" else 0.0, 0.0)) for name in ("a", "b", "liar", "c")]
    verdicts = NormBound(MULTIPLE, NormHistory()).judge_updates(norms, MODEL)
    assert [verdict.is_clipped for verdict in verdicts] == [False, False, True, False]


def test_a_device_that_is_over_the_bound_again_and_again_is_refused_until_it_is_not() -> None:
    bound = bound_of(1.0, 1.0, 1.0)
    absurd = UpdateNorm(1e6, 0.0)
    for _ in range(3):
        assert bound.refusal("0", absurd, UNLIMITED) is None
        assert bound.judge_update("0", absurd, UNLIMITED).is_clipped
    assert "over the bound of 10" in str(bound.refusal("0", absurd, UNLIMITED))
    assert bound.refusal("1", absurd, UNLIMITED) is None, "of another device it is the first one"
    assert bound.refusal("0", UpdateNorm(1.0, 0.0), UNLIMITED) is None
    assert not bound.judge_update("0", UpdateNorm(1.0, 0.0), UNLIMITED).is_clipped
    assert bound.refusal("0", absurd, UNLIMITED) is None


def test_the_history_survives_a_checkpoint() -> None:
    progress = RunProgress()
    bound = NormBound(MULTIPLE, progress.norms)
    bound.judge_updates([(name, UpdateNorm(1.0, 2.0)) for name in "abc"], UNLIMITED)
    for _ in range(10):
        bound.judge_update("a", UpdateNorm(1e9, 2.0), UNLIMITED)
    read = msgspec.json.decode(msgspec.json.encode(progress), type=RunProgress)
    resumed = NormBound(MULTIPLE, read.norms)
    rng = np.random.default_rng(0)
    for norm in rng.lognormal(0, 3, 200):
        update = UpdateNorm(float(norm), 2.0)
        assert resumed.judge_update("b", update, UNLIMITED) == bound.judge_update("b", update, UNLIMITED)
    assert RunProgress().norms.recent == []


def test_a_checkpoint_without_a_history_is_read() -> None:
    assert msgspec.json.decode(b'{"round": 3}', type=RunProgress).norms == NormHistory()
