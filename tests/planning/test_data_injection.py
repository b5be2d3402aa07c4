from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.planning.data_injection import Injection, plan_injection

_batches = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(1, 1024), min_size=1, max_size=30)
_fractions = st.floats(0.01, 0.99)


@given(batches=_batches, alpha=_fractions, beta=_fractions, seed=st.integers(0, 99), round=st.integers(0, 999))
def test_moving_samples_neither_loses_nor_creates_any(
    batches: dict[str, int], alpha: float, beta: float, seed: int, round: int
) -> None:
    transfers = plan_injection(Injection(alpha=alpha, beta=beta), batches, seed, round)
    moved = Counter(batches)
    for transfer in transfers:
        moved[transfer.donor] -= transfer.samples
        moved[transfer.receiver] += transfer.samples
    assert sum(moved.values()) == sum(batches.values())
    assert moved.keys() == batches.keys()
    assert min(moved.values()) >= 1
    assert all(transfer.samples > 0 and transfer.donor != transfer.receiver for transfer in transfers)
    assert len({(transfer.donor, transfer.receiver) for transfer in transfers}) == len(transfers)


@given(batches=_batches, alpha=_fractions, beta=_fractions, seed=st.integers(0, 99))
def test_a_fraction_alpha_of_devices_gives_beta_of_its_batch(
    batches: dict[str, int], alpha: float, beta: float, seed: int
) -> None:
    transfers = plan_injection(Injection(alpha=alpha, beta=beta), batches, seed, 0)
    donors = {transfer.donor for transfer in transfers}
    assert len(donors) <= math.ceil(alpha * len(batches))
    for donor in donors:
        given_away = [transfer.samples for transfer in transfers if transfer.donor == donor]
        assert abs(sum(given_away) - beta * batches[donor]) <= 1
        assert max(given_away) - min(given_away) <= 1, "evenly"


@given(batches=_batches, seed=st.integers(0, 99), round=st.integers(0, 9))
def test_the_plan_does_not_depend_on_the_order_of_the_batches(batches: dict[str, int], seed: int, round: int) -> None:
    backwards = dict(reversed(batches.items()))
    assert plan_injection(Injection(), batches, seed, round) == plan_injection(Injection(), backwards, seed, round)


def test_a_single_device_keeps_its_samples() -> None:
    assert plan_injection(Injection(alpha=1.0, beta=0.9), {"only": 64}, 0, 0) == ()


def test_donors_change_from_round_to_round() -> None:
    batches = {f"pi-{number}": 64 for number in range(10)}
    donors = {plan_injection(Injection(alpha=0.1), batches, 0, round)[0].donor for round in range(200)}
    assert donors == set(batches)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.25, 0.25), (0.1, 0.1), (0.05, 0.05)])
def test_the_traffic_matches_the_formula_of_the_paper(alpha: float, beta: float) -> None:
    """⌈αD⌉ · β · mean batch · bytes per sample, to within half a sample for each donor."""
    devices, batch, sample_bytes = 16, 62, 3072
    transfers = plan_injection(Injection(alpha=alpha, beta=beta), dict.fromkeys(map(str, range(devices)), batch), 3, 7)
    donors = math.ceil(alpha * devices)
    expected = donors * beta * batch * sample_bytes
    assert sample_bytes * sum(transfer.samples for transfer in transfers) == pytest.approx(
        expected, abs=0.5 * donors * sample_bytes
    )
