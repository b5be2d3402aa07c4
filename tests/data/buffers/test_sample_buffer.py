"""A buffer never exceeds its policy's limit and accounts for every sample."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from potluck.data.buffers import (
    BufferPolicy,
    PersistencePolicy,
    SampleAccount,
    SampleBuffer,
    SampleBufferState,
    TruncationPolicy,
    ValuePolicy,
)
from potluck.data.buffers.buffer_policies import allocate_by_weight
from potluck.data.buffers.range_queue import RangeQueue
from potluck.settings import decode_settings
from potluck.units import Seconds

Indices = npt.NDArray[np.int64]


def _labels(indices: Indices) -> Indices:
    return indices * 7919 % 13 % 4


class _AnyBuffer(RuleBasedStateMachine):
    policy: BufferPolicy
    limit: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.buffer = SampleBuffer(self.policy, _labels, self.limit)
        self.streamed = 0
        self.rate = 10.0
        self.out: set[int] = set()

    @rule(count=st.integers(0, 200), rate=st.floats(0.0, 100.0))
    def arrive(self, count: int, rate: float) -> None:
        self.rate = rate
        self.buffer.add_arrivals(self.streamed, self.streamed + count, rate)
        self.streamed += count

    @rule(want=st.integers(1, 80))
    def wish(self, want: int) -> None:
        assert self.buffer.set_demand(want, self.rate) == min(want, self.limit or want)

    @rule(want=st.integers(0, 80))
    def take(self, want: int) -> None:
        before = set(self.buffer.buffered_numbers().tolist())
        taken = self.buffer.take_samples(want, self.rate)
        assert len(taken) == min(want, len(before))
        assert set(taken.tolist()) <= before
        assert not self.out & set(taken.tolist()), "no sample is trained on twice"
        assert not set(taken.tolist()) & set(self.buffer.buffered_numbers().tolist())
        self.out |= set(taken.tolist())

    @rule(loss=st.dictionaries(st.integers(0, 3), st.floats(0.0, 9.0), max_size=3))
    def learn(self, loss: dict[int, float]) -> None:
        self.buffer.update_class_worth(loss)

    @rule()
    def save_and_restore(self) -> None:
        saved = msgspec.json.encode(self.buffer.save_state())
        buffer = SampleBuffer(self.policy, _labels, self.limit)
        buffer.restore_state(msgspec.json.decode(saved, type=SampleBufferState))
        assert buffer.save_state() == self.buffer.save_state()
        self.buffer = buffer

    @rule()
    def lose_power(self) -> None:
        self.buffer.drop_all()
        assert len(self.buffer) == 0

    @invariant()
    def every_sample_is_accounted_for(self) -> None:
        account = self.buffer.account
        account.check_balance()
        assert account.streamed == self.streamed
        assert account.buffered == len(self.buffer) == len(self.buffer.buffered_numbers())
        assert account.trained == len(self.out)

    @invariant()
    def within_bounds(self) -> None:
        assert len(self.buffer) <= self.buffer.max_samples(self.rate)


class _Keeps(_AnyBuffer):
    policy = PersistencePolicy()


class _KeepsSome(_AnyBuffer):
    policy = PersistencePolicy(most=50)
    limit = 64


class _Truncates(_AnyBuffer):
    policy = TruncationPolicy()


class _Values(_AnyBuffer):
    policy = ValuePolicy(seconds=Seconds(0.5))


_briefly = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("machine", [_Keeps, _KeepsSome, _Truncates, _Values])
def test_bounds_and_accounting_hold_under_any_sequence_of_operations(machine: type[_AnyBuffer]) -> None:
    run_state_machine_as_test(machine, settings=_briefly)


def _full(policy: BufferPolicy, count: int, rate: float) -> SampleBuffer:
    buffer = SampleBuffer(policy, _labels)
    buffer.add_arrivals(0, count, rate)
    return buffer


def test_persistence_returns_all_samples_in_order() -> None:
    buffer = _full(PersistencePolicy(), 1_000_000, 300.0)
    assert buffer.take_samples(3, 300.0).tolist() == [0, 1, 2]
    assert buffer.take_samples(2, 300.0).tolist() == [3, 4]
    assert buffer.account.buffered == 999_995
    assert len(msgspec.json.encode(buffer.save_state())) < 400, "a million samples in a row cost as little as one"


def test_truncation_returns_the_newest_samples_and_drops_the_rest() -> None:
    buffer = _full(TruncationPolicy(), 1000, 100.0)
    assert len(buffer) == 100
    assert buffer.take_samples(30, 100.0).tolist() == list(range(970, 1000))
    assert buffer.account == SampleAccount(streamed=1000, trained=30, dropped=970, peak=100)


def test_truncation_keeps_as_many_samples_as_the_next_demand() -> None:
    buffer = SampleBuffer(TruncationPolicy(), _labels)
    buffer.set_demand(64, 12.0)
    buffer.add_arrivals(0, 70, 12.0)
    assert len(buffer) == 64


def test_value_policy_keeps_no_more_than_truncation() -> None:
    buffer = _full(ValuePolicy(), 1000, 100.0)
    assert len(buffer) == 100
    assert len(buffer.take_samples(30, 100.0)) == 30
    assert len(buffer) == 70


def test_value_policy_keeps_rare_classes() -> None:
    def rare(indices: Indices) -> Indices:
        return np.where(indices % 50 == 0, 1, 0)

    buffer = SampleBuffer(ValuePolicy(), rare)
    buffer.add_arrivals(0, 1000, 40.0)
    assert rare(buffer.buffered_numbers()).sum() == 20, (
        "all the rare ones and as many of the others as there is room for"
    )
    assert rare(buffer.take_samples(8, 40.0)).sum() == 4


def test_value_policy_keeps_more_of_classes_with_high_loss() -> None:
    buffer = SampleBuffer(ValuePolicy(), lambda indices: indices % 2)
    buffer.update_class_worth({0: 0.5, 1: 1.5})
    buffer.add_arrivals(0, 1000, 40.0)
    assert (buffer.buffered_numbers() % 2).sum() == 30


def test_value_policy_keeps_some_of_classes_with_low_loss() -> None:
    """Otherwise its recorded loss would never be updated, even when the class is forgotten."""
    buffer = SampleBuffer(ValuePolicy(), lambda indices: indices % 2)
    buffer.update_class_worth({0: 1e-9, 1: 1.0})
    buffer.add_arrivals(0, 1000, 40.0)
    assert (buffer.buffered_numbers() % 2 == 0).sum() == 8
    assert (buffer.take_samples(10, 40.0) % 2 == 0).sum() == 2


def test_value_policy_treats_unknown_classes_as_the_hardest() -> None:
    buffer = SampleBuffer(ValuePolicy(), lambda indices: indices % 3)
    buffer.update_class_worth({0: 2.0, 1: 4.0})
    buffer.add_arrivals(0, 1000, 50.0)
    assert [int((buffer.buffered_numbers() % 3 == one).sum()) for one in range(3)] == [10, 20, 20]


def test_a_non_finite_loss_is_ignored() -> None:
    buffer = SampleBuffer(ValuePolicy(), lambda indices: indices % 2)
    buffer.update_class_worth({0: math.nan, 1: math.inf})
    buffer.add_arrivals(0, 1000, 40.0)
    assert (buffer.buffered_numbers() % 2).sum() == 20


@given(
    classes=st.lists(st.tuples(st.integers(0, 50), st.floats(0.01, 10.0)), min_size=1, max_size=8),
    total=st.integers(0, 200),
)
def test_allocation_fills_the_total_and_never_exceeds_what_is_available(
    classes: list[tuple[int, float]], total: int
) -> None:
    available = np.array([count for count, _ in classes])
    weights = np.array([weight for _, weight in classes])
    given_out = allocate_by_weight(available, weights, total)
    assert given_out.sum() == min(total, available.sum())
    assert (given_out >= 0).all()
    assert (given_out <= available).all()
    short = given_out < available
    if short.any():  # limited classes get their fair allocation to within one sample
        level = given_out[short] / weights[short]
        assert (
            level[:, None] - level[None, :] <= 1 / weights[short][:, None] + 1 / weights[short][None, :] + 1e-9
        ).all()


@given(indices=st.sets(st.integers(0, 60)), count=st.integers(0, 60))
def test_a_range_queue_holds_exactly_its_indices(indices: set[int], count: int) -> None:
    rising = np.array(sorted(indices), np.int64)
    runs = RangeQueue.from_numbers(rising)
    assert runs.all_numbers().tolist() == rising.tolist()
    count = min(count, len(runs))
    assert runs.pop_oldest(count).tolist() == rising[:count].tolist()
    assert runs.all_numbers().tolist() == rising[count:].tolist()
    assert len(runs) == len(rising) - count
    assert all(after[0] > before[1] for before, after in zip(runs.list_ranges(), runs.list_ranges()[1:], strict=False))


def test_accounts_can_be_summed() -> None:
    one, other = (
        SampleAccount(streamed=9, trained=6, shared=1, dropped=2, buffered=1, peak=4),
        SampleAccount(received=1, trained=1),
    )
    total = one + other
    total.check_balance()
    assert (total.streamed, total.received, total.trained, total.shared) == (9, 1, 7, 1), "a copy is trained on twice"


def test_a_lost_sample_is_detected() -> None:
    with pytest.raises(AssertionError, match="1 samples are unaccounted for"):
        SampleAccount(streamed=3, trained=2).check_balance()


@pytest.mark.parametrize(
    ("raw", "policy"), [("value", ValuePolicy()), ({"kind": "persistence", "most": 9}, PersistencePolicy(most=9))]
)
def test_a_policy_can_be_decoded_from_settings(raw: object, policy: BufferPolicy) -> None:
    assert decode_settings(raw, BufferPolicy) == policy
