from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.model.merge import Mean, Merge, Samples, Stale, Sum
from potluck.model.state import Layout
from potluck.settings import kinds


def _layout(params: int, buffers: int = 0, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout((), (), (0, params), (0, buffers), dtype)


def _merged(updates: list[torch.Tensor], weights: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    total = Sum(_layout(len(updates[0]), dtype=dtype))
    for update, weight in zip(updates, weights, strict=True):
        total.add(update, torch.zeros(0, dtype=dtype), weight)
    return total.mean()[0]


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
WEIGHTS = st.one_of(st.integers(1, 10**9).map(float), st.floats(1e-6, 1e6))


@settings(deadline=None)
@given(numbers=st.lists(FLOATS, min_size=1, max_size=30), weight=WEIGHTS)
def test_one_update_comes_back_bit_for_bit(numbers: list[float], weight: float) -> None:
    update = torch.tensor(numbers, dtype=torch.float32)
    assert torch.equal(_merged([update], [weight]), update)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_one_update_of_any_precision_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    """In double precision the product with a weight is rounded, so it must not be divided out again."""
    update = torch.randn(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
    for weight in (1.0, 3.0, 7.0, 100.0, 49.0):
        merged = _merged([update], [weight], dtype)
        assert merged.dtype == dtype
        assert torch.equal(merged, update)


@settings(deadline=None)
@given(
    numbers=st.lists(FLOATS, min_size=1, max_size=9), weights=st.lists(st.integers(1, 10**6), min_size=1, max_size=9)
)
def test_equal_updates_merge_to_themselves(numbers: list[float], weights: list[int]) -> None:
    update = torch.tensor(numbers, dtype=torch.float32)
    assert torch.equal(_merged([update] * len(weights), [float(weight) for weight in weights]), update)


@settings(deadline=None)
@given(data=st.data(), count=st.integers(1, 6))
def test_the_mean_is_the_weighted_mean(data: st.DataObject, count: int) -> None:
    numbers = st.lists(st.floats(-1e3, 1e3, width=32), min_size=5, max_size=5)
    updates = [torch.tensor(data.draw(numbers), dtype=torch.float32) for _ in range(count)]
    weights = [float(data.draw(st.integers(1, 1000))) for _ in range(count)]
    wanted = sum(update.double() * weight for update, weight in zip(updates, weights, strict=True)) / sum(weights)
    torch.testing.assert_close(_merged(updates, weights), torch.as_tensor(wanted).float(), rtol=1e-6, atol=1e-9)


@settings(deadline=None)
@given(data=st.data())
def test_the_order_of_samples_weighted_updates_does_not_matter(data: st.DataObject) -> None:
    """Products of 24 bits and whole numbers of samples are exact in double, so only sums of far apart sizes round."""
    updates = [torch.tensor(data.draw(st.lists(st.floats(-8, 8, width=16), min_size=4, max_size=4))) for _ in range(5)]
    weights = [float(data.draw(st.integers(1, 1000))) for _ in range(5)]
    order = data.draw(st.permutations(range(5)))
    shuffled = _merged([updates[n] for n in order], [weights[n] for n in order])
    assert torch.equal(shuffled, _merged(updates, weights))


def test_parameters_and_buffers_are_merged_alike() -> None:
    total = Sum(_layout(2, 1))
    total.add(torch.tensor([1.0, 2.0]), torch.tensor([10.0]), 1.0)
    total.add(torch.tensor([3.0, 6.0]), torch.tensor([20.0]), 3.0)
    params, buffers = total.mean()
    assert params.tolist() == [2.5, 5.0]
    assert buffers.tolist() == [17.5]
    assert params.dtype == buffers.dtype == torch.float32


def test_an_update_is_not_changed_by_adding_it() -> None:
    update = torch.tensor([1.0, 2.0])
    _merged([update, update], [2.0, 5.0])
    assert update.tolist() == [1.0, 2.0]


def test_a_sum_of_nothing_has_no_mean() -> None:
    with pytest.raises(AssertionError, match="nothing was added"):
        Sum(_layout(2)).mean()


def test_what_an_update_weighs() -> None:
    assert Samples().weight(37, 5) == 37.0
    assert Mean().weight(37, 5) == 1.0
    assert Stale().weight(37, 0) == 1.0
    assert Stale().weight(37, 3) == 0.5
    assert Stale(power=1.0).weight(37, 3) == 0.25


@settings(deadline=None)
@given(samples=st.integers(1, 10**9), staleness=st.integers(0, 10**6))
def test_every_weight_is_above_zero(samples: int, staleness: int) -> None:
    shipped = [kind for kind in kinds(Merge).values() if kind.__module__ == "potluck.model.merge"]
    assert len(shipped) >= 3
    for kind in shipped:
        merge = kind()
        assert isinstance(merge, Merge)
        assert merge.weight(samples, staleness) > 0
