from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.planning.data_injection import BroadcastInjection, InjectionFleet, MissingClassInjection

_batches = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(1, 1024), min_size=1, max_size=30)
_fractions = st.floats(0.01, 0.99)


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(batches=_batches, alpha=_fractions, beta=_fractions, seed=st.integers(0, 99))
def test_a_donor_sends_the_same_fraction_of_its_batch_to_every_other_device(
    batches: dict[str, int], alpha: float, beta: float, seed: int
) -> None:
    injection = BroadcastInjection(alpha=alpha, beta=beta)
    transfers = injection.plan_transfers(list(batches), InjectionFleet(batches), _rng(seed))
    donors = {transfer.donor for transfer in transfers}
    assert len(donors) <= math.ceil(alpha * len(batches))
    for donor in donors:
        sent = [transfer for transfer in transfers if transfer.donor == donor]
        assert sorted(transfer.receiver for transfer in sent) == sorted(batches.keys() - {donor})
        assert {transfer.samples for transfer in sent} == {math.floor(beta * batches[donor] + 0.5)}
        assert all(transfer.label is None for transfer in sent)


@pytest.mark.parametrize(
    ("alpha", "beta", "donors", "each"), [(0.5, 0.5, 5, 32), (0.25, 0.25, 3, 16), (0.05, 0.05, 1, 3)]
)
def test_broadcast_adds_what_the_paper_says(alpha: float, beta: float, donors: int, each: int) -> None:
    """⌈αD⌉ · β · b samples for a device that is no donor, and one donor's fewer for one that is."""
    batches = dict.fromkeys(map(str, range(10)), 64)
    injection = BroadcastInjection(alpha=alpha, beta=beta)
    transfers = injection.plan_transfers(list(batches), InjectionFleet(batches), _rng(3))
    assert len(transfers) == donors * 9
    received = {device: sum(one.samples for one in transfers if one.receiver == device) for device in batches}
    assert set(received.values()) == {donors * each, (donors - 1) * each}


def test_a_device_that_is_invited_alone_is_sent_its_part_of_all_others() -> None:
    """As with a buffered barrier, where each device has its own rounds."""
    batches = dict.fromkeys("abcdefghij", 64)
    injection, fleet = BroadcastInjection(alpha=0.5, beta=0.5), InjectionFleet(batches)
    counts = [sum(one.samples for one in injection.plan_transfers(["a"], fleet, _rng(seed))) for seed in range(400)]
    assert set(counts) == {4 * 32, 5 * 32}
    assert np.mean(counts) == pytest.approx(4.5 * 32, rel=0.02), "it is one of the five donors half of the time"


def test_missing_classes_add_what_the_code_says() -> None:
    """Ten devices with one class each at α = β = 0.5: five times half of its batch, so 2.5 batches more."""
    batches = {str(index): 20 + 10 * index for index in range(10)}
    fleet = InjectionFleet(batches, {str(index): {index} for index in range(10)}, 10)
    injection = MissingClassInjection(alpha=0.5, beta=0.5)
    for seed in range(20):
        transfers = injection.plan_transfers(list(batches), fleet, _rng(seed))
        assert len({(*one[:2], one.label) for one in transfers}) == len(transfers), "one transfer for each class"
        for device, batch in batches.items():
            received = [one for one in transfers if one.receiver == device]
            assert sum(one.samples for one in received) == 5 * (batch // 2)
            assert all(one.donor == str(one.label) != device for one in received), "by a device that holds the class"


def test_a_device_that_holds_all_classes_is_sent_none() -> None:
    fleet = InjectionFleet({"a": 64, "b": 64}, {"a": {0, 1}, "b": {1}}, 2)
    transfers = MissingClassInjection(alpha=0.5, beta=0.25).plan_transfers(["a", "b"], fleet, _rng())
    assert [tuple(one) for one in transfers] == [("a", "b", 16, 0)]


@given(batches=_batches, seed=st.integers(0, 99))
def test_the_plan_does_not_depend_on_the_order_of_the_batches(batches: dict[str, int], seed: int) -> None:
    backwards, receivers = dict(reversed(batches.items())), sorted(batches)
    classes = {device: {index % 3} for index, device in enumerate(receivers)}
    for injection in (BroadcastInjection(), MissingClassInjection()):
        plans = [
            injection.plan_transfers(receivers, InjectionFleet(each, classes, 3), _rng(seed))
            for each in (batches, backwards)
        ]
        assert plans[0] == plans[1]


def test_a_single_device_is_sent_nothing() -> None:
    fleet = InjectionFleet({"only": 64}, {"only": {0}}, 4)
    for injection in (BroadcastInjection(alpha=1.0, beta=0.9), MissingClassInjection(alpha=1.0)):
        assert injection.plan_transfers(["only"], fleet, _rng()) == ()


def test_donors_change_from_round_to_round() -> None:
    batches = {f"pi-{number}": 64 for number in range(10)}
    plans = [
        BroadcastInjection(alpha=0.1).plan_transfers(list(batches), InjectionFleet(batches), _rng(seed))
        for seed in range(200)
    ]
    assert {plan[0].donor for plan in plans} == set(batches)
