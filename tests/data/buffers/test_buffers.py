"""A buffer never holds more than its policy allows and loses track of no sample, whatever happens to it."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from potluck.data.buffers import Account, Buffer, Held, HeldState, Persistence, Truncation, Value
from potluck.data.buffers.policies import allot
from potluck.data.buffers.runs import Runs
from potluck.settings import decode
from potluck.units import Seconds

Numbers = npt.NDArray[np.int64]


def _labels(numbers: Numbers) -> Numbers:
    return numbers * 7919 % 13 % 4


class _AnyBuffer(RuleBasedStateMachine):
    policy: Buffer
    limit: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.held = Held(self.policy, _labels, self.limit)
        self.streamed = 0
        self.rate = 10.0
        self.out: set[int] = set()

    @rule(count=st.integers(0, 200), rate=st.floats(0.0, 100.0))
    def arrive(self, count: int, rate: float) -> None:
        self.rate = rate
        self.held.arrive(self.streamed, self.streamed + count, rate)
        self.streamed += count

    @rule(want=st.integers(1, 80))
    def wish(self, want: int) -> None:
        assert self.held.wish(want, self.rate) == min(want, self.limit or want)

    @rule(want=st.integers(0, 80))
    def take(self, want: int) -> None:
        before = set(self.held.numbers().tolist())
        taken = self.held.take(want, self.rate)
        assert len(taken) == min(want, len(before))
        assert set(taken.tolist()) <= before
        assert not self.out & set(taken.tolist()), "no sample is trained on twice"
        assert not set(taken.tolist()) & set(self.held.numbers().tolist())
        self.out |= set(taken.tolist())

    @rule(loss=st.dictionaries(st.integers(0, 3), st.floats(0.0, 9.0), max_size=3))
    def learn(self, loss: dict[int, float]) -> None:
        self.held.learned(loss)

    @rule()
    def save_and_restore(self) -> None:
        saved = msgspec.json.encode(self.held.state())
        held = Held(self.policy, _labels, self.limit)
        held.restore(msgspec.json.decode(saved, type=HeldState))
        assert held.state() == self.held.state()
        self.held = held

    @rule()
    def lose_power(self) -> None:
        self.held.forget()
        assert len(self.held) == 0

    @invariant()
    def every_sample_is_accounted_for(self) -> None:
        account = self.held.account
        account.check()
        assert account.streamed == self.streamed
        assert account.buffered == len(self.held) == len(self.held.numbers())
        assert account.trained == len(self.out)

    @invariant()
    def within_bounds(self) -> None:
        assert len(self.held) <= self.held.bound(self.rate)


class _Keeps(_AnyBuffer):
    policy = Persistence()


class _KeepsSome(_AnyBuffer):
    policy = Persistence(most=50)
    limit = 64


class _Truncates(_AnyBuffer):
    policy = Truncation()


class _Values(_AnyBuffer):
    policy = Value(seconds=Seconds(0.5))


_briefly = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("machine", [_Keeps, _KeepsSome, _Truncates, _Values])
def test_bounds_and_account_hold_whatever_happens(machine: type[_AnyBuffer]) -> None:
    run_state_machine_as_test(machine, settings=_briefly)


def _full(policy: Buffer, count: int, rate: float) -> Held:
    held = Held(policy, _labels)
    held.arrive(0, count, rate)
    return held


def test_persistence_trains_on_everything_in_order() -> None:
    held = _full(Persistence(), 1_000_000, 300.0)
    assert held.take(3, 300.0).tolist() == [0, 1, 2]
    assert held.take(2, 300.0).tolist() == [3, 4]
    assert held.account.buffered == 999_995
    assert len(msgspec.json.encode(held.state())) < 400, "a million samples in a row cost as little as one"


def test_truncation_trains_on_the_newest_and_drops_what_is_left() -> None:
    held = _full(Truncation(), 1000, 100.0)
    assert len(held) == 100
    assert held.take(30, 100.0).tolist() == list(range(970, 1000))
    assert held.account == Account(streamed=1000, trained=30, dropped=970, peak=100)


def test_truncation_keeps_as_many_as_are_wanted_next() -> None:
    held = Held(Truncation(), _labels)
    held.wish(64, 12.0)
    held.arrive(0, 70, 12.0)
    assert len(held) == 64


def test_value_keeps_no_more_than_truncation_does() -> None:
    held = _full(Value(), 1000, 100.0)
    assert len(held) == 100
    assert len(held.take(30, 100.0)) == 30
    assert len(held) == 70


def test_value_lets_no_common_class_crowd_out_a_rare_one() -> None:
    def rare(numbers: Numbers) -> Numbers:
        return np.where(numbers % 50 == 0, 1, 0)

    held = Held(Value(), rare)
    held.arrive(0, 1000, 40.0)
    assert rare(held.numbers()).sum() == 20, "all the rare ones and as many of the others as there is room for"
    assert rare(held.take(8, 40.0)).sum() == 4


def test_value_keeps_more_of_what_is_learned_badly() -> None:
    held = Held(Value(), lambda numbers: numbers % 2)
    held.learned({0: 0.5, 1: 1.5})
    held.arrive(0, 1000, 40.0)
    assert (held.numbers() % 2).sum() == 30


def test_value_keeps_looking_at_what_is_learned_well() -> None:
    """Else its loss would stay what it was last, however much of it is forgotten meanwhile."""
    held = Held(Value(), lambda numbers: numbers % 2)
    held.learned({0: 1e-9, 1: 1.0})
    held.arrive(0, 1000, 40.0)
    assert (held.numbers() % 2 == 0).sum() == 8
    assert (held.take(10, 40.0) % 2 == 0).sum() == 2


def test_value_takes_a_class_that_it_knows_nothing_of_for_as_hard_as_any() -> None:
    held = Held(Value(), lambda numbers: numbers % 3)
    held.learned({0: 2.0, 1: 4.0})
    held.arrive(0, 1000, 50.0)
    assert [int((held.numbers() % 3 == one).sum()) for one in range(3)] == [10, 20, 20]


def test_a_loss_that_is_no_number_is_not_believed() -> None:
    held = Held(Value(), lambda numbers: numbers % 2)
    held.learned({0: math.nan, 1: math.inf})
    held.arrive(0, 1000, 40.0)
    assert (held.numbers() % 2).sum() == 20


@given(
    places=st.lists(st.tuples(st.integers(0, 50), st.floats(0.01, 10.0)), min_size=1, max_size=8),
    total=st.integers(0, 200),
)
def test_places_are_filled_and_nobody_gets_more_than_there_are(places: list[tuple[int, float]], total: int) -> None:
    available = np.array([count for count, _ in places])
    weights = np.array([weight for _, weight in places])
    given_out = allot(available, weights, total)
    assert given_out.sum() == min(total, available.sum())
    assert (given_out >= 0).all()
    assert (given_out <= available).all()
    short = given_out < available
    if short.any():  # whoever is short got its share to within one place of whoever else is
        level = given_out[short] / weights[short]
        assert (
            level[:, None] - level[None, :] <= 1 / weights[short][:, None] + 1 / weights[short][None, :] + 1e-9
        ).all()


@given(numbers=st.sets(st.integers(0, 60)), count=st.integers(0, 60))
def test_runs_are_the_numbers_they_stand_for(numbers: set[int], count: int) -> None:
    rising = np.array(sorted(numbers), np.int64)
    runs = Runs.of(rising)
    assert runs.numbers().tolist() == rising.tolist()
    count = min(count, len(runs))
    assert runs.pop_oldest(count).tolist() == rising[:count].tolist()
    assert runs.numbers().tolist() == rising[count:].tolist()
    assert len(runs) == len(rising) - count
    assert all(after[0] > before[1] for before, after in zip(runs.listed(), runs.listed()[1:], strict=False))


def test_accounts_add_up() -> None:
    one, other = Account(streamed=9, trained=5, shared=1, dropped=2, buffered=1, peak=4), Account(received=1, trained=1)
    total = one + other
    total.check()
    assert (total.streamed, total.received, total.trained, total.shared) == (9, 1, 6, 1)


def test_a_sample_that_goes_missing_is_noticed() -> None:
    with pytest.raises(AssertionError, match="1 samples are unaccounted for"):
        Account(streamed=3, trained=2).check()


@pytest.mark.parametrize(
    ("written", "policy"), [("value", Value()), ({"kind": "persistence", "most": 9}, Persistence(most=9))]
)
def test_a_policy_is_a_part(written: object, policy: Buffer) -> None:
    assert decode(written, Buffer) == policy
